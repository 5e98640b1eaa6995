"""The demonstration behind `gma demo-train`: a translator is trained on the generated corpus and shown at work."""

from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from gma import config
from gma.cli import plot, stream_input, stream_view
from gma.cli.demo import numbered
from gma.config.toml import toml_value
from gma.decoding.streaming import StreamingTranslator
from gma.evaluation import evaluate as evaluation
from gma.evaluation import sweep
from gma.evaluation import text as evaluation_text
from gma.evaluation.evaluate import Evaluation
from gma.evaluation.instances import Instance
from gma.model import directory
from gma.terminal import say
from gma.training import run
from gma.training.trainer import Outcome

EXAMPLES = 3
# δ of the curve; the model is trained with any from the first to the last
DELTAS = (1.0, 2.0, 4.0, 7.0)
# of a spoken word, in the live view
SECONDS_A_WORD = 0.3


def demonstrate(folder: Path, minutes: float, console: Console) -> Outcome:
    """Train (or go on training) in `folder`, score unseen sentences, stream one of them, draw two figures."""
    corpus = folder / "corpus"
    resolved = config.load("generated", [f"training.minutes={minutes}", f"data.folder={toml_value(str(corpus))}"])
    outcome = run.train(resolved.config, folder, console)
    if outcome.signal:
        return outcome
    loaded = directory.load(folder)
    text = evaluation_text.load(loaded)
    scored = evaluation.evaluate(loaded, text, system="GMA", gold=evaluation.load_gold(corpus / "test.align"))
    console.print("\nunseen sentences; the small numbers count the source words heard when a word was written")
    for instance in scored.instances[:EXAMPLES]:
        console.print(numbered(instance.source, zip(instance.prediction.split(), instance.delays)))
    console.print(summary(scored))
    shown = most_reordered(scored)
    console.print("\nas it happens:")
    view = stream_view.LiveView(console, "heard", "written") if console.is_terminal else stream_view.PlainView()
    spoken = stream_input.spoken(
        [scored.instances[shown].source + "\n"], SECONDS_A_WORD if console.is_terminal else 0.0
    )
    stream_view.interpret(StreamingTranslator(loaded), spoken, view, None)
    console.print("one model, any latency:")
    sweep.sweep([folder], DELTAS, folder / "sweep", console)
    gold, line = corpus / "test.align", text.indices[shown] + 1
    for figure in plot.attention(folder, folder / "attention", line=line, alignments=gold):
        say(console, f"written: {figure}")
    return outcome


def most_reordered(scored: Evaluation) -> int:
    """The well translated sentence in which some word waits longest: there the policy shows."""

    def wait(instance: Instance) -> int:
        if instance.prediction != instance.reference or instance.source_length > 16:
            return 0
        return max((delay - place for place, delay in enumerate(instance.delays)), default=0)

    return max(range(len(scored.instances)), key=lambda index: wait(scored.instances[index]))


def summary(scored: Evaluation) -> Table:
    """The numbers that matter, beside what they are to be measured by."""
    lengths = [instance.source_length for instance in scored.instances]
    alignment, latency = scored.alignment, scored.scores.latency
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
