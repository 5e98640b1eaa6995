"""The `gma` command."""

import platform
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

import gma_kernels

app = typer.Typer(
    help="Simultaneous translation with Gaussian multi-head attention.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
console = Console()


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for the figure.")] = Path("runs/demo"),
    updates: Annotated[int, typer.Option(min=1, help="Training updates per layer.")] = 300,
    seed: Annotated[int, typer.Option(help="Of the weights and the data.")] = 0,
) -> None:
    """Train a Gaussian and a plain attention layer on a small task, and draw what the Gaussian one learned."""
    from gma import demo

    demo.run(output, updates, seed, console)


@app.command()
def info() -> None:
    """Show versions and which backends of the attention operator can be used here, and why."""
    import gma

    console.print(
        f"gma {gma.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{torch.get_num_threads()} threads"
    )
    table = Table("backend", "available", "devices", "dtypes", "how, or why not")
    for name, status in gma_kernels.backends().items():
        table.add_row(
            name, "yes" if status.available else "no", " ".join(status.devices), " ".join(status.dtypes), status.reason
        )
    console.print(table)


def main() -> None:
    app()
