"""`gma reproduce`: the paper's systems, trained, swept and compared."""

from pathlib import Path
from typing import Annotated

import typer

from gma.cli.options import console
from gma.cli.train import exit_after


def reproduce(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[SECTION.KEY=VALUE]...", help="For every system.")
    ] = None,
    recipe: Annotated[
        str, typer.Option(help="generated, multi30k-de-en, europarl-de-en, or their beginning.")
    ] = "generated",
    *,
    folder: Annotated[Path, typer.Option(help="Of all that is made; what was cut off goes on.")],
    names: Annotated[
        str, typer.Option("--systems", help="Some, with commas, such as wait-k,gma.", show_default="the recipe's")
    ] = "",
    only: Annotated[str | None, typer.Option(help="systems or ablations.", show_default="both")] = None,
) -> None:
    """Train and sweep every system and every ablation of the paper; its tables, with the published numbers beside."""
    from gma.paper.reproduce import Stopped, reproduce

    try:
        reproduce(
            recipe,
            folder,
            console,
            names=[name.strip() for name in names.split(",") if name.strip()],
            group=only,
            overrides=overrides or [],
        )
    except Stopped as stopped:
        exit_after(stopped.signal)
