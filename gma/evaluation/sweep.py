"""The quality-latency curve: models at several δ on one text. A sweep that was cut off goes on."""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import Field, asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from gma.errors import UserError
from gma.evaluation import figures
from gma.evaluation.evaluate import SLOTS, Evaluation, evaluate
from gma.evaluation.instances import write_instances
from gma.evaluation.text import EvaluationText, load_text
from gma.metrics import GoldLinks
from gma.model import directory, hub
from gma.model.device import choose_device
from gma.policies import CrossAttention
from gma.storage import atomic, foreign, tensor_file
from gma.storage.digest import fingerprint, sha256_of
from gma.storage.folders import real
from gma.terminal import bar, say

CURVE, TABLE, FIGURE, LOGS = "curve.json", "curve.csv", "curve", "instances"
FORMAT, VERSION = "gma-sweep", 2
# the largest number that a curve.json may hold
LARGEST = 1e300


@dataclass(frozen=True)
class Point:
    """One system at one latency. Latency is in the `word` convention, `paper_…` in the `paper` convention.

    Attributes:
        delta: None for a policy without one.
        position_aer, posterior_aer: alignment error rate of the best layer, by round(p) and by the largest weight;
            None without gold links, or without positions.
        within: share of gold-aligned target words written with all their source words within g(i); None without gold
            links.
        model, text: fingerprints of all that the scores depend on.
    """

    system: str
    delta: float | None
    sentences: int
    bleu: float
    chrf: float
    al: float
    laal: float
    ap: float
    dal: float
    cw: float
    paper_al: float
    paper_ap: float
    paper_dal: float
    paper_cw: float
    past_the_end: float | None
    position_aer: float | None
    posterior_aer: float | None
    within: float | None
    empty: int
    cut_off: int
    bleu_signature: str
    chrf_signature: str
    latency_convention: str
    model: str
    text: str


def parse_deltas(text: str) -> list[float]:
    """'0.5,1,inf' → numbers, each once, ascending."""
    deltas = []
    for part in text.split(","):
        try:
            delta = float(part)
        except ValueError:
            delta = math.nan
        if math.isnan(delta):
            raise UserError(
                f"--delta has {part.strip()!r}; expected numbers with commas between them, as in 0.5,1,2,inf"
            )
        deltas.append(delta + 0.0)
    return sorted(set(deltas))


def measure(
    models: Sequence[Path],
    deltas: Sequence[float] | None,
    output: Path,
    console: Console,
    *,
    source: Path | None = None,
    reference: Path | None = None,
    gold: Sequence[GoldLinks] | None = None,
    lowercase: bool = False,
    slots: int = SLOTS,
    device: str = "auto",
) -> list[Point]:
    """Evaluate every model at every δ, k or θ and write curve.json, curve.csv and the logs into `output`.

    Points that are there already, of the same text and the same model files, are not computed again; those of other
    models stay in the curve.

    Args:
        deltas: None for those usual with each model's policy. A policy without a latency to choose has one point.
        gold: links of every line that the text comes from, for the alignment error rate.
    """
    folders = system_names(models)
    known = load_curve(output / CURVE) if (output / CURVE).exists() else []
    place = choose_device(device)
    # taken before loading: points of a model that changes meanwhile must not be kept as the new model's
    prints = {name: _fingerprint(folder) for name, folder in folders.items()}
    systems = {name: directory.load(folder, place) for name, folder in folders.items()}
    text = _common_text({name: load_text(loaded, source, reference) for name, loaded in systems.items()})
    text_print = f"{text.fingerprint}{'-lowercase' * lowercase}{'' if gold is None else f'-{_links_fingerprint(gold)}'}"
    points = [
        point for point in known if point.text == text_print and prints.get(point.system, point.model) == point.model
    ]
    if len(points) < len(known):
        stale = f"{len(known) - len(points)} points in {output} are of another text or of a model that has changed"
        say(console, f"{stale}; they are left out")
    wanted = [(name, delta) for name, loaded in systems.items() for delta in _latencies(loaded.model.policy, deltas)]
    if deltas is not None and all(delta is None for _, delta in wanted):
        raise UserError(
            f"--delta is given, but no policy of {', '.join(systems)} has a latency to choose when translating; leave "
            "it out"
        )
    done = {(point.system, point.delta) for point in points}
    missing = [point for point in wanted if point not in done]
    if len(missing) < len(wanted):
        say(console, f"{len(wanted) - len(missing)} of {len(wanted)} points are there already")
    with bar(console, "sweep", len(missing) * len(text.sources)) as advance:
        for name, delta in missing:
            result = evaluate(
                systems[name],
                text,
                system=name,
                delta=delta,
                gold=gold,
                lowercase=lowercase,
                slots=slots,
                progress=advance,
            )
            points.append(_point(result, prints[name], text_print))
            points.sort(key=lambda point: (point.system, math.inf if point.delta is None else point.delta))
            write_instances(log_path(output, name, delta), result.instances)
            # written after every point: a sweep that is cut off goes on from here
            _write(output, points, text)
    _write(output, points, text)
    return points


def present(points: Sequence[Point], output: Path, console: Console) -> None:
    """Print what `measure` has found in `output`, and draw it there."""
    console.print(table(points))
    paths = figures.save(figures.quality_latency(curves(points)), output / FIGURE)
    for path in (output / CURVE, output / TABLE, *paths):
        say(console, f"written: {path}")


def log_path(output: Path, system: str, delta: float | None) -> Path:
    """Where the sentences of a point are."""
    latency = "" if delta is None else f"-delta-{delta:g}"
    return output / LOGS / f"{system.replace('/', '-')}{latency}.log"


def load_curve(path: Path) -> list[Point]:
    """The points of a curve.json."""
    return _read_curve(path)[0]


def points_of(path: Path, model: Path) -> tuple[list[Point], str]:
    """Those points of a curve.json that are of this very model, and the name of their text."""
    points, text = _read_curve(path)
    known = _fingerprint(model)
    return [point for point in points if point.model == known], text


def _read_curve(path: Path) -> tuple[list[Point], str]:
    try:
        content = foreign.read_json(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); `gma sweep` writes it") from error
    except foreign.ForeignFile as error:
        raise UserError(f"{error}; `gma sweep` writes it: delete it and sweep again") from error
    names = {field.name for field in fields(Point)}
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
        raise UserError(f"{path}: expected a {FORMAT} file, version {VERSION}; choose another --output")
    points = content.get("points")
    if not isinstance(points, list) or not all(isinstance(point, dict) and point.keys() == names for point in points):
        raise UserError(f"{path}: damaged: expected points with the keys {', '.join(sorted(names))}; delete it")
    for field in fields(Point):
        for point in points:
            if not _fits(point[field.name], field):
                raise UserError(
                    f"{path}: damaged: {field.name} is {point[field.name]!r:.40}; delete it and sweep again"
                )
    try:
        found = [
            Point(**{**point, "delta": None if point["delta"] is None else float(point["delta"])}) for point in points
        ]
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: damaged: {error}; delete it and sweep again") from error
    return found, str(content.get("text"))


def _fits(value: Any, field: Field[Any]) -> bool:
    """Whether a value out of a file can be one of a `Point`; a latency may be infinite, which JSON writes as text."""
    if value is None:
        return "None" in str(field.type)
    if field.type is str:
        return isinstance(value, str)
    if field.name == "delta":
        return isinstance(value, str | int | float)
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def curves(points: Sequence[Point], convention: str = "word") -> dict[str, list[figures.CurvePoint]]:
    """System → what is drawn of it."""
    found: dict[str, list[figures.CurvePoint]] = {}
    for point in points:
        latency = point.al if convention == "word" else point.paper_al
        label = None if point.delta is None else f"{point.delta:g}".replace("inf", "∞")
        found.setdefault(point.system, []).append(figures.CurvePoint(latency, point.bleu, label))
    return found


def table(points: Sequence[Point]) -> Table:
    """One row for each point; the CSV has all columns."""
    numbers = ("δ, k, θ", "BLEU", "chrF", "AL", "LAAL", "AP", "DAL", "CW", "paper AL", "p > |x|")
    result = Table(
        Column("system", overflow="fold"),
        *(Column(name, justify="right", no_wrap=True) for name in numbers),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        caption=f"BLEU and chrF in percent, sacreBLEU {points[0].bleu_signature}.\n"
        "AL to CW: word convention, in words, AP a share; paper AL: paper convention, in model tokens",
        caption_justify="left",
    )
    for point in points:
        latency = (point.al, point.laal, point.ap, point.dal, point.cw, point.paper_al)
        result.add_row(
            Text(point.system),
            "–" if point.delta is None else f"{point.delta:g}",
            *(f"{value:.1f}" for value in (point.bleu, point.chrf)),
            # wide numbers, of broken models, leave no room for the others
            *(f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}" for value in latency),
            "–" if point.past_the_end is None else f"{point.past_the_end:.1%}",
        )
    return result


def system_names(models: Sequence[Path]) -> dict[str, Path]:
    """The shortest ends of the paths that tell them apart."""
    paths = list(dict.fromkeys(map(real, models)))
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = {hub.title(path) or "/".join(path.parts[-parts:]): path for path in paths}
        if len(names) == len(paths):
            return names
    raise AssertionError("two different paths have the same parts")


def _latencies(policy: type[CrossAttention], deltas: Sequence[float] | None) -> Sequence[float | None]:
    """What a model is evaluated at."""
    if policy.latency_symbol is None:
        return [None]
    return policy.usual_latencies if deltas is None else [policy.checked_latency(delta) for delta in deltas]


def _point(result: Evaluation, model: str, text: str) -> Point:
    word, paper, alignment = result.scores.latency, result.paper, result.alignment
    assert paper is not None, "evaluated from a model"
    return Point(
        system=result.system,
        delta=result.delta,
        sentences=len(result.instances),
        bleu=result.scores.bleu.score,
        chrf=result.scores.chrf.score,
        al=word.al,
        laal=word.laal,
        ap=word.ap,
        dal=word.dal,
        cw=word.cw,
        paper_al=paper.al,
        paper_ap=paper.ap,
        paper_dal=paper.dal,
        paper_cw=paper.cw,
        past_the_end=result.past_the_end,
        position_aer=min((layer.error_rate for layer in alignment.by_position), default=None) if alignment else None,
        posterior_aer=min(layer.error_rate for layer in alignment.by_posterior) if alignment else None,
        within=alignment.coverage.share if alignment and alignment.coverage.aligned else None,
        empty=word.empty,
        cut_off=result.cut_off,
        bleu_signature=result.scores.bleu.signature,
        chrf_signature=result.scores.chrf.signature,
        latency_convention=word.convention,
        model=model,
        text=text,
    )


def _write(folder: Path, points: Sequence[Point], text: EvaluationText) -> None:
    records = [asdict(point) for point in points]
    content = {
        "format": FORMAT,
        "version": VERSION,
        "text": text.name,
        # JSON knows no infinity
        "points": [
            {**record, "delta": str(record["delta"]) if point.delta in (math.inf, -math.inf) else point.delta}
            for point, record in zip(points, records)
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    atomic.replace_text(folder / CURVE, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    lines = io.StringIO()
    writer = csv.DictWriter(lines, [field.name for field in fields(Point)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    atomic.replace_text(folder / TABLE, lines.getvalue())


def _common_text(texts: dict[str, EvaluationText]) -> EvaluationText:
    """The text of all systems; their tokenizers' rules, or their own corpora, may have made different ones."""
    (first, text), *others = texts.items()
    for name, other in others:
        if other.fingerprint != text.fingerprint:
            raise UserError(
                f"{first} and {name} would be evaluated on different texts ({text.name}; {other.name}); one curve "
                "needs one text: give --source and --reference, and models with the same lower-casing and unescaping"
            )
    return text


def _fingerprint(folder: Path) -> str:
    """Fingerprint of a model and of the version that runs it."""
    files = [sha256_of(folder / name) for name in (directory.CONFIG, directory.TOKENIZER)]
    # digests of the contents, not of the files: a file that is written again may have other bytes
    tensors = [
        tensor_file.digest(folder / name) for name in (directory.MODEL, directory.SEGMENTER) if (folder / name).exists()
    ]
    return fingerprint(version("gma"), *files, *tensors)


def _links_fingerprint(gold: Sequence[GoldLinks]) -> str:
    links = [(sorted(sentence.sure), sorted(sentence.possible)) for sentence in gold]
    return fingerprint(json.dumps(links))
