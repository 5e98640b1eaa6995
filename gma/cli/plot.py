"""The work behind `gma plot`: what each figure is drawn from."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gma.decoding.translate import translate
from gma.errors import UserError
from gma.evaluation import evaluate, figures, forced, sweep
from gma.evaluation import text as evaluation_text
from gma.evaluation.figures import CurvePoint
from gma.metrics.alignment import Link
from gma.model import directory
from gma.model.directory import Loaded
from gma.text.tokenizer import EOS, SPECIALS, Vocabulary
from gma.training import history

# sentences whose steps are counted: more change the picture no further
STEP_SENTENCES = 1000
# of a source whose attention is drawn
MOST_WORDS = 200


class PlotError(UserError, ValueError):
    """A figure that cannot be drawn; the message says why and what to do."""


def curve(paths: Sequence[Path], output: Path, *, convention: str) -> list[Path]:
    """Quality against latency, from one or more curve.json (or folders that hold one)."""
    if convention not in ("word", "paper"):
        raise PlotError(f"--convention is {convention!r}; expected word or paper")
    files = [path / sweep.CURVE if path.is_dir() else path for path in paths]
    loaded = {file: sweep.load(file) for file in files}
    texts = {point.text for points in loaded.values() for point in points}
    if not texts:
        raise PlotError(f"{', '.join(map(str, files))}: no points; run `gma sweep` first")
    if len(texts) > 1:
        raise PlotError("the curves are of different texts or of different case; sweep all systems on the same text")
    curves: dict[str, list[CurvePoint]] = {}
    for file, points in loaded.items():
        for name, drawn in sweep.curves(points, convention).items():
            # the same name in several sweeps is several systems
            labels = (name, f"{file.parent.name}/{name}", f"{file}: {name}")
            curves[next(label for label in labels if label not in curves)] = drawn
    return figures.save(figures.quality_latency(curves, convention), output)


def attention(
    model: Path,
    output: Path,
    *,
    source: str | None = None,
    target: str | None = None,
    line: int = 1,
    source_file: Path | None = None,
    reference_file: Path | None = None,
    delta: float | None = None,
    layer: int | None = None,
    alignments: Path | None = None,
    one_based: bool = False,
) -> list[Path]:
    """One sentence: given as text, or a line of the evaluation text."""
    loaded = directory.load(model)
    links: frozenset[Link] = frozenset()
    if source is None:
        text = evaluation_text.load(loaded, source_file, reference_file, ("--source-file", "--reference-file"))
        if line - 1 not in text.indices:
            raise PlotError(f"--line is {line}; expected 1 to {text.lines} and a source with words ({text.name})")
        place = text.indices.index(line - 1)
        source, target = text.sources[place], target or text.references[place]
        if alignments is not None and target != text.references[place]:
            raise PlotError("--alignments are links to the reference's words; leave out --target, or the alignments")
        if alignments is not None:
            gold = evaluate.load_gold(alignments, one_based=one_based)
            links = evaluate.links_of(gold, text)[place].possible
    elif alignments or source_file or reference_file:
        raise PlotError("--alignments, --source-file and --reference-file are of a file with many; leave out --source")
    if len(source.split()) > MOST_WORDS:
        raise PlotError(f"the source has {len(source.split()):,} words; expected at most {MOST_WORDS}, to be readable")
    if target is None:
        target = translate(loaded, [source], delta=delta)[0].text
    if not source.split() or not target.split():
        raise PlotError(f"source {source!r}, target {target!r}; expected words on both sides")
    (pair,) = forced.read(loaded, [source], [target], delta=delta)
    chosen = pair.layers if layer is None else layer
    if not 1 <= chosen <= pair.layers:
        raise PlotError(f"--layer is {chosen}; expected 1 to {pair.layers}")
    has_positions = loaded.model.policy.has_positions
    symbol = loaded.model.policy.latency_symbol
    latency = f"{symbol} = {loaded.model.latency(delta):g}, " if symbol else ""
    figure = figures.sentence(
        pair.posterior[chosen - 1],
        token_labels(loaded.tokenizer.source, pair.source_tokens),
        token_labels(loaded.tokenizer.target, pair.target_tokens),
        pair.needed,
        center=pair.positions[chosen - 1] if has_positions else None,
        width=pair.widths[chosen - 1] if has_positions else None,
        gold=pair.gold_tokens(links),
        title=f"{latency}decoder layer {chosen} of {pair.layers}" if latency else "",
    )
    return figures.save(figure, output)


def steps(model: Path, output: Path, *, source: Path | None, reference: Path | None, delta: float | None) -> list[Path]:
    """How far p moves with every target token, references forced."""
    loaded = directory.load(model)
    _check_positions(loaded, model)
    text = evaluation_text.load(loaded, source, reference)
    chosen = [pair for pair in zip(text.sources, text.references) if pair[1].split()][:STEP_SENTENCES]
    if not chosen:
        raise PlotError(f"{text.name}: no pair with words on both sides; expected at least one")
    pairs = forced.read(loaded, *zip(*chosen), delta=delta)
    sizes = [
        np.concatenate([np.diff(pair.positions[layer], prepend=1.0) for pair in pairs])
        for layer in range(pairs[0].layers)
    ]
    return figures.save(figures.steps(sizes), output)


def learning(run: Path, output: Path) -> list[Path]:
    """Loss, BLEU and AL over a run's updates."""
    path = run / history.HISTORY
    records = history.read(path)
    if not records:
        raise PlotError(f"{path}: no records; expected the folder of a run that `gma train` has begun")
    return figures.save(figures.learning(records), output)


def token_labels(vocabulary: Vocabulary, tokens: Sequence[int]) -> list[str]:
    """The text of each token; a piece that does not end its word has a · after it."""
    labels = []
    for token in tokens:
        text = SPECIALS[EOS] if token == EOS else vocabulary.decode([token])
        labels.append(text if token == EOS or vocabulary.closes_word(token) else f"{text}·")
    return labels


def _check_positions(loaded: Loaded, model: Path) -> None:
    policy, positions = loaded.model.policy, loaded.config.attention.positions
    if not policy.has_positions or positions != "incremental":
        has = f"positions {positions!r}" if policy.has_positions else f"policy {policy.name!r}"
        raise PlotError(f"{model} has {has}; steps are taken by 'gaussian' with 'incremental' positions only")
