"""`gma push`: a trained model onto a hub, from where anyone loads it by its name."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gma.cli.options import ModelPath, console
from gma.terminal import say

if TYPE_CHECKING:
    from gma.evaluation.sweep import Point


def push(
    model: ModelPath,
    name: Annotated[str, typer.Argument(metavar="ORGANISATION/NAME", help="On the hub; @BRANCH may follow.")],
    licence: Annotated[
        str, typer.Option("--license", help="Of the weights, such as mit or cc-by-4.0: what the training text allows.")
    ],
    private: Annotated[bool, typer.Option("--private", help="If it has to be created, for you alone.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the card, and push nothing.")] = False,
) -> None:
    """Push a model to the Hugging Face Hub, with a card; `hf://ORGANISATION/NAME` then loads it everywhere."""
    from gma.evaluation.card import card, config_json
    from gma.model import directory, hub

    loaded = directory.load(model)
    repository = hub.parse(name if hub.is_name(name) else f"hf://{name}").repository
    points, text = _points(model)
    readme = model / "README.md"
    written = readme.read_text("utf-8") if readme.is_file() else ""
    made = card(repository, loaded, licence, points, text, written)
    if dry_run:
        console.print(made, markup=False, highlight=False, soft_wrap=True, end="")
        return
    files = {"README.md": made.encode(), "config.json": config_json(loaded).encode()}
    say(console, f"pushed: {hub.push(model, name, files, private=private)}")


def _points(model: Path) -> tuple[list["Point"], str]:
    """What `gma sweep` has found for this very model, and the name of the text."""
    from gma.evaluation.sweep import CURVE, points_of

    curve = model / "sweep" / CURVE
    if curve.is_file():
        points, text = points_of(curve, model)
        if points:
            return points, text
    say(console, f"no scores in the card: {curve} has none of this model; `gma sweep {model}` writes it")
    return [], ""
