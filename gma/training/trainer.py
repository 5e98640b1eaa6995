"""Training: from a config and a prepared corpus to a model directory, through any number of interruptions.

An update is a pure function of the weights and its number: its sentences, its δ and its dropout are drawn from (seed,
update, micro-batch), never from what happened before. So a checkpoint needs no generator's state, a resumed run repeats
the uninterrupted one bit for bit on the CPU, and two processes do what one does with twice the accumulation.
"""

import math
import signal
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gma.attention.alignment import Alignment
from gma.config import Config
from gma.corpus.batches import Batch, BatchPlan, UpdateStream, collate
from gma.corpus.token_file import PreparedCorpus
from gma.errors import UserError
from gma.model import directory
from gma.model.transformer import Transformer
from gma.storage import tensor_file
from gma.text.vocabulary import PAD
from gma.training.checkpoint import CheckpointFolder
from gma.training.display import TrainingDisplay
from gma.training.history import History
from gma.training.interruption import SIGNALS, Interruption
from gma.training.loss import cross_entropy
from gma.training.schedule import learning_rate
from gma.training.validation import Validation
from gma.training.world import World

CHECKPOINTS = "checkpoints"
# sums between two log entries
WINDOW = ("smoothed", "likelihood", "auxiliary", "tokens", "past_the_end", "positions", "seconds")
# give up after this many non-finite gradients in a row
HOPELESS = 100
# stands for the micro-batch in seeds of what is drawn once for an update
FOR_DELTA = 2**32 - 1
# updates that count as a whole training where only the minutes are limited
LONG = 300_000
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Outcome(NamedTuple):
    """Why training ended, and how far it came. `signal` is 0 unless a signal ended it."""

    reason: str
    signal: int
    update: int
    validation: dict[str, Any] | None


@dataclass
class State:
    """All that a checkpoint holds besides tensors."""

    update: int = 0
    tokens: int = 0
    seconds: float = 0.0
    skipped: int = 0
    skipped_in_a_row: int = 0
    validated: int = 0
    best: dict[str, Any] | None = None
    validations_since_best: int = 0
    window: list[float] = field(default_factory=lambda: [0.0] * len(WINDOW))
    scaler: dict[str, Any] = field(default_factory=dict)


class Trainer:
    """One run, as seen by one of its processes.

    Args:
        run: its folder: checkpoints/, tensorboard/, history.jsonl, and the best model so far as a model directory.
        identity: what makes two runs the same; written into every checkpoint, see `gma.training.run`.
    """

    def __init__(
        self,
        config: Config,
        corpus: PreparedCorpus,
        run: Path,
        world: World,
        console: Console,
        identity: dict[str, Any] | None = None,
    ):
        self.config, self.settings, self.corpus, self.run, self.world = config, config.training, corpus, run, world
        self.identity = identity or {}
        self.train_split = corpus.split("train")
        tokenizer = corpus.tokenizer
        torch.manual_seed(self.settings.seed)
        self.model = Transformer(config.model, config.attention, tokenizer.source.size, tokenizer.target.size)
        self.model.to(world.device).train()
        self.optimizer = _optimizer(self.model, config)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=self.settings.precision == "float16")
        # without a prior the predicted positions choose what is visible, and get no gradient
        self.parallel = world.parallel(self.model, find_unused_parameters=config.attention.prior == "none")
        self.network = torch.compile(self.parallel, dynamic=True) if self.settings.compile else self.parallel

        plan = BatchPlan(self.train_split, self.settings.tokens, self.settings.seed)
        self.stream = UpdateStream(plan, world.size, world.rank, self.settings.accumulation)
        self.validation = Validation(
            corpus.split("valid"), tokenizer, self.settings.tokens, self.settings.validate_sentences, world
        )
        self.checkpoints = CheckpointFolder(run / CHECKPOINTS, self.settings.keep_checkpoints)
        self.state = State()
        self.began_here = False  # whether a batch has been worked off since the start
        self.saved = True  # whether everything up to now is in a checkpoint
        limit = self.settings.minutes * 60.0
        self.display = TrainingDisplay(console, self.settings.updates, limit, quiet=not world.is_first)
        self.interruption = Interruption(speak=world.is_first)

    def restore(self, tensors: dict[str, Tensor], state: State, path: Path) -> None:
        """Go on from a checkpoint; every process calls this, only the first one's `tensors` are used."""
        live = self.tensors()
        if self.world.is_first:
            tensor_file.fill(live, tensors, path)
        self.world.share_tensors(live.values())
        self.state = state
        self.scaler.load_state_dict(state.scaler)
        # a checkpoint of another version may hold other sums
        if not self.world.is_first or len(state.window) != len(WINDOW):
            state.window = [0.0] * len(WINDOW)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that a checkpoint holds, by name; not copies."""
        tensors = {f"model.{name}": tensor for name, tensor in tensor_file.own_tensors(self.model).items()}
        for name, parameter in self.model.named_parameters():
            for key, tensor in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{key}.{name}"] = tensor
        return tensors

    def train(self) -> Outcome:
        """Train until a limit of the config is reached, patience ends, or a signal arrives."""
        self.began = time.monotonic() - self.state.seconds
        self.history = History(self.run, self.state.update) if self.world.is_first else None
        try:
            with self.interruption, self.display:
                while (reason := self._reason_to_stop()) is None:
                    self._update()
                    self._look_at_the_clock()
                    self.display.step(self.state.update, self.state.seconds)
                    self._report_and_save()
                self._finish(interrupted=reason[1] != 0)
        finally:
            if self.history is not None:
                self.history.close()
        return Outcome(*reason, self.state.update, self.state.best)

    def _reason_to_stop(self) -> tuple[str, int] | None:
        """The same on all processes: the reason in words and the signal, if it was one."""
        settings, state = self.settings, self.state
        if settings.updates and state.update >= settings.updates:
            return f"training.updates = {settings.updates:,} reached", 0
        if settings.patience and state.validations_since_best >= settings.patience:
            return f"no better validation {settings.early_stop_metric} in {settings.patience} validations", 0
        late = bool(settings.minutes) and self.world.is_first and state.seconds >= settings.minutes * 60.0
        someone_late, *signals = self.world.total(late, *(self.interruption.signal == number for number in SIGNALS))
        for number, received in zip(SIGNALS, signals):
            if received:
                return f"stopped by {signal.Signals(number).name}", int(number)
        return (f"training.minutes = {settings.minutes:g} reached", 0) if someone_late else None

    def _update(self) -> None:
        """One step of the optimizer, on the same global batch whatever the number of processes."""
        began = time.perf_counter()
        update = self.state.update + 1
        plan = self.stream.update(update - 1)
        batches = [collate(self.train_split, indices) for indices in plan.batches]
        (tokens,) = self.world.total(sum(batch.tokens for batch in batches))
        share = self._share(update)
        sums = torch.zeros(len(WINDOW), dtype=torch.float64)
        for index, batch in enumerate(batches):
            torch.manual_seed(_seed(self.settings.seed, update, index * self.world.size + self.world.rank))
            last = index == len(batches) - 1
            # gradients are exchanged once per update, during the last backward pass
            with self._without_exchange() if not last else nullcontext():
                sums += self._accumulate(batch.to(self.world.device), self._delta(share, batch, update), tokens)
            if index == 0 and not self.began_here:
                self.began_here = True
                self.display.expect(len(batches), time.perf_counter() - began)
        self.learning_rate = learning_rate(update, self.settings)
        finite = self._step(update)
        self.epoch = plan.epoch
        self.saved = False
        self.state.update = update
        self.state.tokens += int(tokens)
        sums[-1] = time.perf_counter() - began if self.world.is_first else 0.0
        if finite:
            self.state.window = (torch.tensor(self.state.window, dtype=torch.float64) + sums).tolist()

    def _without_exchange(self) -> AbstractContextManager[None]:
        """Keeps gradients to this process."""
        return self.parallel.no_sync() if isinstance(self.parallel, DistributedDataParallel) else nullcontext()

    def _accumulate(self, batch: Batch, delta: float | None, tokens: float) -> Tensor:
        """Add a micro-batch's share to the gradients; returns its part of the window, on the CPU."""
        with self._precision():
            output = self.network(batch.source, batch.source_lengths, batch.target_input, delta)
            loss = cross_entropy(output.logits, batch.target_output, self.settings.label_smoothing, PAD)
        auxiliary = torch.zeros_like(loss.smoothed) if output.auxiliary is None else output.auxiliary
        # gradients are averaged over processes, but the sum is wanted
        self.scaler.scale((loss.smoothed + auxiliary) * (self.world.size / tokens)).backward()
        with torch.no_grad():
            past, positions = _past_the_end(output.alignments, batch)
            counted = torch.tensor(batch.tokens, device=past.device)
            parts = (loss.smoothed, loss.likelihood, auxiliary, counted, past, positions, torch.zeros_like(past))
            return torch.stack([part.detach().double() for part in parts]).cpu()

    def _step(self, update: int) -> bool:
        """Change the weights unless the gradient is not finite; whether it was."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        self.scaler.unscale_(self.optimizer)
        parameters = list(self.model.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        self.gradient_norm = norm.item()
        finite = bool(np.isfinite(self.gradient_norm))
        if finite:
            if self.settings.clip_norm:
                nn.utils.clip_grads_with_norm_(parameters, self.settings.clip_norm, norm)
            self.scaler.step(self.optimizer)
            # the fused optimizer changes the weights without telling those that keep packed copies of them
            torch.autograd.graph.increment_version(parameters)
        self._count_skipped(update, finite)
        self.scaler.update()
        self.optimizer.zero_grad()
        return finite

    def _count_skipped(self, update: int, finite: bool) -> None:
        state = self.state
        state.skipped_in_a_row = 0 if finite else state.skipped_in_a_row + 1
        if finite:
            return
        state.skipped += 1
        scale = f"; the loss scale {self.scaler.get_scale():g} is halved" if self.scaler.is_enabled() else ""
        self.display.say(
            f"warning: update {update:,}: the gradient's norm is {self.gradient_norm}; update skipped "
            f"({state.skipped:,} so far){scale}"
        )
        if state.skipped_in_a_row >= HOPELESS:
            raise UserError(
                f"the last {HOPELESS} updates had no finite gradient; start another run with a lower "
                "training.learning_rate, with training.clip_norm, or with training.precision = 'float32'"
            )

    def _report_and_save(self) -> None:
        update, settings = self.state.update, self.settings
        if update % settings.log_every == 0:
            self._log()
        if settings.validate_every and update % settings.validate_every == 0:
            self._validate()
        if update % settings.save_every == 0:
            self._save()

    def _finish(self, interrupted: bool) -> None:
        """Validate, unless interrupted, and write a last checkpoint."""
        if not interrupted and self.state.validated != self.state.update:
            self._validate()
        if not self.saved:
            self._save()

    def _log(self) -> None:
        self._collect_window()
        smoothed, likelihood, auxiliary, tokens, past, positions, seconds = self.state.window
        self.state.window = [0.0] * len(WINDOW)
        if self.world.is_first and tokens:
            record = {
                "kind": "training",
                "update": self.state.update,
                "epoch": self.epoch,
                "loss": likelihood / tokens,
                "smoothed_loss": smoothed / tokens,
                "auxiliary_loss": auxiliary / tokens,
                "learning_rate": self.learning_rate,
                "gradient_norm": self.gradient_norm,
                "skipped": self.state.skipped,
                "tokens": self.state.tokens,
                "tokens_per_second": tokens / seconds,
                "seconds": self.state.seconds,
            }
            if self.model.policy.has_positions:
                record["past_the_end"] = past / positions
            self._record(record)
            self.display.log(record)

    def _record(self, record: dict[str, Any]) -> None:
        if self.history is not None:
            self.history.add(record)

    def _validate(self) -> None:
        """Score the model, and keep it in the model directory if there was none better."""
        result = self.validation(self.model, self._precision())
        state, metric = self.state, self.settings.early_stop_metric
        metric = metric if metric in result else "loss"
        better = (
            state.best is None
            or (metric == "loss" and _comparable(result["loss"]) < _comparable(state.best["loss"]))
            or (metric == "bleu" and result["bleu"] > state.best.get("bleu", -1.0))
        )
        self.saved = False
        state.validated = state.update
        state.validations_since_best = 0 if better else state.validations_since_best + 1
        record = {"kind": "validation", "update": state.update, **result}
        if better:
            state.best = record
            self._save_model(record)
        if self.world.is_first:
            self._record({**record, "tokens": state.tokens, "seconds": state.seconds})
            self.display.validation(record, better)

    def _save(self) -> None:
        self._look_at_the_clock()
        self._collect_window()
        self.state.scaler = self.scaler.state_dict()
        if self.world.is_first:
            record = {"state": asdict(self.state), "identity": self.identity}
            self.checkpoints.save(self.state.update, self.tensors(), record)
        self.saved = True

    def _save_model(self, validation: dict[str, Any]) -> None:
        if self.world.is_first:
            training = {
                "update": self.state.update,
                "target_tokens": self.state.tokens,
                "seconds": self.state.seconds,
                "skipped_updates": self.state.skipped,
                "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
                "validation": validation,
                "corpus": self.corpus.manifest["splits"],
                "processes": self.world.size,
                "device": str(self.world.device),
                "versions": directory.versions(),
            }
            directory.save(self.run, self.model, self.config, self.corpus.tokenizer, training)

    def _collect_window(self) -> None:
        """Bring the window's sums of all processes to the first."""
        totals = self.world.total(*self.state.window)
        self.state.window = totals if self.world.is_first else [0.0] * len(WINDOW)

    def _look_at_the_clock(self) -> None:
        self.state.seconds = time.monotonic() - self.began

    def _share(self, update: int) -> float:
        """Where in its range the update's latency lies, 0 to 1; the same for all processes."""
        return float(np.random.default_rng(_seed(self.settings.seed, update, FOR_DELTA)).random())

    def _delta(self, share: float, batch: Batch, update: int) -> float | None:
        """A batch's latency when it is drawn from a range; None for the configured one."""
        delta = self.config.attention.delta
        if not isinstance(delta, tuple):
            return None
        progress = min(1.0, update / (self.settings.updates or LONG))
        return self.model.policy.drawn_latency(*delta, share, batch.source.shape[1], progress)

    def _precision(self) -> torch.autocast:
        dtype = DTYPES[self.settings.precision]
        return torch.autocast(self.world.device.type, dtype, enabled=dtype is not torch.float32)


def _optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Adam, weight decay decoupled, its state made at once, so that it can be loaded and shared like the weights."""
    settings = config.training
    optimizer = torch.optim.AdamW(
        model.parameters(),
        settings.learning_rate,
        settings.betas,
        settings.epsilon,
        settings.weight_decay,
        fused=True,
    )
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def _comparable(loss: float) -> float:
    """Infinity for NaN: as nothing is less than NaN, such a loss would stay the best one."""
    return math.inf if math.isnan(loss) else loss


def _seed(*path: int) -> int:
    """A well-mixed seed, 0 to 2⁶³ − 1, from the numbers that name a draw."""
    return int(np.random.SeedSequence(path).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _past_the_end(alignments: tuple[Alignment, ...], batch: Batch) -> tuple[Tensor, Tensor]:
    """How many aligned positions of real target rows lie past |x|, and how many there are; over layers and heads."""
    rows = (batch.target_output != PAD)[:, None]  # [B, 1, T]
    ends = batch.source_lengths[:, None, None]
    past = torch.stack([((alignment.center > ends) & rows).sum() for alignment in alignments]).sum()
    heads = sum(alignment.center.shape[1] for alignment in alignments)
    return past, rows.sum() * heads
