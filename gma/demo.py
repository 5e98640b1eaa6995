"""The demonstration behind `gma demo`: a translator is trained on the generated corpus and shown at work."""

from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from gma import config, evaluation, evaluation_text, model_directory, run
from gma.evaluation import Evaluation
from gma.instances import Instance
from gma.token_file import PreparedCorpus

EXAMPLES = 3
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def demonstrate(folder: Path, minutes: float, console: Console) -> None:
    """Train (or go on training) in `folder`, then translate and score sentences that training has never seen."""
    resolved = config.load("generated", [f"training.minutes={minutes}", f'data.folder="{folder / "corpus"}"'])
    outcome = run.train(resolved.config, folder, console)
    if outcome.signal:
        return
    loaded = model_directory.load(folder)
    text = evaluation_text.load(loaded)
    gold = evaluation.load_gold(folder / "corpus" / "test.align")
    scored = evaluation.evaluate(loaded, text, system="GMA, generated corpus", gold=gold)
    for instance in scored.instances[:EXAMPLES]:
        console.print(example(instance))
    console.print(summary(scored))


def example(instance: Instance) -> Text:
    """A source with its words numbered; its translation, each word with the number of source words it waited for."""
    heard = enumerate(instance.source.split(), start=1)
    written = zip(instance.delays, instance.prediction.split())
    lines = Text()
    for label, words in (("heard  ", heard), ("written", written)):
        lines.append(f"{label}  ", style="dim")
        for number, word in words:
            lines.append(word).append(f"{number}".translate(SUPERSCRIPTS) + " ", style="cyan")
        lines.append("\n")
    return lines


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
