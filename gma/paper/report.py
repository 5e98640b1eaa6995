"""A reproduction as people read it: reproduction.md with its figures, and every table as CSV."""

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure

from gma.evaluation.figures import CurvePoint, quality_latency, save, step_shares
from gma.model import directory
from gma.paper import published
from gma.paper.results import Results, Row
from gma.paper.systems import GAIN, GMA, GMA_PRINTED, ITST, WAIT_K, WAIT_K_EACH, System, budget_of
from gma.paper.tables import TRUTH, ReportTable, tables_of
from gma.storage import atomic

NAME = "reproduction"
CAPTIONS = {
    "curve": "Quality against latency of all systems",
    "steps": "Step sizes at similar lag",
    "cw": "Quality against consecutive wait",
    "laal": "Quality against length-adaptive lag",
}
SYSTEMS = {
    "offline": "Offline is the same Transformer with the same causal encoder, waiting for the whole sentence.",
    "mu": "MU is the model of Offline with a segmenter.",
    WAIT_K: "Wait-k is trained multipath, k drawn for every batch.",
    WAIT_K_EACH: "Beside it stands Wait-k as published, one model for each k.",
    "mma-h": "MMA-H is trained with the variance loss, weighted by λ.",
    "mma-il": "MMA-IL is trained with the average loss, weighted by λ.",
    ITST: "ITST is one model, θ falling in training.",
    GMA: "GMA is one model, δ drawn for every update.",
    GMA_PRINTED: "GMA as printed has σ = p/2; the other one predicts σ, as one of the paper's ablations does.",
    GAIN: "Gain is ours: it waits while hearing the rest would tell more than θ nats about the next token.",
}
SCHEDULES = {
    "linear": "falling in a straight line to 0 at the last",
    "inverse_square_root": "falling with the square root of the update's number",
}
# the figures under each table
PLACES = {"curve": ("curve", "laal"), "steps": ("steps", "cw")}


def write(results: Results, folder: Path) -> list[Path]:
    """All into `folder`, in files whose names begin with `NAME`."""
    tables = tables_of(results)
    paths = [folder / f"{NAME}.md"]
    figures = _figures(results)
    for table in tables:
        paths.append(folder / f"{NAME}-{table.name}.csv")
        atomic.replace_text(paths[-1], table.csv())
    for name, figure in figures.items():
        paths += save(figure, folder / f"{NAME}-{name}")
    atomic.replace_text(paths[0], markdown(results, tables, figures))
    return paths


def markdown(results: Results, tables: Sequence[ReportTable], figures: Mapping[str, Figure]) -> str:
    """The whole text."""
    parts = [_head(results)]
    for table in tables:
        parts.append(f"## {table.title}\n\n{table.markdown()}\n\n*{table.note}*")
        parts += [f"![{CAPTIONS[name]}]({NAME}-{name}.png)" for name in PLACES.get(table.name, ()) if name in figures]
    return "\n\n".join(parts) + "\n"


def _head(results: Results) -> str:
    settings = results.config
    sizes = f"{settings.model.width}/{settings.model.feed_forward}/{settings.model.heads}"
    layers = f"{settings.model.encoder_layers}+{settings.model.decoder_layers}"
    sentences = results.rows[0].point.sentences if results.rows else 0
    signature = results.rows[0].point.bleu_signature if results.rows else ""
    versions = ", ".join(f"{name} {version}" for name, version in directory.versions().items())
    return "\n\n".join(
        [
            f"# {_title(results)}",
            f"```sh\n{results.command}\n```",
            f"Made by that command, which goes on where it was cut off. Recipe `{results.recipe}`: {layers} layers of "
            f"{sizes} (width/feed-forward/heads), {settings.model.encoder} encoder, batches of "
            f"{settings.training.tokens * settings.training.accumulation:,} tokens, rate "
            f"{settings.training.learning_rate:g} after {settings.training.warmup_updates:,} updates of warm-up, then "
            f"{SCHEDULES[settings.training.schedule]}, products in {settings.training.precision}, "
            f"{settings.training.updates:,} updates of every model, {_seeds(results)}. The test set has {sentences:,} "
            f"sentences; decoding is greedy. BLEU: sacreBLEU `{signature}`. "
            f"{_machine()}; {versions}.",
            f"{' '.join(SYSTEMS[name] for name in SYSTEMS if results.of(name))} "
            f"{budget_of(results.recipe).origin} The published numbers are from [the paper]({published.PAPER}).",
        ]
    )


def _seeds(results: Results) -> str:
    if len(results.seeds) == 1:
        return f"seed {results.seeds[0]} for all: one run of one seed"
    return f"with each of the seeds {', '.join(map(str, results.seeds))}"


def _title(results: Results) -> str:
    if results.group("ablations"):
        return "Every system and every ablation of the paper"
    return "Simultaneous translation: " + ", ".join(system.title for system in results.group("systems"))


def _machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' * (threads > 1)}"


def _figures(results: Results) -> dict[str, Figure]:
    drawn: dict[str, Figure] = {}
    # systems that stream come first, so that each has the same colour in all figures
    systems = sorted(results.group("systems"), key=lambda system: not system.symbol)
    if systems:
        drawn["curve"] = quality_latency(_curves(results, systems, "al"))
        if "laal" in budget_of(results.recipe).lags:
            drawn["laal"] = quality_latency(
                _curves(results, systems, "laal"), metric="length-adaptive average lagging LAAL"
            )
    # without systems that wait for everything: they would squeeze all others together
    streaming = [system for system in systems if system.symbol]
    if streaming:
        drawn["cw"] = quality_latency(_curves(results, streaming, "cw"), metric="consecutive wait CW")
    if results.steps:
        shares = {f"{row.system.title}, {row.setting}": sizes.shares for row, sizes in results.steps}
        if results.true_steps is not None:
            shares[TRUTH] = results.true_steps.shares
        drawn["steps"] = step_shares(shares)
    return drawn


def _curves(results: Results, systems: Sequence[System], latency: str) -> dict[str, list[CurvePoint]]:
    """The points of each system, without labels: these would cover one another, and stand in the table."""
    return {system.title: [_curve_point(rows, latency) for rows in results.settings(system.name)] for system in systems}


def _curve_point(rows: Sequence[Row], latency: str) -> CurvePoint:
    """The mean over the seeds, and the range of BLEU where there are several."""
    lags, scores = ([getattr(row.point, name) for row in rows] for name in (latency, "bleu"))
    spread = (min(scores), max(scores)) if len(rows) > 1 else None
    return CurvePoint(sum(lags) / len(rows), sum(scores) / len(rows), spread=spread)
