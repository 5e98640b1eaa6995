"""The README's examples run as they stand."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from gma.cli.app import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CARD = ROOT / "gma" / "pretrained" / "de-en" / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
# `gma …`, whatever stands before it
COMMANDS = [
    match[1]
    for text in (README, *(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "results.md", CARD)))
    for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    for match in re.finditer(r"^(?:[^#\n]* )?gma ([^#<\n]+)", block, flags=re.MULTILINE)
]


def test_examples_run_in_order(capsys):
    names = {}
    for example in EXAMPLES:
        exec(compile(example, "README.md", "exec"), names)
    assert names["output"].shape == names["target"].shape
    assert names["weights"].shape == (2, 7, 10)
    assert names["context"].shape == (2, 8, 20, 64)
    assert capsys.readouterr().out.count("tensor(") == 2
    assert names["emission"].source_words == 9


def test_the_first_example_has_ten_lines():
    assert len(EXAMPLES[0].strip().splitlines()) == 10


def test_links_to_files_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_have_the_options_that_are_written_there(line):
    command, arguments = typer.main.get_command(app), shlex.split(line)
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    # parses, and raises for an unknown or missing option
    command.make_context("gma", arguments)


def test_commands_were_found():
    assert {line.split()[0] for line in COMMANDS} > {"stream", "translate", "evaluate", "sweep", "plot", "train"}
