"""Every page of the documentation: its code runs, its commands and links exist, and it repeats no other page."""

import importlib.util
import re
import shlex
import shutil
from collections import Counter
from pathlib import Path

import pytest
import typer

from gma.cli.app import app
from gma.config import load
from gma.model import directory
from gma.training import sizing
from tests.support.pages import PAGES, ROOT, Block, anchors, blocks, commands, links, name, sentences

# those of `gma` that take seconds with what `folder` holds; of the others only the options are looked at
QUICK = {"stream", "translate", "evaluate", "sweep", "config", "info", "init", "plot attention"}
SLOW_OPTIONS = {"--server"}
COMMAND = re.compile(r"(?:echo (?P<said>\"[^\"]*\") \| )?gma (?P<words>[^<#|]+)(?:< (?P<file>\S+)\s*)?(?:#.*)?")
# a language that is not here has a test of its own page, or is what a command printed
CHECKED = {"sh", "python", "toml", "text"}
ELSEWHERE = {"json": "docs/protocol.md", "nginx": "docs/replicas.md", "": ""}
# of other people; there is nothing of ours to check in them
FOREIGN = {"docker", "simuleval", "git", "cd", "echo", "."}
# both written by one command, for two corpora
ALIKE = "docs/reproduction/"
SHORTEST_SENTENCE = 9

WITH_CODE = [page for page in PAGES if {block.language for block in blocks(page)} & {"python", "sh"}]
COMMANDS = [
    (name(page), command)
    for page in PAGES
    for block in blocks(page)
    if block.language == "sh"
    for command in commands(block)
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that has what the pages name: two texts, and a model that was trained on them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GMA_DATA", raising=False)
    monkeypatch.setattr(sizing, "MEASURING", 0.0)
    for path in ("german.txt", "test.de", "mine.de"):
        Path(path).write_text("Guten Morgen!\nIch habe Hunger.\n", "utf-8")
    for path in ("test.en", "mine.en"):
        Path(path).write_text("Good morning!\nI'm hungry.\n", "utf-8")
    shutil.copytree(directory.find(directory.DEFAULT), "runs/mine")
    return tmp_path


@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, folder, monkeypatch, capfd):
    """A block of `text` is what the block before it printed; … stands for anything."""
    names: dict = {"__name__": "__main__"}
    printed = ""
    for block in blocks(page):
        where = f"{name(page)}:{block.line}"
        if block.language == "python":
            exec(compile(block.text, where, "exec"), names)
            printed = capfd.readouterr().out
        elif block.language == "sh":
            for line in block.text.splitlines():
                run(line, monkeypatch)
            printed = capfd.readouterr().out
        elif block.language == "text":
            expected = re.escape(block.text.strip()).replace("…", ".*")
            # a space at the end of a line is not to be seen on a page
            shown = "\n".join(line.rstrip() for line in printed.splitlines()).strip()
            assert re.fullmatch(expected, shown, re.DOTALL), f"{where} shows\n{block.text}but it is\n{printed}"


def run(line: str, monkeypatch) -> None:
    """A quick command of `gma`, if all that it names is there."""
    found = COMMAND.fullmatch(line)
    if found is None:
        return
    words = shlex.split(found["words"])
    quick = QUICK & {words[0], " ".join(words[:2])} and not SLOW_OPTIONS & {*words}
    made = words[words.index("--output") + 1] if "--output" in words else ""
    named = [word for word in words if re.search(r"^runs/|^hf:|\.(toml|log|json)$", word) and word != made]
    if not quick or not all(map(Path.exists, map(Path, named))):
        return
    if found["said"]:
        Path("said").write_text(f"{shlex.split(found['said'])[0]}\n", "utf-8")
    with open("said" if found["said"] else found["file"] or "german.txt", encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        app(words, standalone_mode=False)


def test_pages_were_found():
    """What is run is not nothing."""
    assert len(WITH_CODE) > 12
    assert sum(block.language == "python" for page in PAGES for block in blocks(page)) > 10
    assert {command[1] for _, command in COMMANDS if command[0] == "gma"} > {
        "stream",
        "sweep",
        "plot",
        "train",
        "serve",
    }


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_command_is_there_and_has_its_options(page, command):
    while re.fullmatch(r"\w+=\S*", command[0]):  # settings of the environment
        command = command[1:]
    words = [word for word in command if word not in ("<", ">")]
    if "<" in command:
        words.remove(command[command.index("<") + 1])
    if words[0] == "torchrun":
        words = ["gma", *words[words.index("gma") + 1 :]]
    program, *arguments = words
    if program == "gma":
        check_gma(arguments)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in arguments if "=" not in word} <= set(targets)
    elif program == "python":
        assert arguments[0] == "-m"
        assert importlib.util.find_spec(arguments[1]) is not None
    elif program == "bash":
        assert (ROOT / arguments[0]).is_file()
    elif program == "pytest":
        assert arguments[0] != "-m" or f'"{arguments[1]}: ' in (ROOT / "pyproject.toml").read_text()
    elif program == "pip":
        assert arguments[0] == "install"
        extras = {extra for word in arguments for extra in re.findall(r"(?:gma|\.)\[(\w+)\]", word)}
        assert all(f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text() for extra in extras)
    else:
        assert program in FOREIGN, f"{page}: nothing says what {program} is"


def check_gma(arguments: list[str]) -> None:
    # what is on a hub is not fetched for this
    arguments = ["de-en" if word.startswith("hf:") else word for word in arguments]
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[arguments[0]]
        arguments = arguments[1:]
    # parses, and raises for an unknown or missing option
    command.make_context("gma", list(arguments))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)} links to {path}, which is not there"
        assert not anchor or anchor in anchors(target), f"{name(page)} links to {link}, where no such heading is"


def toml_blocks() -> list[tuple[str, Block]]:
    return [(name(page), block) for page in PAGES for block in blocks(page) if block.language == "toml"]


@pytest.mark.parametrize(("page", "block"), toml_blocks(), ids=lambda value: value if isinstance(value, str) else "")
def test_settings_that_are_shown_load(page, block, tmp_path):
    path = tmp_path / "example.toml"
    path.write_text(block.text, encoding="utf-8")
    load(path)


def test_every_block_is_looked_at_by_some_test():
    for page in PAGES:
        for block in blocks(page):
            known = block.language in CHECKED or ELSEWHERE.get(block.language) in ("", name(page))
            assert known, f"{name(page)}:{block.line} is {block.language}, which no test looks at"


def test_no_page_says_what_another_says():
    said = {name(page): set(sentences(page, SHORTEST_SENTENCE)) for page in PAGES if not name(page).startswith(ALIKE)}
    counted = Counter(sentence for found in said.values() for sentence in found)
    twice = {
        sentence: [page for page in said if sentence in said[page]] for sentence in counted if counted[sentence] > 1
    }
    assert not twice, "\n".join(f"{', '.join(where)}: {sentence}" for sentence, where in twice.items())
