"""A training run as a folder: started, resumed or refused."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from gma.config import Config, ConfigError
from gma.config.settings import Settings
from gma.corpus import prepare
from gma.corpus.token_file import MANIFEST, PreparedCorpus
from gma.errors import UserError
from gma.model import directory
from gma.model.device import multiplies_bfloat16
from gma.storage import atomic
from gma.storage.digest import fingerprint
from gma.storage.folders import MODEL, RUN, check_free_for, real
from gma.storage.lock import locked
from gma.terminal import say
from gma.training import history
from gma.training.checkpoint import Checkpoint, CheckpointFolder
from gma.training.start import starting_model, take_over, tokenizer_to_use
from gma.training.trainer import CHECKPOINTS, Outcome, State, Trainer
from gma.training.world import World, join

# the place of a corpus is not part of its identity
PLACES = {"folder", "root"}
# settings that may change when a run is resumed: they decide when or where something is done, not what an update does.
# [data] is not compared either: the prepared corpus itself is; nor accumulation: micro-batches per update are
FREE = {
    "training.updates",
    "training.minutes",
    "training.log_every",
    "training.validate_every",
    "training.validate_sentences",
    "training.save_every",
    "training.keep_checkpoints",
    "training.patience",
    "training.accumulation",
    "training.device",
    "training.compile",
    "attention.backend",
}


def train(config: Config, folder: Path, console: Console) -> Outcome:
    """Train in `folder`, or go on there if it holds checkpoints of the same run. Every process calls this."""
    data = Path(config.data.folder)
    if real(data) == real(folder):
        raise ConfigError(
            f"data.folder = {config.data.folder!r}: is the folder of the run, too, and both have a tokenizer.json; "
            "expected two folders: choose another --folder, or another data.folder"
        )
    check_free_for([RUN, MODEL], folder, "choose another --folder")
    with join(config.training.device) as world, _alone(folder, world):
        if config.training.precision == "float16" and world.device.type == "cpu":
            raise ConfigError(
                f"training.precision = 'float16': needs a GPU, and training.device = {config.training.device!r} finds "
                "none here; use 'bfloat16' or 'float32'"
            )
        if config.training.precision == "bfloat16" and world.device.type == "cpu":
            _keep_few_kernels()
            if world.is_first and not multiplies_bfloat16():
                say(
                    console,
                    "note: this processor has no instructions for products in bfloat16, which are slow then; "
                    "training.precision=float32 is likely faster",
                )
        corpus = open_corpus(config, world, console)
        own = identity(config, corpus, world)
        checkpoint = _newest(folder, config.training.save_every, console) if world.is_first else None
        found = world.share(checkpoint and {"path": str(checkpoint.path), **checkpoint.state})
        if found:
            check_same_run(found["identity"], own, folder)
        if world.is_first:
            atomic.replace_text(folder / directory.CONFIG, config.dump())
            corpus.tokenizer.save(folder / directory.TOKENIZER)
        trainer = Trainer(config, corpus, folder, world, console, own)
        if found:
            trainer.restore(checkpoint.tensors if checkpoint else {}, State(**found["state"]), Path(found["path"]))
            checkpoint = None  # frees as much memory as the model and the optimizer take
            if world.is_first:
                say(console, f"resuming after update {trainer.state.update:,} from {found['path']}")
        elif start := starting_model(config, corpus.folder):
            taken, left = take_over(trainer.model, start.model)
            if world.is_first:
                rest = f"; {left:,} begin at random" if left else ""
                say(console, f"starting from {config.training.start_from}: {taken:,} weights{rest}")
        outcome = trainer.train()
        if world.is_first:
            _report(outcome, folder, console)
        return outcome


def _keep_few_kernels() -> None:
    """torch compiles a product for every shape it meets in bfloat16, and keeps a thousand: gigabytes, as nearly every
    batch has a shape of its own. Fewer are as fast. Read when the first one is compiled; what the user says counts."""
    for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(variable, "64")


def open_corpus(config: Config, world: World, console: Console) -> PreparedCorpus:
    """The prepared corpus; the first process prepares it if it is not there yet."""
    folder = Path(config.data.folder)
    if world.is_first and not (folder / MANIFEST).exists():
        say(console, f"preparing the corpus in {folder}")
        prepare.prepare(config.data, folder, console, tokenizer_to_use(config))
    world.wait()
    corpus = PreparedCorpus.open(folder)
    wanted, prepared = config.data.model_dump(mode="json"), corpus.manifest["settings"]
    # a setting that an older version did not have was what it is by default
    there = {key: prepared.get(key, _default(f"data.{key}")) for key in wanted.keys() - PLACES}
    different = [
        f"data.{key} is {wanted[key]!r}, and {value!r} there" for key, value in there.items() if wanted[key] != value
    ]
    if different:
        raise UserError(
            f"{folder} was prepared with other settings: {'; '.join(sorted(different))}. Run `gma prepare` with "
            "yours, choose another data.folder, or use the settings it was prepared with"
        )
    return corpus


def identity(config: Config, corpus: PreparedCorpus, world: World) -> dict[str, Any]:
    """What an update's result depends on: settings, the corpus, and how many micro-batches make an update."""
    # with a linear schedule the rate depends on the number of updates
    free = FREE - {"training.updates"} if config.training.schedule == "linear" else FREE
    settings = {
        f"{section}.{key}": value
        for section, table in config.values().items()
        for key, value in table.items()
        if section != "data" and f"{section}.{key}" not in free
    }
    files = {name: file for name, file in corpus.manifest["files"].items() if name.startswith(("train.", "tokenizer"))}
    record = {
        "settings": settings,
        "corpus": fingerprint(json.dumps(files, sort_keys=True)),
        "micro_batches": world.size * config.training.accumulation,
    }
    # a round trip through JSON, as when it is read from a file: tuples become lists
    return json.loads(json.dumps(record))


def check_same_run(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """UserError unless a checkpoint's identity is this run's."""
    keys = sorted(before["settings"].keys() | now["settings"].keys())
    # a setting that an older version did not have was what it is by default
    pairs = [(key, before["settings"].get(key, _default(key)), now["settings"].get(key)) for key in keys]
    different = [f"{key} was {old!r} and is {new!r}" for key, old, new in pairs if old != new]
    if before["micro_batches"] != now["micro_batches"]:
        different.append(
            f"processes × training.accumulation was {before['micro_batches']} and is {now['micro_batches']}"
        )
    if before["corpus"] != now["corpus"]:
        different.append("the prepared corpus in data.folder is another one")
    if different:
        free = sorted(FREE - {"training.accumulation"} - now["settings"].keys())
        raise UserError(
            f"{folder} holds a run with another config: {'; '.join(different)}. Choose another --folder, or leave "
            f"these as they were. Free to change are {', '.join(free)}"
        )


def _default(key: str) -> Any:
    section, name = key.split(".")
    settings = Config.model_fields[section].annotation
    assert isinstance(settings, type)
    assert issubclass(settings, Settings)
    field = settings.model_fields.get(name)
    return None if field is None else field.default


def _report(outcome: Outcome, folder: Path, console: Console) -> None:
    lines = [f"{outcome.reason}; {outcome.update:,} updates done, saved in {folder}"]
    if outcome.signal:
        lines.append("the same command goes on from here")
    best = outcome.validation
    if best is None:
        lines.append(f"no validation yet, so no model; `gma average {folder} --last 1 --output FOLDER` makes one")
    else:
        lines.append(f"best model: update {best['update']:,}, validation loss {best['loss']:.3f}")
    if best and "bleu" in best:
        lines.append(f"  BLEU {best['bleu']:.2f}  {best['bleu_signature']}")
        lines.append(f"  AL {best['al']:.2f}  {best['latency_convention']}")
    for line in lines:
        say(console, line)


def _newest(folder: Path, save_every: int, console: Console) -> Checkpoint | None:
    """The checkpoint to go on from; UserError where there is none and starting over would overwrite a model."""
    model = folder / directory.MODEL
    atomic.remove_temporaries(folder)
    checkpoint = CheckpointFolder(folder / CHECKPOINTS, keep=1).newest(
        lambda text: console.print(f"warning: {text}", style="yellow", highlight=False, markup=False)
    )
    if checkpoint is None and model.exists():
        updates = [record["update"] for record in history.read(folder / history.HISTORY)]
        if not updates:
            raise UserError(f"{model} was not trained here, and training would overwrite it; choose another --folder")
        if max(updates) >= save_every:
            raise UserError(
                f"{model} was trained here, but {folder / CHECKPOINTS} has no checkpoint to go on from, and starting "
                "over would overwrite it; choose another --folder, or delete the model"
            )
    return checkpoint


def _alone(folder: Path, world: World) -> contextlib.AbstractContextManager:
    """Keep a second run out of the folder; one process of this one is enough for that."""
    busy = UserError(f"another process is training in {folder}; wait for it, or choose another --folder")
    return locked(folder, busy) if world.is_first else contextlib.nullcontext()
