"""`gma config` and `gma info`: what there is to set, and what can be used on this machine."""

import platform
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from gma.cli import completion
from gma.cli.options import console


def config(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE_OR_FILE] [KEY=VALUE]...",
            help="A recipe's name or a TOML file; overrides.",
            autocompletion=completion.settings,
        ),
    ] = None,
    toml: Annotated[bool, typer.Option("--toml", help="Print TOML that can be loaded again.")] = False,
) -> None:
    """Show every setting of a run and where its value comes from."""
    from gma.config import load_arguments, recipes

    resolved = load_arguments(arguments or [])
    if toml:
        print(resolved.config.dump(), end="")
        return
    table = Table(Column("key", no_wrap=True), Column("value", overflow="fold"), Column("from", no_wrap=True))
    for key, value, origin in resolved.rows():
        table.add_row(key, Text(value), Text(origin), style="" if origin == "default" else "bold")
    console.print(table)
    console.print(f"recipes: {', '.join(recipes())}", highlight=False)


def info() -> None:
    """Show versions, which backends of the attention operator can be used here and why, and the policies there are."""
    import torch

    import gma
    import gma_kernels
    from gma.decoding.engine import description, has_engine
    from gma.policies import POLICIES, CrossAttention, MeaningUnits

    console.print(
        f"gma {gma.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{torch.get_num_threads()} threads"
    )
    table = Table("backend", "available", "devices", "dtypes", Column("how, or why not", overflow="fold"))
    for name, status in gma_kernels.backends().items():
        table.add_row(
            name, "yes" if status.available else "no", " ".join(status.devices), " ".join(status.dtypes), status.reason
        )
    console.print(table)
    console.print(f"decoding engine: {description()}")
    table = Table("policy", "latency", "decoded by", "what it does")
    policies: list[type[CrossAttention]] = [*POLICIES.values(), MeaningUnits]
    for policy in policies:
        engine = "native" if has_engine(policy) else "torch"
        table.add_row(policy.name, policy.latency_symbol or "–", engine, policy.summary)
    console.print(table)
