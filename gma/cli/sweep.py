"""`gma sweep`: quality against latency."""

from pathlib import Path
from typing import Annotated

import typer

from gma.cli import completion
from gma.cli.options import Device, Lowercase, Slots, console
from gma.errors import UserError


def sweep(
    models: Annotated[
        str,
        typer.Argument(
            metavar="MODEL[,MODEL...]", help="Folders of models, or de-en.", autocompletion=completion.models
        ),
    ],
    delta: Annotated[
        str | None,
        typer.Option(
            "--delta",
            "--k",
            "--threshold",
            help="Latencies with commas: source tokens to hear past p (gaussian), k (wait_k), θ (gain, itst, MU).",
            show_default="those usual with the policy, such as 0.5,1,2,4 for gaussian and 1,3,5,7 for wait_k",
        ),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Text, one sentence a line.", show_default="the models' test or valid split")
    ] = None,
    reference: Annotated[Path | None, typer.Option(help="Its translation.", show_default="as above")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the curve; a sweep that was cut off goes on.",
            show_default="MODEL/sweep of the first",
        ),
    ] = None,
    lowercase: Lowercase = False,
    slots: Slots = 64,
    device: Device = "auto",
) -> None:
    """Quality and latency of models at several δ, k or θ: one table, CSV, JSON and figure."""
    from gma.evaluation.sweep import measure, parse_deltas, present
    from gma.model.directory import find
    from gma.model.hub import is_name

    names = models.split(",")
    if output is None and is_name(names[0]):
        raise UserError(f"--output is needed: {names[0]} lies on a hub, and the curve is yours")
    folder = output or Path(names[0]) / "sweep"
    points = measure(
        [find(name) for name in names],
        None if delta is None else parse_deltas(delta),
        folder,
        console,
        source=source,
        reference=reference,
        lowercase=lowercase,
        slots=slots,
        device=device,
    )
    present(points, folder, console)
