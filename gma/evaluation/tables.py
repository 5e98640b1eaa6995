"""Scores as people read them: every number with its unit and convention."""

from collections.abc import Mapping

from rich.table import Column, Table
from rich.text import Text

from gma.evaluation.evaluate import AlignmentEvaluation, Evaluation
from gma.metrics import BootstrapDifference

LATENCY = {"AL": "al", "LAAL": "laal", "AP, a share": "ap", "DAL": "dal", "CW": "cw"}


def heading(evaluation: Evaluation) -> str:
    """What was evaluated."""
    latency = "" if evaluation.delta is None else f", {evaluation.latency_symbol} = {evaluation.delta:g}"
    return f"{evaluation.system}{latency}: {len(evaluation.instances):,} sentences"


def tables(evaluation: Evaluation) -> list[Table]:
    """Quality, latency and, if there are gold links, alignment."""
    found = [_quality(evaluation), _latency(evaluation)]
    return [*found, _alignment(evaluation.alignment)] if evaluation.alignment else found


def notes(evaluation: Evaluation) -> list[str]:
    """What the numbers mean, and what was odd."""
    computing = evaluation.scores.computation_aware
    quality = (evaluation.scores.bleu, evaluation.scores.chrf)
    lines = [*(f"{score.label}: sacreBLEU {score.signature}" for score in quality), evaluation.scores.latency.label]
    if evaluation.paper:
        lines.append(f"{evaluation.paper.label}; not comparable with the other")
    if computing and evaluation.slots:
        streams = "one stream at a time" if evaluation.slots == 1 else f"{evaluation.slots} streams at a time"
        rate = f"{evaluation.words_per_second:g} words a second"
        lines.append(f"with computing: word convention plus computing time, {streams} on this machine, at {rate}")
    elif computing:
        lines.append("with computing: word convention, from the log's elapsed times")
    else:
        lines.append("computation-aware latency: not available, the log has no measured times")
    if evaluation.past_the_end is not None:
        lines.append(f"p > |x|: {evaluation.past_the_end:.1%} of the aligned positions, over steps and layers")
    if evaluation.alignment and evaluation.alignment.coverage.aligned:
        within, aligned = evaluation.alignment.coverage
        lines.append(
            f"heard in time: {within / aligned:.1%} of {aligned:,} gold-aligned target words were written with all "
            "their source words within g(i)"
        )
    if evaluation.left_out:
        lines.append(f"{evaluation.left_out:,} pairs without source words were left out")
    if evaluation.cut_off:
        lines.append(f"{evaluation.cut_off:,} translations did not end by themselves and were cut off")
    return lines


def comparison(differences: Mapping[str, BootstrapDifference], baseline: str) -> Table:
    """Paired bootstrap, one row a score."""
    first = next(iter(differences.values()))
    table = Table(
        "",
        *(Column(name, justify="right") for name in ("other", "this", "difference")),
        Column(f"{first.confidence:.0%} interval", justify="right"),
        Column("p", justify="right"),
        title=Text(f"Compared with {baseline}"),
        caption=f"paired bootstrap, {first.resamples:,} resamples, seed {first.seed}; p two-sided",
        title_justify="left",
        caption_justify="left",
    )
    for name, label in (("bleu", "BLEU, percent"), ("al", "AL (word), words")):
        row = differences[name]
        table.add_row(
            label,
            f"{row.baseline:.2f}",
            f"{row.system:.2f}",
            f"{row.difference:+.2f}",
            f"{row.low:+.2f} … {row.high:+.2f}",
            f"{row.p_value:.3f}",
        )
    return table


def _quality(evaluation: Evaluation) -> Table:
    table = _table("", "quality", "percent")
    for score in (evaluation.scores.bleu, evaluation.scores.chrf):
        table.add_row(score.label, f"{score.score:.2f}")
    return table


def _latency(evaluation: Evaluation) -> Table:
    columns = {
        "word, in words": evaluation.scores.latency,
        "with computing, in words": evaluation.scores.computation_aware,
        "paper, in tokens": evaluation.paper,
    }
    columns = {name: latency for name, latency in columns.items() if latency}
    table = _table("", "latency", *columns)
    for name, field in LATENCY.items():
        # time passes between any two words, so that every one of them would end a wait
        numbers = [
            "–" if (field, heading) == ("cw", "with computing, in words") else f"{getattr(latency, field):.2f}"
            for heading, latency in columns.items()
        ]
        table.add_row(name, *numbers)
    return table


def _alignment(alignment: AlignmentEvaluation) -> Table:
    columns = {"AER of round(p), %": alignment.by_position, "AER of the largest posterior, %": alignment.by_posterior}
    columns = {name: layers for name, layers in columns.items() if layers}
    table = _table(
        f"Word alignment: {alignment.sentences:,} sentences with gold links, reference forced",
        "decoder layer",
        *columns,
    )
    for layer, scores in enumerate(zip(*columns.values()), start=1):
        table.add_row(
            str(layer),
            *(
                Text(f"{100 * score.error_rate:.1f}", style="bold" if score is alignment.best[2] else "")
                for score in scores
            ),
        )
    guess = f"{100 * alignment.diagonal.error_rate:.1f}"
    table.add_row("diagonal guess", *[guess] * len(columns))
    return table


def _table(title: str, first: str, *numbers: str) -> Table:
    columns = (Column(name, justify="right") for name in numbers)
    return Table(first, *columns, title=Text(title) if title else None, title_justify="left")
