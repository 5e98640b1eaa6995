"""`gma demo-train`: a translator is trained on the generated corpus and shown at work."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from gma.cli import plot
from gma.cli.demo import numbered
from gma.cli.options import console
from gma.cli.train import exit_after

if TYPE_CHECKING:
    from gma.evaluation.evaluate import Evaluation
    from gma.evaluation.instances import Instance

EXAMPLES = 3
# δ of the curve; training draws δ from the range between the first and the last
DELTAS = (1.0, 2.0, 4.0, 7.0)
# how long a spoken word takes in the live view
SECONDS_A_WORD = 0.3


def demo_train(
    folder: Annotated[Path, typer.Option(help="Of the run; a second call goes on with what is there.")] = Path(
        "runs/demo-train"
    ),
    minutes: Annotated[float, typer.Option(min=0.01, help="Of training, at most; two cores need about three.")] = 15.0,
) -> None:
    """Train a translator on the generated corpus, translate unseen sentences, and score them."""
    from gma import config
    from gma.cli.stream_input import spoken
    from gma.cli.stream_view import LiveView, PlainView, interpret
    from gma.config.toml import toml_value
    from gma.decoding.streaming import StreamingTranslator
    from gma.evaluation.evaluate import evaluate
    from gma.evaluation.inputs import load_gold
    from gma.evaluation.sweep import measure, present
    from gma.evaluation.text import load_text
    from gma.model import directory
    from gma.training.run import train

    corpus = folder / "corpus"
    resolved = config.load("generated", [f"training.minutes={minutes}", f"data.folder={toml_value(str(corpus))}"])
    exit_after(train(resolved.config, folder, console).signal)
    loaded = directory.load(folder)
    text, gold = load_text(loaded), corpus / "test.align"
    scored = evaluate(loaded, text, system="GMA", gold=load_gold(gold))
    console.print("\nunseen sentences; the small numbers count the source words heard when a word was written")
    for instance in scored.instances[:EXAMPLES]:
        console.print(numbered(instance.source, zip(instance.prediction.split(), instance.delays)))
    console.print(summary(scored))
    shown = most_reordered(scored)
    console.print("\nas it happens:")
    view = LiveView(console, "heard", "written") if console.is_terminal else PlainView()
    seconds = SECONDS_A_WORD if console.is_terminal else 0.0
    interpret(StreamingTranslator(loaded), spoken([scored.instances[shown].source + "\n"], seconds), view, None)
    console.print("one model, any latency:")
    present(measure([folder], DELTAS, folder / "sweep", console), folder / "sweep", console)
    plot.attention(folder, folder / "attention", line=text.indices[shown] + 1, alignments=gold)


def most_reordered(scored: "Evaluation") -> int:
    """Index of the correctly translated sentence with the longest wait for a word: it shows the policy best."""

    def wait(instance: "Instance") -> float:
        if instance.prediction != instance.reference or instance.source_length > 16:
            return 0
        return max((delay - place for place, delay in enumerate(instance.delays)), default=0)

    return max(range(len(scored.instances)), key=lambda index: wait(scored.instances[index]))


def summary(scored: "Evaluation") -> Table:
    """The numbers that matter, each beside one to measure it by."""
    lengths = [instance.source_length for instance in scored.instances]
    alignment, latency = scored.alignment, scored.scores.latency
    assert alignment is not None, "scored with gold links"
    table = Table(
        f"{len(lengths)} unseen sentences",
        Column("", justify="right"),
        "for comparison",
        caption=f"sacreBLEU {scored.scores.bleu.signature}; {latency.label}",
        caption_justify="left",
    )
    table.add_row("BLEU", f"{scored.scores.bleu.score:.1f}", "100 = every word as in the reference")
    mean = sum(lengths) / len(lengths)
    table.add_row("AL, words", f"{latency.al:.1f}", f"{mean:.1f} words in a source on average")
    diagonal = f"{alignment.diagonal.error_rate:.1%} of a diagonal guess"
    for name, layers in (("round(p)", alignment.by_position), ("the largest weight", alignment.by_posterior)):
        best = min(range(len(layers)), key=lambda layer: layers[layer].error_rate)
        table.add_row(f"AER of {name}, decoder layer {best + 1}", f"{layers[best].error_rate:.1%}", diagonal)
    table.add_row("p > |x|", f"{scored.past_the_end:.1%}", "of all steps and layers")
    return table
