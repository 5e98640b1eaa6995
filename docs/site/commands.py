"""The reference of the commands, from the commands themselves: what `gma COMMAND --help` says, on one page."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]


def command_page() -> dict[str, str]:
    """Its place on the site → its Markdown."""
    import typer

    sys.path.insert(0, str(ROOT))
    # the package is read where it lies and not installed, so nothing knows its version
    with patch("importlib.metadata.version", lambda name: "0"):
        from gma.cli.app import app

    sections = [section("gma", *found) for found in walk(typer.main.get_command(app), ())]
    head = "# Commands\n\nEvery command with its options, as `--help` shows them.\n\n"
    return {"commands.md": head + "\n".join(sections)}


def walk(command: Any, names: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Every command that does something, with the names that lead to it."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from walk(inner, (*names, name))
    else:
        yield command, names


def section(program: str, command: Any, names: tuple[str, ...]) -> str:
    context = command.make_context(program, [], resilient_parsing=True)
    title = " ".join((program, *names))
    usage = " ".join((title, *(piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]")))
    rows = [row(parameter, context) for parameter in command.params if not getattr(parameter, "hidden", False)]
    table = "| option | what it is | default |\n|---|---|---|\n" + "".join(
        f"| {' | '.join(cells)} |\n" for cells in rows
    )
    return f"## {title}\n\n{prose(command.help)}\n\n```text\n{usage} [OPTIONS]\n```\n\n{table if rows else ''}"


def row(parameter: Any, context: Any) -> list[str]:
    """Name, meaning, default."""
    names = [parameter.metavar or parameter.name] if parameter.param_type_name == "argument" else parameter.opts
    # a text says what stands for a default that is none
    shown = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    if shown in (None, False, "", ()) or callable(shown):
        shown = ""
    default = "required" if parameter.required else prose(str(shown))
    cells = ", ".join(f"`{name}`" for name in names), prose(parameter.help or ""), default
    return [cell.replace("|", r"\|") for cell in cells]


def prose(text: str) -> str:
    """On one line, with nothing that Markdown would take for its own."""
    return re.sub(r"([*_<\[])", r"\\\1", " ".join(text.split()))
