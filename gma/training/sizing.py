"""How large a model a text is good for, how long to train it, and how fast this machine does that."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gma.config import Config
from gma.errors import UserError
from gma.model.device import choose_device
from gma.model.directory import Loaded
from gma.model.transformer import Transformer
from gma.text.parallel_text import ParallelText
from gma.text.vocabulary import PAD
from gma.training.loss import cross_entropy
from gma.training.trainer import DTYPES

# one pair in so many is validated on, and about so many pairs at most
HELD_OUT, MOST_VALIDATED = 20, 1000
# seconds to measure, and of training that somebody waits for who has said nothing
MEASURING, PATIENCE = 4.0, 12 * 3600.0
# validation, saving and reading
OVERHEAD = 1.15


class Text(NamedTuple):
    """Parallel text: pairs, and the words of each side."""

    pairs: int
    source_words: int
    target_words: int

    @property
    def words_a_side(self) -> float:
        """Of a sentence, on average over both sides."""
        return (self.source_words + self.target_words) / 2 / self.pairs


def read_text(source: Path, target: Path, progress: Callable[[int, int], object] = lambda done, of: None) -> Text:
    """Count; UserError where the files do not belong together, or a line is none."""
    text = ParallelText([source], [target], on_bad_line="error", on_empty="drop")
    pairs = source_words = target_words = 0
    for left, right in text.pairs(progress):
        pairs += 1
        source_words += len(left.split())
        target_words += len(right.split())
    if pairs < 2:
        raise UserError(
            f"{source} and {target} have {pairs} pairs of lines; expected 2 or more, thousands to be of use"
        )
    counted = Text(pairs, source_words, target_words)
    longest = Config().data.max_length
    if counted.words_a_side > longest:
        raise UserError(
            f"{source} and {target} have {counted.words_a_side:,.0f} words a line; expected a sentence, of at most "
            f"{longest} tokens: cut the text into sentences first"
        )
    return counted


@dataclass(frozen=True)
class Size:
    """A model and its training. `passes`: over the text; `tokens` of a batch, `accumulation` batches to an update."""

    width: int
    feed_forward: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    vocabulary: int
    passes: float
    tokens: int
    accumulation: int
    learning_rate: float
    embeddings: str = "shared"

    @property
    def model(self) -> dict[str, Any]:
        names = ("width", "feed_forward", "heads", "encoder_layers", "decoder_layers")
        return {"preset": "custom", **{name: getattr(self, name) for name in names}, "embeddings": self.embeddings}


# pairs up to which a size is enough → the size, small ones first; each was trained on text of about so many pairs or is
# the paper's, see the recipes
SIZES = {
    10_000: Size(128, 256, 4, 2, 2, 2000, 30, 1024, 1, 2e-3),
    100_000: Size(256, 512, 4, 3, 2, 5000, 8, 1024, 1, 1.5e-3),
    2_000_000: Size(384, 768, 6, 4, 2, 8000, 6, 2000, 2, 1.5e-3),
    10_000_000: Size(512, 1024, 4, 6, 6, 16_000, 6, 4096, 4, 7e-4),
    10**12: Size(512, 2048, 8, 6, 6, 32_000, 6, 4096, 8, 5e-4),
}


@dataclass(frozen=True)
class Plan:
    """What is trained on a text, and what that takes here.

    Attributes:
        larger: a size that the text is good for as well and this machine is too slow for, and its seconds; or None.
        speed: target tokens a second.
    """

    size: Size
    updates: int
    precision: str
    parameters: int
    speed: float
    seconds: float
    larger: "Plan | None" = None


def size_of(start: Loaded) -> Size:
    """Of a model that training starts from: small steps, and few, so that it does not forget what it knows."""
    model = start.config.model
    sizes = (model.width, model.feed_forward, model.heads, model.encoder_layers, model.decoder_layers)
    return Size(*sizes, start.tokenizer.target.size, 4, 1024, 1, 5e-4, model.embeddings)


def plan(text: Text, precision: str, patience: float = PATIENCE, start: Loaded | None = None) -> Plan:
    """The largest size that the text is good for, unless another trains in time here, and the larger does not.

    start: the model that training starts from, whose size is taken.
    """
    if start is not None:
        return _plan(text, size_of(start), precision)
    good = [size for size, below in zip(SIZES.values(), [0, *SIZES]) if text.pairs > below] or [SIZES[min(SIZES)]]
    larger = None
    for size in reversed(good):
        found = _plan(text, size, precision)
        if found.seconds <= patience or size is good[0]:
            break
        larger = found
    return replace(found, larger=larger)


def _plan(text: Text, size: Size, precision: str) -> Plan:
    # pieces of a word, with a vocabulary as small as these
    tokens = text.target_words * 1.4 + text.pairs
    batch = size.tokens * size.accumulation
    updates = _rounded(max(300, tokens * size.passes / (0.9 * batch)))
    parameters, speed = measure(size, precision, max(2, round(text.words_a_side * 1.4) + 1))
    return Plan(size, updates, precision, parameters, speed, OVERHEAD * updates * 0.9 * batch / speed)


def measure(size: Size, precision: str, length: int, seconds: float = MEASURING) -> tuple[int, float]:
    """Parameters of a model, and the target tokens that it learns from in a second here, on random sentences.

    length: tokens of a sentence on either side.
    """
    config = Config.model_validate({"model": size.model})
    device = choose_device("auto")
    model = Transformer(config.model, config.attention, size.vocabulary, size.vocabulary).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-9)
    sentences = max(1, min(size.tokens, 2048) // length)
    source, target = torch.randint(4, size.vocabulary, (2, sentences, length), device=device).unbind()
    lengths = torch.full((sentences,), length, dtype=torch.int32, device=device)

    def step() -> float:
        begun = time.perf_counter()
        with torch.autocast(device.type, DTYPES[precision], enabled=precision != "float32"):
            output = model(source, lengths, target)
            loss = cross_entropy(output.logits, target, 0.1, PAD).smoothed
        (loss / target.numel()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begun

    begun = time.perf_counter()
    times: list[float] = []
    # the first is slower: memory is taken, kernels are compiled
    step()
    while not times or (time.perf_counter() - begun < seconds and len(times) < 20):
        times.append(step())
    return sum(parameter.numel() for parameter in model.parameters()), target.numel() / statistics.median(times)


def _rounded(number: float) -> int:
    """To two digits, 1 or more."""
    return max(1, int(float(f"{number:.1e}")))


def held_out(pairs: int) -> int:
    """Every so many-th pair is for validation."""
    return max(2, min(HELD_OUT, pairs), pairs // MOST_VALIDATED)


def settings(
    text: Text,
    plan: Plan,
    files: Sequence[str],
    root: str,
    folder: str,
    languages: Sequence[str],
    start: tuple[str, Loaded] | None = None,
) -> Config:
    """All settings of a plan; source file first. start: the model that training starts from, by its name."""
    size, updates = plan.size, plan.updates
    data = {
        "folder": folder,
        "root": root,
        "source": languages[0],
        "target": languages[1],
        "train": {"source": [files[0]], "target": [files[1]]},
        "held_out": held_out(text.pairs),
        "vocabulary_size": size.vocabulary,
    }
    update_seconds = plan.seconds / updates
    training = {
        "tokens": size.tokens,
        "accumulation": size.accumulation,
        "updates": updates,
        "learning_rate": size.learning_rate,
        "warmup_updates": _rounded(min(2000, updates / 8)),
        "schedule": "linear",
        "precision": plan.precision,
        "clip_norm": 1.0,
        "validate_every": _rounded(updates / 10),
        "validate_sentences": 200,
        # what is lost if the power fails: five minutes
        "save_every": _rounded(min(updates / 10, 300 / update_seconds)),
        "log_every": _rounded(min(50, 10 / update_seconds)),
    }
    model = {**size.model, "dropout": 0.1 if text.pairs > 10_000 else 0.2}
    attention: dict[str, Any] = {"delta": [0.5, 6.0], "width_rule": "predicted"}
    if start is not None:
        name, loaded = start
        training["start_from"] = name
        attention = loaded.config.values()["attention"]
    return Config.model_validate({"model": model, "attention": attention, "data": data, "training": training})
