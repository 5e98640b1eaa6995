"""The paper's tables with our numbers, and the published ones beside them."""

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple

from tabulate import tabulate

from gma.metrics import BootstrapDifference
from gma.metrics.step_sizes import LARGEST, StepSizes
from gma.paper import published
from gma.paper.equal_lag import TOLERANCE, Comparison
from gma.paper.results import Results, Row
from gma.paper.systems import GMA, REFERENCE, WAIT_K, budget_of

NOTHING = "–"
TRUTH = "true alignment"
# the rows of the paper's table of sharing, and how many alignments a decoder of L layers with H heads predicts
SHARING = {
    "sharing-none": lambda layers, heads: f"{layers} × {heads} = {layers * heads}",
    REFERENCE: lambda layers, heads: f"{layers} × 1 = {layers}",
    "sharing-layers": lambda layers, heads: f"1 × {heads} = {heads}",
    "sharing-all": lambda layers, heads: "1 × 1 = 1",
}


class ReportTable(NamedTuple):
    """A table as it is shown; `name` is that of its file. Columns that begin with a blank hold text."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str

    def markdown(self) -> str:
        """Text to the left, numbers to the right."""
        names, *rows = [[cell.strip().replace("|", r"\|") for cell in line] for line in (self.columns, *self.rows)]
        sides = ["left" if column.startswith(" ") else "right" for column in self.columns]
        return tabulate(rows, names, tablefmt="pipe", disable_numparse=True, colalign=sides)

    def csv(self) -> str:
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow([column.strip() for column in self.columns])
        writer.writerows([["" if cell == NOTHING else cell for cell in row] for row in self.rows])
        return lines.getvalue()


def tables_of(results: Results) -> list[ReportTable]:
    """Those that there are numbers for."""
    made = (
        curve(results),
        published_curve(results),
        successors(results),
        *(equal_lag(results, name, lag) for name, lag in results.unmatched),
        ablation(results),
        sharing(results),
        alignment(results),
        steps(results),
        models(results),
    )
    return [table for table in made if table.rows]


def curve(results: Results) -> ReportTable:
    """The main figure's points; means where there are several seeds."""
    several = len(results.seeds) > 1
    rows = [
        (
            rows[0].system.title,
            rows[0].setting or NOTHING,
            f"{_mean(rows, 'bleu'):.2f}",
            *([" / ".join(f"{row.point.bleu:.2f}" for row in rows)] if several else []),
            f"{_mean(rows, 'chrf'):.1f}",
            _length(rows),
            *(f"{_mean(rows, name):.2f}" for name in ("al", "laal", "ap", "dal", "cw")),
            *(f"{_mean(rows, name):.2f}" for name in ("paper_al", "paper_ap", "paper_dal", "paper_cw")),
        )
        for system in results.group("systems")
        for rows in results.settings(system.name)
    ]
    seeds = f" Means over the seeds {', '.join(map(str, results.seeds))}, whose BLEU stands beside." if several else ""
    return ReportTable(
        "curve",
        "Quality against latency",
        (
            " system",
            " setting",
            "BLEU",
            *(["BLEU, each seed"] if several else []),
            "chrF",
            "length",
            *(f"{name} (word)" for name in ("AL", "LAAL", "AP", "DAL", "CW")),
            *(f"{name} (paper)" for name in ("AL", "AP", "DAL", "CW")),
        ),
        rows,
        "Two latency conventions, not comparable with each other: `word` counts words of the text, against the "
        "reference's length, without end-of-sentence; `paper` counts model tokens with the end-of-sentence, against "
        "the hypothesis's length. AP is a share. Length: words written by the words of the references. One model "
        "serves all settings of Wait-k, MU, ITST, GMA and Gain, unless named otherwise; MMA's λ is a weight in "
        "training, and each of its points another model. MU may translate its last unit before it knows that the "
        "source has ended: AL (paper), which stops at the first token written after that, then counts all of it."
        f"{seeds}{_least_lag(results)}",
    )


def _mean(rows: Sequence[Row], name: str) -> float:
    """Of a score of points."""
    return sum(getattr(row.point, name) for row in rows) / len(rows)


def _length(rows: Sequence[Row]) -> str:
    lengths = [row.length for row in rows if row.length is not None]
    return f"{sum(lengths) / len(lengths):.2f}" if lengths else NOTHING


def published_curve(results: Results) -> ReportTable:
    """GMA's points beside the paper's, paper convention."""
    ours = results.of(GMA)
    rows = [
        (f"{results.recipe} (ours)", f"{row.point.delta:g}", *_paper_latency(row), f"{row.point.bleu:.2f}", NOTHING)
        for row in ours
    ]
    for corpus, points in published.CURVES.items():
        why = _not_comparable(corpus)
        rows += [
            (
                f"{corpus} (published)",
                f"{point.delta:g}",
                *(f"{value:.2f}" for value in (point.al, point.ap, point.dal, point.cw)),
                f"{point.bleu:.2f}",
                why,
            )
            for point in points
        ]
    return ReportTable(
        "published",
        "GMA beside the published numbers",
        (" corpus", "δ", "AL", "AP", "DAL", "CW", "BLEU", " comparable with ours?"),
        rows if ours else [],
        "All in the `paper` convention. The paper's BLEU is of tokenised text, ours is sacreBLEU's. The paper trains a "
        "model for each δ; ours is one model, δ drawn from "
        f"{_range(ours)} for every update. Of Wait-k, MU, MMA and Offline the paper prints figures only.",
    )


def successors(results: Results) -> ReportTable:
    """Published points of GMA and of systems after it."""
    rows = [
        (name, *(f"{al:.2f} / {bleu:.2f}" for al, bleu in points), *[NOTHING] * (5 - len(points)))
        for name, points in published.SUCCESSORS.items()
    ]
    return ReportTable(
        "successors",
        "Published: GMA and systems after it",
        (" system", *(f"AL / BLEU, point {place}" for place in range(1, 6))),
        rows if budget_of(results.recipe).with_successors else [],
        "WMT15 De→En, base, in the `paper` convention, from the papers' own repositories and tables: for the direction "
        "of differences only. 4.5 million pairs and 60 million parameters; nothing here is comparable as a number.",
    )


def equal_lag(results: Results, name: str = GMA, lag: str = "al") -> ReportTable:
    """A system − wait-k where both lag equally, by one latency."""
    rows: list[tuple[str, ...]] = []
    unmatched = results.unmatched.get((name, lag), ())
    chosen = [pair for pair in results.comparisons if (pair.name, pair.lag) == (name, lag)]
    system = next((row.system for row in results.of(name)), None)
    several, title, symbol = len(results.seeds) > 1, system.title if system else name, system.symbol if system else ""
    for seed in range(len(results.seeds)):
        for row in results.of(WAIT_K, seed):
            own = [str(results.seeds[seed])] if several else []
            found = [pair for pair in chosen if pair.baseline == row.point]
            for pair in found:
                both = [
                    f"{getattr(point, score):.2f}"
                    for score in (lag, "dal", "bleu")
                    for point in (pair.baseline, pair.system)
                ]
                says = "yes" if pair.is_equal else "nearest there is"
                setting = f"{symbol} = {pair.system.delta:g}"
                rows.append((row.setting, *own, setting, *both, *_difference(pair.bleu), says))
            if not found and row in unmatched:
                scores = (f"{getattr(row.point, score):.2f}" for score in (lag, "dal", "bleu"))
                known = [cell for score in scores for cell in (score, NOTHING)]
                rows.append((row.setting, *own, NOTHING, *known, *[NOTHING] * 3, f"no such {symbol}"))
    both = [f"{score}, {side}" for score in (lag.upper(), "DAL", "BLEU") for side in ("Wait-k", title)]
    columns = (" Wait-k", *(["seed"] if several else []), f" {title}", *both, "difference", " interval", "p")
    bootstrap = chosen[0].bleu if chosen else None
    how = f"{bootstrap.resamples:,} resamples, seed {bootstrap.seed}" if bootstrap else ""
    return ReportTable(
        "equal-lag" if (name, lag) == (GMA, "al") else f"equal-lag-{name}-{lag}",
        f"{title} against Wait-k at equal {'lag' if lag == 'al' else lag.upper()}",
        (*columns, " equal lag?"),
        rows,
        f"For every k, {symbol} was searched, and the test set translated with it, until the two lag equally: "
        f"{lag.upper()} (word) within {TOLERANCE:g} words. Difference in BLEU, {title} − Wait-k, with its 95% interval "
        f"by paired bootstrap ({how}); p is two-sided. “no such {symbol}”: no {symbol} from "
        f"{_range(results.of(name), swept=True)} lags so little, or so much. DAL, which never lets a late word be made "
        "up for, is shown because equal lag is not equal in every respect. The interval is over test sentences; how "
        f"much another seed of training would change is not in it. {_verdict(chosen, title)}",
    )


def ablation(results: Results) -> ReportTable:
    """The paper's table 1."""
    rows = [row for row in _variants(results) if row.system.name not in SHARING or row.system.name == REFERENCE]
    return _variant_table(
        results, "ablation", "Ablation: aligned position, prior and width", [(row, ()) for row in rows], ()
    )


def sharing(results: Results) -> ReportTable:
    """The paper's table 2."""
    found = {row.system.name: row for row in _variants(results)}
    size = results.config.model
    rows = [
        (found[name], (count(size.decoder_layers, size.heads),)) for name, count in SHARING.items() if name in found
    ]
    return _variant_table(results, "sharing", "Sharing alignments", rows, (" predicted alignments",))


def alignment(results: Results) -> ReportTable:
    """The paper's table 3: GMA's lowest, middle and highest lag."""
    ours = [row for row in results.of(GMA) if row.point.within is not None]
    chosen = [ours[0], ours[len(ours) // 2], ours[-1]] if len(ours) > 2 else []
    rows = [
        (
            level.level,
            row.setting,
            f"{row.point.al:.2f}",
            f"{row.point.position_aer:.2f}",
            f"{row.point.posterior_aer:.2f}",
            f"{row.point.within:.1%}",
            f"{level.aer:.2f}",
            f"{level.within:.1%}",
        )
        for level, row in zip(published.ALIGNMENT, chosen)
    ]
    return ReportTable(
        "alignment",
        "Quality of the predicted alignments",
        (
            " latency",
            " setting",
            "AL (word)",
            "AER of round(p)",
            "AER of the largest weight",
            "within g(i)",
            "AER, published",
            "within g(i), published",
        ),
        rows,
        "With the reference forced; the best decoder layer of each reading. Within g(i): gold-aligned target words "
        "that were written with all their source words read. Published: RWTH De→En gold alignments, WMT15 base model, "
        "one layer sampled, counted by source words; not comparable but in how they move with the latency.",
    )


def steps(results: Results) -> ReportTable:
    """The paper's step-size figure in numbers, and CW."""
    rows = []
    for row, sizes in results.steps:
        latency = (f"{row.point.al:.2f}", f"{row.point.cw:.2f}")
        rows.append((row.system.title, row.setting, *latency, *_step_cells(sizes)))
    if rows and results.true_steps is not None:
        rows.append((TRUTH, NOTHING, NOTHING, NOTHING, *_step_cells(results.true_steps)))
    said = "; ".join(f"{system}: {words}" for system, words in published.STEPS.items())
    return ReportTable(
        "steps",
        "Step sizes and consecutive wait at similar lag",
        (
            " system",
            " setting",
            "AL (word)",
            "CW (word)",
            "mean",
            "deviation",
            *(f"{size}" for size in range(LARGEST)),
            f"≥ {LARGEST}",
        ),
        rows,
        "Source words read between two written words, with the share of each size; of every system the point whose AL "
        f"is nearest to that of Wait-k's middle one. “{TRUTH}”: reading just what the gold links ask for. The paper's "
        f"figure, De→En base, in model tokens, says: {said}. CW there is about 2 for GMA, and much more for MMA.",
    )


def models(results: Results) -> ReportTable:
    """What was trained, and what it took."""
    rows = [
        (
            name,
            f"{training.parameters:,}",
            f"{training.updates:,}",
            f"{training.loss:.3f}",
            *_minutes(results, name),
        )
        for name, training in results.training.items()
    ]
    others = results.times.keys() - results.training.keys()
    rows += [(name, *[NOTHING] * 3, *_minutes(results, name)) for name in sorted(others)]
    ablations = {system.models[0].name for system in results.group("ablations")} & results.times.keys()
    for title, names in (("all systems", results.times.keys() - ablations), ("all ablations", ablations)):
        if names:
            rows.append((title, *[NOTHING] * 3, *_minutes(results, *names)))
    return ReportTable(
        "models",
        "What was trained",
        (" model", "parameters", "updates", "validation loss", "minutes", "processor minutes"),
        rows if results.training else [],
        "Minutes, by the clock and of all threads together, are for training and evaluating. Every model is as its "
        "last update left it. MU's own updates are those of the model under it.",
    )


def _least_lag(results: Results) -> str:
    lag = results.least_lag
    if lag is None:
        return ""
    return (
        f" To write every word as soon as its gold-aligned source words have been read is AL {lag.al:.2f}, DAL "
        f"{lag.dal:.2f}, CW {lag.cw:.2f} (word)."
    )


def _variants(results: Results) -> list[Row]:
    return [row for row in results.rows if row.system.group == "ablations"]


def _variant_table(
    results: Results,
    name: str,
    title: str,
    rows: Sequence[tuple[Row, tuple[str, ...]]],
    columns: tuple[str, ...],
) -> ReportTable:
    """Each variant with the published one, and whether it is above or below the reference as published."""
    found = results.of(REFERENCE)
    cells = []
    for row, more in rows if found else ():
        said, ours = published.ABLATIONS[row.system.name], row.point
        if row.system.name == REFERENCE:
            differences, agreement = (NOTHING, NOTHING), NOTHING
        else:
            differences = _difference(results.differences[row.model.name])[:2]
            same = {
                "AL": (ours.paper_al - found[0].point.paper_al) * (said.al - published.REFERENCE.al) > 0,
                "BLEU": (ours.bleu - found[0].point.bleu) * (said.bleu - published.REFERENCE.bleu) > 0,
            }
            agreement = ", ".join(f"{key} {'yes' if value else 'no'}" for key, value in same.items())
        cells.append(
            (
                row.system.title,
                *more,
                f"{ours.al:.2f}",
                f"{ours.paper_al:.2f}",
                f"{ours.bleu:.2f}",
                *differences,
                f"{said.al:.2f}",
                f"{said.bleu:.2f}",
                agreement,
            )
        )
    numbers = ("AL (word)", "AL (paper)", "BLEU", "difference", " 95% interval", "AL, published", "BLEU, published")
    setting = found[0].setting if found else ""
    return ReportTable(
        name,
        title,
        (" variant", *columns, *numbers, " same direction?"),
        cells,
        f"Each trained and tested with {setting}, as in the paper. Difference: BLEU against the row of GMA, with the "
        "interval of a paired bootstrap. Published: WMT15 De→En, base; not comparable as numbers. “Same direction”: "
        "whether AL (paper) and BLEU lie on the same side of GMA's as published. What the paper calls Laplace, linear, "
        "absolute and predicted is our reading of it; it gives no formulas.",
    )


def _difference(row: BootstrapDifference) -> tuple[str, str, str]:
    return f"{row.difference:+.2f}", f"{row.low:+.2f} … {row.high:+.2f}", f"{row.p_value:.3f}"


def _verdict(comparisons: Sequence[Comparison], title: str) -> str:
    """How often a system is better or worse beyond chance."""
    equal = [pair.bleu for pair in comparisons if pair.is_equal]
    above, below = sum(bleu.low > 0 for bleu in equal), sum(bleu.high < 0 for bleu in equal)
    return (
        f"Of {len(equal)} pairs with equal lag, the interval lies above 0 ({title} better) in {above}, below 0 (Wait-k "
        f"better) in {below}."
    )


def _paper_latency(row: Row) -> tuple[str, ...]:
    point = row.point
    return tuple(f"{value:.2f}" for value in (point.paper_al, point.paper_ap, point.paper_dal, point.paper_cw))


def _not_comparable(corpus: str) -> str:
    pair = "" if "De→En" in corpus else "another language pair, "
    return f"no: {pair}another corpus, larger model, other BLEU"


def _range(rows: Sequence[Row], swept: bool = False) -> str:
    """The δ that a model was trained with, or is swept over."""
    if not rows:
        return ""
    deltas = [row.point.delta for row in rows if row.point.delta is not None]
    if swept:
        return f"{min(deltas):g} to {max(deltas):g}"
    chosen = next(override for override in rows[0].model.overrides if override.startswith("attention.delta="))
    return chosen.partition("=")[2]


def _step_cells(sizes: StepSizes) -> tuple[str, ...]:
    return f"{sizes.mean:.2f}", f"{sizes.deviation:.2f}", *(f"{share:.1%}" for share in sizes.shares)


def _minutes(results: Results, *names: str) -> list[str]:
    """By the clock, and of all processors; nothing where a kill has left no record."""
    spent = [results.times[name] for name in names if name in results.times]
    sums = (sum(one.wall for one in spent), sum(one.cpu for one in spent))
    return [f"{seconds / 60:.1f}" if spent else NOTHING for seconds in sums]
