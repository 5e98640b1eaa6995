"""`gma train`, `gma average` and `gma segment`: the commands that make a model."""

import os
from pathlib import Path
from typing import Annotated

import typer

from gma.cli import completion
from gma.cli.options import Arguments, Device, console
from gma.terminal import say


def train(
    arguments: Arguments = None,
    *,
    folder: Annotated[Path, typer.Option(help="Of the run; goes on if it holds checkpoints.")],
) -> None:
    """Train a model, or go on training; the best one so far is in the run's folder. Ctrl-C saves before it stops."""
    from gma.config import load_arguments

    config = load_arguments(arguments or []).config
    if os.environ.get("RANK", "0") == "0":
        # now: what comes next is imported for seconds
        say(console, f"training in {folder}, with the corpus in {config.data.folder}")
    from gma.training.run import train

    exit_after(train(config, folder, console).signal)


def exit_after(signal: int) -> None:
    """Exit as a shell expects of a program that a signal has ended; signal: 0 for none."""
    if signal:
        raise typer.Exit(128 + signal)


def average(
    run: Annotated[Path, typer.Argument(help="Folder of a run.", autocompletion=completion.runs)],
    *,
    output: Annotated[Path, typer.Option(help="Folder for the model.")],
    last: Annotated[int, typer.Option(min=1, help="How many checkpoints.")] = 5,
    half: Annotated[bool, typer.Option("--half", help="Write float16: half the size; it computes in float32.")] = False,
) -> None:
    """Average the last checkpoints of a run into a model of its own."""
    import torch

    from gma.training.average import average

    paths = average(run, last, output, torch.float16 if half else None)
    say(console, f"{output}: mean of {', '.join(path.name for path in paths)}")


def segment(
    model: Annotated[
        Path,
        typer.Argument(
            help="Folder of a model with attention.policy=offline, causal encoder.", autocompletion=completion.models
        ),
    ],
    *,
    output: Annotated[Path, typer.Option(help="Folder for the model that translates by meaning units.")],
    limit: Annotated[int, typer.Option(min=2, help="Training sentences to find meaning units in.")] = 5000,
    device: Device = "auto",
) -> None:
    """MU: teach a model that waits for the whole sentence to translate by meaning units."""
    from gma.model.directory import find
    from gma.training.segmenter import segment

    segment(find(model), output, console, limit=limit, device=device)
