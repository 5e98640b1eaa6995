"""One translated sentence per line, in the `instances.log` format of SimulEval: writing, reading and scoring it.

A log is scored with no model at hand, whatever system it came from.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gma.errors import UserError
from gma.metrics.latency import CorpusLatency, corpus_latency
from gma.metrics.quality import QualityScore, bleu, chrf
from gma.storage import foreign
from gma.storage.atomic import replace_text

REQUIRED = ("index", "prediction", "delays", "reference", "source_length")


@dataclass(frozen=True)
class Instance:
    """A translated sentence with the delay of each of its words. White space of the texts is normalised to one blank.

    delays:        source units read when each word of `prediction` was written, never beyond `source_length`
    elapsed:       the same with the time spent computing added, in the same unit; empty when not measured, and all
                   zeros counts as not measured (SimulEval writes that for text input)
    source_length: in the unit of the delays: words of the source, or milliseconds of speech
    """

    index: int
    prediction: str
    delays: tuple[float, ...]
    reference: str
    source_length: float
    elapsed: tuple[float, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.index, bool) or not isinstance(self.index, int):
            raise UserError(f"index must be a whole number, got {self.index!r}")
        for name in ("prediction", "reference", "source"):
            text = getattr(self, name)
            if not isinstance(text, str):
                raise UserError(f"{name} must be a string, got {type(text).__name__}")
            # a second blank would count as one more reference word in SimulEval
            object.__setattr__(self, name, " ".join(text.split()))
        if not _is_number(self.source_length) or self.source_length <= 0:
            raise UserError(f"source_length must be a positive number, got {self.source_length!r}")
        for name in ("delays", "elapsed"):
            object.__setattr__(self, name, _checked_times(name, getattr(self, name)))
        words = len(self.prediction.split())
        if len(self.delays) != words:
            raise UserError(
                f"prediction has {words} words but delays has {len(self.delays)} entries: expected one delay for each "
                "white-space word, not for pieces or characters"
            )
        if self.elapsed and len(self.elapsed) != words:
            raise UserError(
                f"prediction has {words} words but elapsed has {len(self.elapsed)} entries: expected one for each "
                "word, or none at all"
            )
        if self.delays and self.delays[-1] > self.source_length * (1 + 1e-9):
            raise UserError(
                f"a delay of {self.delays[-1]} lies beyond source_length {self.source_length}: both must count the "
                "same unit, without an end-of-sentence token"
            )

    @property
    def timed(self) -> bool:
        """Whether `elapsed` was measured, in the unit of the delays: computing can only add to them."""
        return len(self.elapsed) == len(self.delays) and all(
            time >= delay for time, delay in zip(self.elapsed, self.delays)
        )


@dataclass(frozen=True)
class Scores:
    """The scores of one log; `computation_aware` is None unless every sentence has measured times."""

    bleu: QualityScore
    chrf: QualityScore
    latency: CorpusLatency
    computation_aware: CorpusLatency | None


def score_instances(instances: Iterable[Instance], *, lowercase: bool = False, tokenize: str = "13a") -> Scores:
    """Quality and latency in the `word` convention: |Y| is the number of reference words, empty predictions count."""
    instances = list(instances)
    if not instances:
        raise UserError("instances is empty: a score needs at least one sentence")
    predictions = [instance.prediction for instance in instances]
    references = [instance.reference for instance in instances]
    source_lengths = [instance.source_length for instance in instances]
    # an empty reference counts as one word, in SimulEval too: AL and AP divide by its length
    reference_lengths = [max(1, len(reference.split())) for reference in references]

    def latency_of(times: Sequence[Sequence[float]]) -> CorpusLatency:
        return corpus_latency(times, source_lengths, reference_lengths, convention="word")

    timed = all(instance.timed for instance in instances)
    return Scores(
        bleu=bleu(predictions, references, lowercase=lowercase, tokenize=tokenize),
        chrf=chrf(predictions, references, lowercase=lowercase),
        latency=latency_of([instance.delays for instance in instances]),
        computation_aware=latency_of([instance.elapsed for instance in instances]) if timed else None,
    )


def write_instances(path: str | Path, instances: Iterable[Instance]) -> None:
    """Writes a log that `simuleval --score-only` reads too. The file appears complete or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, "".join(json.dumps(_record(instance)) + "\n" for instance in instances))


def read_instances(path: str | Path) -> list[Instance]:
    """Reads a log, this package's or SimulEval's, in the order of its lines; unknown keys are left alone."""
    instances: list[Instance] = []
    lines: dict[int, int] = {}
    # read as bytes: texts may hold other line separators
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                instance = _parse(line)
                if instance.index in lines:
                    raise UserError(f"index {instance.index} occurred in line {lines[instance.index]} already")
            except UserError as error:
                raise UserError(f"{path}, line {number}: {error}") from None
            lines[instance.index] = number
            instances.append(instance)
    if not instances:
        raise UserError(f"{path} holds no instances: expected one JSON object per line")
    return instances


def _parse(line: bytes) -> Instance:
    try:
        record = foreign.parse_json(line.decode("utf-8"), "not JSON")
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 text (byte {error.start + 1})") from None
    except foreign.ForeignFile as error:
        raise UserError(f"{error}; was the file cut off while being written?") from None
    if not isinstance(record, dict):
        raise UserError(f"expected a JSON object, got {type(record).__name__}")
    missing = [key for key in REQUIRED if key not in record]
    if missing:
        raise UserError(f"missing {', '.join(missing)}: expected the keys {', '.join(REQUIRED)}")
    # speech logs describe the audio file here, in several lines
    source = record.get("source", "")
    if isinstance(source, list):
        source = " ".join(str(part) for part in source)
    return Instance(**{key: record[key] for key in REQUIRED}, elapsed=record.get("elapsed", ()), source=source)


def _record(instance: Instance) -> dict:
    return {
        "index": instance.index,
        "prediction": instance.prediction,
        "delays": list(instance.delays),
        "elapsed": list(instance.elapsed),
        "prediction_length": len(instance.delays),
        "reference": instance.reference,
        "source": instance.source,
        "source_length": instance.source_length,
    }


def _is_number(value: object) -> bool:
    # JSON allows NaN, infinities and integers that no float can hold
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _checked_times(name: str, values: object) -> tuple[float, ...]:
    if not isinstance(values, (list, tuple)):
        raise UserError(f"{name} must be a list of numbers, got {type(values).__name__}")
    previous = 0
    for place, value in enumerate(values, start=1):
        if not _is_number(value) or value < 0:
            raise UserError(f"{name} must be finite numbers of at least 0, got {value!r} for word {place}")
        if value < previous:
            raise UserError(f"{name} must not decrease, got {value} after {previous} for word {place}")
        previous = value
    return tuple(values)
