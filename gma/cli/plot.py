"""`gma plot`: the figures, and what each is drawn from."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gma.cli import completion
from gma.cli.options import Delta, ModelPath, OneBased, console
from gma.errors import UserError
from gma.terminal import say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gma.metrics.alignment import Link
    from gma.model.directory import Loaded
    from gma.text.vocabulary import Vocabulary

# at most so many sentences are counted; more no longer change the picture
STEP_SENTENCES = 1000
# the longest source whose attention is drawn
MOST_WORDS = 200

FigurePath = Annotated[Path, typer.Option("--output", help="File; .svg gives an SVG in place of the PDF.")]
app = typer.Typer(help="Draw figures: PNG, and PDF or SVG beside it.", no_args_is_help=True)


@app.command()
def curve(
    curves: Annotated[
        list[Path], typer.Argument(metavar="CURVE...", help="Outputs of `gma sweep`.", autocompletion=completion.curves)
    ],
    output: FigurePath = Path("curve"),
    convention: Annotated[str, typer.Option(help="Of AL: word or paper.")] = "word",
) -> None:
    """BLEU over AL, one line per system."""
    from gma.evaluation import figures, sweep

    if convention not in ("word", "paper"):
        raise UserError(f"--convention is {convention!r}; expected word or paper")
    files = [path / sweep.CURVE if path.is_dir() else path for path in curves]
    loaded = {file: sweep.load_curve(file) for file in files}
    texts = {point.text for points in loaded.values() for point in points}
    if not texts:
        raise UserError(f"{', '.join(map(str, files))}: no points; run `gma sweep` first")
    if len(texts) > 1:
        raise UserError("the curves are of different texts or of different case; sweep all systems on the same text")
    lines: dict[str, list[figures.CurvePoint]] = {}
    for file, points in loaded.items():
        for name, line in sweep.curves(points, convention).items():
            # the same name in several sweeps is several systems
            labels = (name, f"{file.parent.name}/{name}", f"{file}: {name}")
            lines[next(label for label in labels if label not in lines)] = line
    _save(figures.quality_latency(lines, convention), output)


@app.command()
def attention(
    model: ModelPath,
    output: FigurePath = Path("attention"),
    source: Annotated[
        str | None, typer.Option(help="The sentence itself.", show_default="a line of the evaluation text")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="What is written.", show_default="the reference, or the model's translation")
    ] = None,
    line: Annotated[int, typer.Option(min=1, help="Of the text, from 1.")] = 1,
    source_file: Annotated[Path | None, typer.Option(show_default="the model's test or valid split")] = None,
    reference_file: Annotated[Path | None, typer.Option(show_default="as above")] = None,
    delta: Delta = None,
    layer: Annotated[int | None, typer.Option(help="Decoder layer, from 1.", show_default="the last")] = None,
    alignments: Annotated[Path | None, typer.Option(help="Gold word links, a line a pair, drawn as squares.")] = None,
    one_based: OneBased = False,
) -> None:
    """One sentence: posterior, aligned positions and the READ/WRITE path."""
    from gma.evaluation.evaluate import links_of
    from gma.evaluation.inputs import load_gold
    from gma.evaluation.text import load_text
    from gma.model import directory

    loaded = directory.load(model)
    links: frozenset[Link] = frozenset()
    if source is None:
        text = load_text(loaded, source_file, reference_file, ("--source-file", "--reference-file"))
        if line - 1 not in text.indices:
            raise UserError(f"--line is {line}; expected 1 to {text.lines} and a source with words ({text.name})")
        place = text.indices.index(line - 1)
        source, target = text.sources[place], target or text.targets[place]
        if alignments is not None:
            if target != text.targets[place]:
                raise UserError(
                    "--alignments are links to the reference's words; leave out --target, or the alignments"
                )
            links = links_of(load_gold(alignments, one_based=one_based), text)[place].possible
    elif alignments or source_file or reference_file:
        raise UserError("--alignments, --source-file and --reference-file are of a file with many; leave out --source")
    _save(_sentence(loaded, source, target, delta, layer, links), output)


@app.command()
def steps(
    model: ModelPath,
    output: FigurePath = Path("steps"),
    source: Annotated[Path | None, typer.Option(show_default="the model's test or valid split")] = None,
    reference: Annotated[Path | None, typer.Option(show_default="as above")] = None,
    delta: Delta = None,
) -> None:
    """How far the aligned position moves with every target token, a histogram per layer."""
    import numpy as np

    from gma.evaluation import figures, forced
    from gma.evaluation.text import load_text
    from gma.model import directory

    loaded = directory.load(model)
    _check_positions(loaded, model)
    text = load_text(loaded, source, reference)
    pairs = [pair for pair in zip(text.sources, text.targets) if pair[1].split()][:STEP_SENTENCES]
    if not pairs:
        raise UserError(f"{text.name}: no pair with words on both sides; expected at least one")
    sources, references = zip(*pairs)
    read = forced.read(loaded, sources, references, delta=delta)
    sizes = [
        np.concatenate([np.diff(pair.positions[layer], prepend=1.0) for pair in read])
        for layer in range(read[0].layers)
    ]
    _save(figures.steps(sizes), output)


@app.command()
def learning(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", autocompletion=completion.runs)],
    output: FigurePath = Path("learning"),
) -> None:
    """Loss, BLEU and AL over the updates of a run."""
    from gma.evaluation import figures
    from gma.training import history

    path = run / history.HISTORY
    records = history.read(path)
    if not records:
        raise UserError(f"{path}: no records; expected the folder of a run that `gma train` has begun")
    _save(figures.learning(records), output)


def token_labels(vocabulary: "Vocabulary", tokens: Sequence[int]) -> list[str]:
    """The text of each token; a piece that does not end its word has a · after it."""
    from gma.text.vocabulary import EOS, SPECIALS

    labels = []
    for token in tokens:
        text = SPECIALS[EOS] if token == EOS else vocabulary.decode([token])
        labels.append(text if token == EOS or vocabulary.closes_word(token) else f"{text}·")
    return labels


def _sentence(
    loaded: "Loaded",
    source: str,
    target: str | None,
    delta: float | None,
    layer: int | None,
    links: "frozenset[Link]",
) -> "Figure":
    """A sentence with its attention in one decoder layer; target: None for the model's own translation."""
    from gma.decoding.translate import translate
    from gma.evaluation import figures, forced

    if len(source.split()) > MOST_WORDS:
        raise UserError(f"the source has {len(source.split()):,} words; expected at most {MOST_WORDS}, to be readable")
    if target is None:
        target = translate(loaded, [source], delta=delta)[0].text
    if not source.split() or not target.split():
        raise UserError(f"source {source!r}, target {target!r}; expected words on both sides")
    (pair,) = forced.read(loaded, [source], [target], delta=delta)
    chosen = pair.layers if layer is None else layer
    if not 1 <= chosen <= pair.layers:
        raise UserError(f"--layer is {chosen}; expected 1 to {pair.layers}")
    has_positions = loaded.model.policy.has_positions
    symbol = loaded.model.policy.latency_symbol
    latency = f"{symbol} = {loaded.model.latency(delta):g}, " if symbol else ""
    return figures.sentence(
        pair.posterior[chosen - 1],
        token_labels(loaded.tokenizer.source, pair.source_tokens),
        token_labels(loaded.tokenizer.target, pair.target_tokens),
        pair.needed,
        center=pair.positions[chosen - 1] if has_positions else None,
        width=pair.widths[chosen - 1] if has_positions else None,
        gold=pair.gold_tokens(links),
        title=f"{latency}decoder layer {chosen} of {pair.layers}" if latency else "",
    )


def _check_positions(loaded: "Loaded", model: Path) -> None:
    policy, positions = loaded.model.policy, loaded.config.attention.positions
    if not policy.has_positions or positions != "incremental":
        has = f"positions {positions!r}" if policy.has_positions else f"policy {policy.name!r}"
        raise UserError(f"{model} has {has}; steps are taken by 'gaussian' with 'incremental' positions only")


def _save(figure: "Figure", output: Path) -> None:
    from gma.evaluation.figures import save

    for path in save(figure, output):
        say(console, f"figure: {path}")
