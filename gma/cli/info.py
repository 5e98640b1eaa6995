"""`gma config` and `gma info`: what there is to set, and what can be used on this machine."""

import os
import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from gma.cli import completion
from gma.cli.options import OptionalModelPath, console

# of the environment, what changes results or speed; never all of it, for some of it is secret
TELLING = ("GMA_SIMD", "GMA_ENGINE", "GMA_POOL_MB", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


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


def info(
    model: OptionalModelPath = None,
    report: Annotated[
        bool, typer.Option("--report", help="Plain text to paste into an issue; of a MODEL, too, if there is one.")
    ] = False,
) -> None:
    """Show versions, which backends of the attention operator can be used here and why, and the policies there are."""
    if report or model:
        for key, value in report_lines(model):
            print(f"{key:<11} {value}")
        return
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


def report_lines(model: Path | None) -> Iterator[tuple[str, str]]:
    """What whoever looks for an error needs to know of this machine: no names of folders, and no secrets."""
    import torch

    import gma
    import gma_kernels
    from gma.decoding.engine import chosen_engine, description
    from gma.model import directory

    yield "gma", gma.__version__
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "torch", f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}, {torch.get_num_threads()} threads"
    for name in ("numpy", "triton", "tokenizers", "safetensors"):
        yield name, _version_of(name)
    yield "system", f"{platform.platform()}, {platform.machine()}, {os.cpu_count()} CPUs"
    yield "cpu", _processor()
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    yield "gpu", ", ".join(gpus) or "none that torch sees"
    for name, status in gma_kernels.backends().items():
        yield name, f"{'yes' if status.available else 'no'}: {status.reason}"
    yield "engine", description()
    yield "settings", ", ".join(f"{name}={os.environ[name]}" for name in TELLING if name in os.environ) or "none"
    if model is not None:
        loaded = directory.load(model)
        policy, parameters = loaded.model.policy.name, sum(p.numel() for p in loaded.model.parameters())
        made = ", ".join(f"{name} {version}" for name, version in loaded.training.get("versions", {}).items())
        yield (
            "model",
            (
                f"policy {policy}, {parameters:,} parameters, decoded by {chosen_engine(loaded.model)}; "
                f"made by {made or 'unknown versions'}"
            ),
        )


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or "unknown"
