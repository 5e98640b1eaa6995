"""Figures, made without touching the caller's matplotlib backend; `save` writes PNG and PDF (or SVG) side by side.

All fit a column of a paper, 3.3 in wide, with no text below 7 pt.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator, PercentFormatter

STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 9,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid.axis": "both",
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}
ALIGNED, GOLD, HIDDEN, PATH = "#d1495b", "#222222", "#e9e9e9", "#3d3d3d"
# distinguishable in grey and for colour-blind readers
SYSTEMS = [
    ("#0072b2", "o"),
    ("#d55e00", "s"),
    ("#009e73", "^"),
    ("#cc79a7", "D"),
    ("#56b4e9", "v"),
    ("#e69f00", "P"),
    ("#000000", "X"),
]
COLUMN = 3.3
# width of a page: the most that a sentence too long for a column gets
PAGE = 7.0
VECTOR = (".pdf", ".svg")
# size of the mark at an aligned position, in points
MARK = 2.8


class CurvePoint(NamedTuple):
    """A system at one latency; `label` is what stands beside the point, `spread` the ends of its error bar; None for
    nothing."""

    latency: float
    quality: float
    label: str | None = None
    spread: tuple[float, float] | None = None


def _attention(
    ax: Axes,
    weights: np.ndarray,
    center: np.ndarray,
    width: np.ndarray,
    heard: np.ndarray,
    gold: Collection[tuple[float, float]],
) -> None:
    """One sentence's posterior with the prior that shaped it.

    Args:
        weights: [T, S]
        center, width: of the prior, [T]; none are drawn if there is no prior (both empty).
        heard: source positions heard when each row was written, [T].
        gold: pairs (row, column) of true links, from 1.
    """
    rows, columns = weights.shape
    row = np.arange(1, rows + 1)
    ax.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto", extent=(0.5, columns + 0.5, rows + 0.5, 0.5))
    for i, seen in zip(row, heard):
        ax.fill_betweenx([i - 0.5, i + 0.5], seen + 0.5, columns + 0.5, color=HIDDEN, linewidth=0)
    if len(center):
        inside = center <= columns
        reach = np.stack([center - np.maximum(center - width, 0.5), np.minimum(center + width, columns + 0.5) - center])
        ax.errorbar(
            center[inside],
            row[inside],
            xerr=reach[:, inside].clip(min=0),
            fmt="o",
            markersize=MARK,
            color=ALIGNED,
            ecolor=(ALIGNED, 0.55),
            elinewidth=0.7,
            label="p ± σ",
        )
    if len(gold):
        target, source = zip(*sorted(gold))
        ax.plot(
            source,
            target,
            "s",
            markersize=2 * MARK,
            markerfacecolor="none",
            color=GOLD,
            markeredgewidth=0.9,
            label="gold link",
        )
    ax.set(xlim=(0.5, columns + 0.5), ylim=(rows + 0.5, 0.5))


def sentence(
    weights: np.ndarray,
    source: Sequence[str],
    target: Sequence[str],
    heard: np.ndarray,
    *,
    center: np.ndarray | None = None,
    width: np.ndarray | None = None,
    gold: Collection[tuple[int, int]] = (),
    title: str = "",
) -> Figure:
    """The paper's attention figure: posterior, aligned positions, and the way through the sentence, READ → WRITE ↓.

    Args:
        weights: [T, S]
        source, target: what stands at the columns and rows.
        heard: g(i), source tokens read when each row was written, [T].
        center, width: [T], None for a policy without positions.
        gold: pairs (source, target) of true links, from 0.
    """
    rows, columns = weights.shape
    # 7 pt text needs 0.1 in across and a little more down
    labels = 0.062 * max(map(len, target)), 0.062 * max(map(len, source))
    across = float(np.clip(labels[0] + 0.115 * columns + 0.55, COLUMN, PAGE))
    height = labels[1] + max(1.2, min(8.0, 0.15 * rows)) + 0.75
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(across, height), layout="constrained")
        ax = figure.subplots()
        empty = np.empty(0)
        _attention(
            ax,
            weights,
            empty if center is None else center,
            empty if width is None else width,
            heard,
            [(i + 1, j + 1) for j, i in gold],
        )
        for edge in ax.spines.values():
            edge.set_visible(False)
        _path(ax, heard)
        ax.set_xticks(range(1, columns + 1), source, rotation=90, parse_math=False)
        ax.set_yticks(range(1, rows + 1), target, parse_math=False)
        ax.xaxis.tick_top()
        ax.tick_params(length=0, pad=1.5)
        if title:
            ax.set_title(title, loc="left", fontsize=8)
        handles, names = ax.get_legend_handles_labels()
        handles += [Line2D([], [], color=PATH, linewidth=1.2), Patch(color=HIDDEN)]
        names += ["READ → WRITE ↓", "not heard"]
        figure.legend(handles, names, loc="outside lower left", ncols=4, columnspacing=0.9, handlelength=1.2)
        _posterior_bar(figure, ax)
    return figure


def quality_latency(
    curves: Mapping[str, Sequence[CurvePoint]],
    convention: str = "word",
    *,
    metric: str = "average lagging AL",
) -> Figure:
    """BLEU over a latency metric, one line per system."""
    unit = {"word": "words", "paper": "model tokens"}[convention]
    columns = 2 if max(map(len, curves)) > 14 else 3
    legend_rows = -(-len(curves) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN, 2.4 + 0.14 * legend_rows), layout="constrained")
        ax = figure.subplots()
        for place, (name, points) in enumerate(curves.items()):
            color, marker = SYSTEMS[place % len(SYSTEMS)]
            points = sorted(points)
            across, up = [point.latency for point in points], [point.quality for point in points]
            ax.plot(across, up, color=color, marker=marker, label=name, clip_on=False)
            for point in points:
                if point.spread is not None:
                    ax.plot([point.latency] * 2, point.spread, color=color, linewidth=0.8, marker="_")
            for point in _apart(points, curves):
                # every second system below its line, so that two curves' labels keep apart
                above = place % 2 == 0
                ax.annotate(
                    point.label or "",
                    (point.latency, point.quality),
                    xytext=(-2, 5) if above else (3, -10),
                    textcoords="offset points",
                    ha="right" if above else "left",
                    fontsize=7,
                    color=color,
                    path_effects=[withStroke(linewidth=2, foreground="white")],
                    zorder=4,
                )
        ax.margins(x=0.1, y=0.14)
        ax.grid(True)
        ax.set_axisbelow(True)
        ax.set(xlabel=f"{metric} ({convention} convention, {unit})", ylabel="BLEU")
        if any(point.label is not None for points in curves.values() for point in points):
            ax.set_title("numbers: δ, k or θ", loc="right", fontsize=7, pad=2)
        figure.legend(loc="outside upper left", ncols=columns, columnspacing=1.0, handlelength=1.6)
    return figure


def _apart(points: Sequence[CurvePoint], curves: Mapping[str, Sequence[CurvePoint]]) -> list[CurvePoint]:
    """Those of a line whose labels have room beside that of the one before."""
    everything = [point for line in curves.values() for point in line]
    across, up = (np.ptp([point[axis] for point in everything]) or 1.0 for axis in (0, 1))
    kept: list[CurvePoint] = []
    for point in points:
        if point.label is None:
            continue
        near = kept and abs(point[0] - kept[-1][0]) < 0.06 * across and abs(point[1] - kept[-1][1]) < 0.08 * up
        if not near:
            kept.append(point)
    return kept


def steps(sizes: Sequence[np.ndarray]) -> Figure:
    """How far the aligned position moves with every target token: a histogram per decoder layer.

    sizes: one array of Δp per layer.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN, 2.2), layout="constrained")
        ax = figure.subplots()
        everything = np.concatenate(sizes)
        # cut off at the 99th percentile: a few giant leaps would squeeze all others into one bar
        limit = max(float(np.quantile(everything, 0.99)), 1e-3)
        edges = np.linspace(0, limit, 31)
        colors = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.8, len(sizes)))
        for layer, (steps, color) in enumerate(zip(sizes, colors), start=1):
            counts, _ = np.histogram(steps, edges)
            name = f"layer {layer}: mean {steps.mean():.2f}"
            ax.stairs(counts / max(1, len(steps)), edges, color=color, linewidth=1.2, label=name)
        ax.axvline(1, color="#999999", linewidth=0.8, linestyle=(0, (3, 2)), label="Δp = 1")
        ax.set(xlim=(0, limit), xlabel="step Δp (source tokens per target token)", ylabel="share of steps")
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        beyond = (everything > limit).mean()
        ax.legend(loc="upper right", title=f"{beyond:.1%} lie further right", title_fontsize=7)
    return figure


def step_shares(shares: Mapping[str, Sequence[float]]) -> Figure:
    """How often so many source words are read between two written words, one line per system.

    shares: of 0, 1, … words, the last one of as many or more.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN, 2.1 + 0.14 * -(-len(shares) // 2)), layout="constrained")
        ax = figure.subplots()
        for place, (name, values) in enumerate(shares.items()):
            color, marker = SYSTEMS[place % len(SYSTEMS)]
            ax.plot(range(len(values)), values, color=color, marker=marker, label=name, clip_on=False)
        last = max(map(len, shares.values())) - 1
        ax.set_xticks(range(last + 1), [*map(str, range(last)), f"≥ {last}"])
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.grid(True)
        ax.set_axisbelow(True)
        ax.set(xlabel="source words read before a word is written", ylabel="share of words")
        figure.legend(loc="outside upper left", ncols=2, columnspacing=1.0, handlelength=1.6)
    return figure


def learning(history: Sequence[Mapping[str, Any]]) -> Figure:
    """Loss, BLEU and AL over the updates of a run, from the records of its history.jsonl."""
    by_kind = {kind: [record for record in history if record["kind"] == kind] for kind in ("training", "validation")}
    panels = ["loss", *(key for key in ("bleu", "al") if any(key in record for record in by_kind["validation"]))]
    names = {"loss": "loss\n(nats/token)", "bleu": "BLEU", "al": "AL\n(word, words)"}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN, 0.5 + 1.05 * len(panels)), layout="constrained")
        axes = np.atleast_1d(figure.subplots(len(panels), sharex=True))
        for ax, key in zip(axes, panels):
            for kind, (color, marker) in zip(("training", "validation"), (("#9a9a9a", ""), SYSTEMS[0])):
                points = [(record["update"], record[key]) for record in by_kind[kind] if key in record]
                if points:
                    ax.plot(*zip(*points), color=color, marker=marker, markersize=3, label=kind)
            ax.set_ylabel(names[key])
            ax.yaxis.set_major_locator(MaxNLocator(4))
            ax.grid(True)
            if key != "al":
                ax.set_ylim(bottom=0)
        axes[0].legend(loc="upper right")
        axes[-1].set_xlabel("update")
        figure.align_ylabels(axes)
    return figure


def save(figure: Figure, path: Path) -> list[Path]:
    """Write `path` as PNG and as PDF, or SVG if that is its suffix, and return both."""
    path.parent.mkdir(parents=True, exist_ok=True)
    vector = path.suffix if path.suffix in VECTOR else ".pdf"
    stem = path.with_suffix("") if path.suffix in (*VECTOR, ".png") else path
    written = [stem.with_name(stem.name + suffix) for suffix in (".png", vector)]
    with matplotlib.rc_context(STYLE):
        # the layout settles once it has seen its own tick labels
        figure.draw_without_rendering()
        for file in written:
            # no date inside: the same figure is the same file
            figure.savefig(file, metadata={} if file.suffix == ".png" else {_DATE[file.suffix]: None})
    return written


_DATE = {".pdf": "CreationDate", ".svg": "Date"}


def _path(ax: Axes, heard: np.ndarray) -> None:
    """The staircase from the first READ to the last WRITE."""
    across, down = [0.5], [0.5]
    for i, seen in enumerate(heard):
        across += [seen + 0.5, seen + 0.5]
        down += [i + 0.5, i + 1.5]
    ax.plot(across, down, color=PATH, linewidth=1.2, clip_on=False, solid_joinstyle="miter")


def _posterior_bar(figure: Figure, ax: Axes) -> None:
    bar = figure.colorbar(ax.images[0], ax=ax, pad=0.01, aspect=30)
    bar.set_label("posterior β")
    bar.outline.set_visible(False)
