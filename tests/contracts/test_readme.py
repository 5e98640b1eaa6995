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
QUICK = ("stream", "translate", "evaluate", "sweep", "plot")
# `gma …`, whatever stands before it
COMMANDS = [
    match[1]
    for text in (README, *(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "results.md", CARD)))
    for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    for match in re.finditer(r"^(?:[^#\n]* )?gma ([^#<\n]+)", block, flags=re.MULTILINE)
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.splitlines()[-1][:30])
def test_every_example_runs_by_itself(example, capsys):
    names = {}
    exec(compile(example, "README.md", "exec"), names)
    if "weights" in names:
        assert names["output"].shape == names["target"].shape
        assert names["weights"].shape == (2, 7, 10)
        assert capsys.readouterr().out.count("tensor(") == 2
    elif "context" in names:
        assert names["context"].shape == (2, 8, 20, 64)
    elif "emission" in names:
        assert names["emission"].source_words == 9
    else:
        assert isinstance(names["layer"].multihead_attn, names["GaussianMultiheadAttention"])


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.split()[0] in QUICK and line in README])
def test_every_quick_command_runs_by_itself(line, tmp_path, monkeypatch, capfd):
    """The others need a download or hours; `gma init` and what follows it are in tests/gma/cli/test_init.py."""
    monkeypatch.chdir(tmp_path)
    for name in ("german.txt", "test.de"):
        Path(name).write_text("Guten Morgen!\nIch habe Hunger.\n", "utf-8")
    Path("test.en").write_text("Good morning!\nI'm hungry.\n", "utf-8")
    with open("german.txt", encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        app(shlex.split(line), standalone_mode=False)
    written = capfd.readouterr().out
    assert ("Good morning.\nI'm hungry.\n" in written) == (line.split()[0] in ("stream", "translate"))
    assert ("BLEU" in written) == (line.split()[0] in ("evaluate", "sweep"))
    assert Path("attention.png").is_file() == line.startswith("plot")


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
