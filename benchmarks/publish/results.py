"""Quality, latency and alignment of the German–English model of the package, on text it was not trained on.

python -m benchmarks.publish.results [--second-seed MODEL]     writes docs/results.md, the card, the README's table

The folder of corpora is `data`, or what GMA_DATA names. What was measured before, with the same model, is not again.
"""

import argparse
import os
import shutil
from pathlib import Path

from rich.console import Console

from benchmarks.publish.markdown import markdown_table
from benchmarks.publish.marked_text import replace_marked
from gma.evaluation import figures, sweep
from gma.evaluation.inputs import load_gold
from gma.evaluation.sweep import Point
from gma.model import directory
from gma.paper import published

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MODEL = directory.SHIPPED / directory.DEFAULT
OUTPUT = ROOT / "runs" / "results"
DELTAS = (0.5, 1.0, 2.0, 4.0, 6.0)
# name → source and reference in the folder of corpora
TEXTS = {
    "Tatoeba, held out": ("tatoeba-de-en/test.de", "tatoeba-de-en/test.en"),
    "Multi30k, test_2016": ("multi30k-de-en/test_2016_flickr.de.gz", "multi30k-de-en/test_2016_flickr.en.gz"),
    "Europarl, valid": ("europarl-de-en/valid.de.gz", "europarl-de-en/valid.en.gz"),
}
GOLD = "rwth-de-en-gold/test.de", "rwth-de-en-gold/test.en", "rwth-de-en-gold/test.talp"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--second-seed", type=Path, help="the same recipe with another training.seed, averaged alike")
    arguments = parser.parse_args()
    data, console = Path(os.environ.get("GMA_DATA") or "data"), Console()
    curves = {name: measure(data, name, MODEL, "", console) for name in TEXTS}
    publish(MODEL / "README.md", "quality", quality_table(curves))
    publish(ROOT / "README.md", "quality", short_table(curves))
    figures.save(figures.quality_latency(drawn(curves)), OUTPUT / "curve")
    shutil.copy(OUTPUT / "curve.png", DOCS / "results-curve.png")
    publish(DOCS / "results.md", "alignment", alignment_table(alignment(data, console)))
    if arguments.second_seed:
        second = {name: measure(data, name, arguments.second_seed, "-second", console) for name in TEXTS}
        publish(DOCS / "results.md", "seeds", seeds_table(curves, second))


def measure(data: Path, name: str, model: Path, suffix: str, console: Console) -> list[Point]:
    source, reference = (data / path for path in TEXTS[name])
    folder = OUTPUT / f"{source.parent.name}{suffix}"
    return sweep.measure([model], DELTAS, folder, console, source=source, reference=reference)


def alignment(data: Path, console: Console) -> list[Point]:
    source, reference, links = (data / path for path in GOLD)
    gold = load_gold(links, one_based=True)
    return sweep.measure([MODEL], DELTAS, OUTPUT / "gold", console, source=source, reference=reference, gold=gold)


def drawn(curves: dict[str, list[Point]]) -> dict[str, list[figures.CurvePoint]]:
    """A line for every text."""
    return {name: next(iter(sweep.curves(points).values())) for name, points in curves.items()}


def quality_table(curves: dict[str, list[Point]]) -> str:
    header = ["text", "δ", "BLEU", "chrF", "AL (word), words", "LAAL (word), words", "AL (paper), tokens", "p > |x|"]
    rows = [
        [
            f"{name} ({point.sentences:,})" if place == 0 else "",
            f"{point.delta:g}",
            *(f"{value:.1f}" for value in (point.bleu, point.chrf)),
            *(f"{value:.2f}" for value in (point.al, point.laal, point.paper_al)),
            f"{point.past_the_end:.1%}",
        ]
        for name, points in curves.items()
        for place, point in enumerate(points)
    ]
    signature = next(iter(curves.values()))[0].bleu_signature
    return (
        f"{markdown_table(header, rows)}\n*Greedy. In brackets: sentences. sacreBLEU `{signature}`. `word` counts "
        "words of the text against the reference's length; `paper` counts model tokens with the end of the sentence "
        "against the hypothesis's length; the two must not be compared with each other. p > |x|: share of steps, over "
        "layers, whose position lies past the source.*\n"
    )


def short_table(curves: dict[str, list[Point]]) -> str:
    """BLEU at the average lag in words: a row for every text, a column for every δ."""
    first, *others = (f"{delta:g}" for delta in DELTAS)
    rows = [
        [f"{name} ({points[0].sentences:,})", *(f"{point.bleu:.1f} at {point.al:.1f}" for point in points)]
        for name, points in curves.items()
    ]
    return markdown_table(["text", f"δ = {first}", *others], rows)


def seeds_table(first: dict[str, list[Point]], second: dict[str, list[Point]]) -> str:
    header = ["text", " ", *(f"δ = {delta:g}" for delta in DELTAS)]
    rows = [
        [name if what == "BLEU" else "", what, *(f"{a:{form}} / {b:{form}} ({b - a:+{form}})" for a, b in pairs)]
        for name in first
        for what, form, pairs in (
            ("BLEU", ".1f", [(a.bleu, b.bleu) for a, b in zip(first[name], second[name])]),
            ("AL (word)", ".2f", [(a.al, b.al) for a, b in zip(first[name], second[name])]),
        )
    ]
    return f"{markdown_table(header, rows)}\n*The shipped model / the second seed (difference).*\n"


def alignment_table(points: list[Point]) -> str:
    header = [" ", "δ", "AL (paper), tokens", "AER of round(p)", "AER of the largest weight", "gold words within g(i)"]
    rows = [
        [
            "ours",
            f"{point.delta:g}",
            f"{point.paper_al:.2f}",
            f"{point.position_aer:.1%}",
            f"{point.posterior_aer:.1%}",
            f"{point.within:.1%}",
        ]
        for point in points
    ]
    rows += [
        [f"the paper, {row.level} latency", "–", "–", f"{row.aer:.1%}", "–", f"{row.within:.1%}"]
        for row in published.ALIGNMENT
    ]
    return markdown_table(header, rows)


def publish(path: Path, name: str, text: str) -> None:
    replace_marked(path, name, "make results", text)


if __name__ == "__main__":
    main()
