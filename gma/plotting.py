"""Figures, made without touching the caller's matplotlib backend; `save` writes PNG and PDF side by side."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from gma.alignment import Alignment

STYLE = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "savefig.bbox": "tight",
    "pdf.fonttype": 42,
}
ALIGNED, GOLD, HIDDEN = "#d1495b", "#222222", "#e9e9e9"


def attention(ax: Axes, weights: Tensor, alignment: Alignment, gold: Tensor | None = None) -> None:
    """One sentence's posterior with the prior that shaped it.

    weights: [T, S]; alignment: of one sentence, [1, 1, T] each; gold: [T], 1-based true positions.
    """
    rows, words = weights.shape
    center, width, visible = (x[0, 0].detach().double().numpy() for x in alignment[:3])
    row = np.arange(1, rows + 1)
    ax.imshow(weights.detach(), cmap="Blues", vmin=0, vmax=1, aspect="auto", extent=(0.5, words + 0.5, rows + 0.5, 0.5))
    for i, seen in zip(row, visible):
        ax.fill_betweenx([i - 0.5, i + 0.5], seen + 0.5, words + 0.5, color=HIDDEN, linewidth=0)
    inside = center <= words
    reach = np.stack([center - np.maximum(center - width, 0.5), np.minimum(center + width, words + 0.5) - center])
    ax.errorbar(
        center[inside],
        row[inside],
        xerr=reach[:, inside].clip(min=0),
        fmt="o",
        markersize=3.5,
        color=ALIGNED,
        elinewidth=0.8,
        alpha=0.9,
        label="aligned position p ± σ of the prior",
    )
    if gold is not None:
        ax.plot(gold, row, "s", markersize=7, markerfacecolor="none", color=GOLD, markeredgewidth=0.9, label="truth")
    ax.set(xlim=(0.5, words + 0.5), ylim=(rows + 0.5, 0.5), xlabel="source word j", ylabel="target word i")


def before_and_after(panels: dict[str, tuple[Tensor, Alignment]], gold: Tensor) -> Figure:
    """The same sentence under several models, one panel each, titles from the keys."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 2.9), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True)
        for ax, (title, (weights, alignment)) in zip(axes, panels.items()):
            attention(ax, weights, alignment, gold)
            ax.set_title(title, loc="left")
        for ax in axes[1:]:
            ax.set_ylabel("")
        handles, labels = axes[0].get_legend_handles_labels()
        handles.append(Patch(color=HIDDEN))
        labels.append("not heard yet: j > ⌊p + δ⌋")
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        bar = figure.colorbar(axes[-1].images[0], ax=axes, pad=0.01, aspect=30)
        bar.set_label("posterior β")
        bar.outline.set_visible(False)
    return figure


def save(figure: Figure, path: Path) -> list[Path]:
    """Write `path` as .png and .pdf and return both."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_suffix(suffix) for suffix in (".png", ".pdf")]
    with matplotlib.rc_context(STYLE):
        for file in written:
            figure.savefig(file)
    return written
