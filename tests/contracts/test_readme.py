"""The README: short, and its example gives what it says. That its code runs is held by test_pages.py."""

import re

from tests.support.pages import ROOT, blocks, links, read

README = ROOT / "README.md"
LONGEST = 150
EXAMPLE = next(block.text for block in blocks(README) if block.language == "python")


def test_it_is_short():
    assert len(read(README).splitlines()) <= LONGEST
    assert len(EXAMPLE.strip().splitlines()) == 10


def test_the_example_aligns_and_attends(capsys):
    names = {}
    exec(compile(EXAMPLE, "README.md", "exec"), names)
    assert names["output"].shape == names["target"].shape
    assert names["weights"].shape == (2, 7, 10)
    assert capsys.readouterr().out.count("tensor(") == 2


def test_its_numbers_are_written_by_commands():
    """A table with numbers stands between marks that name the command; text has none that a command could make."""
    text = re.sub(r"<!-- (\w+): written by make [\w-]+ -->.*?<!-- /\1 -->", "", read(README), flags=re.DOTALL)
    text = re.sub(r"```.*?```|\]\([^)]*\)|^\[.*$|http\S+", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not re.findall(r"\d+(?:\.\d+)?(?: ?[×%]| (?:ms|s|MB|BLEU|words|tokens)\b)", text)


def test_the_card_has_the_numbers_of_the_table_of_quality():
    """One command writes both, so neither can be newer."""
    marked = r"<!-- quality: written by make results -->\n(.*?)<!-- /quality -->"
    short, long = (
        re.search(marked, read(ROOT / path), re.DOTALL)[1] for path in ("README.md", "gma/pretrained/de-en/README.md")
    )
    scores = re.findall(r"(-?[\d.]+) at (-?[\d.]+)", short)
    assert len(scores) == 15
    rows = [[cell.strip() for cell in row.replace(r"\|", "").split("|")[3:6]] for row in long.splitlines()[2:17]]
    assert [(bleu, f"{float(lag):.1f}") for bleu, _, lag in rows] == scores


def test_its_pages_are_those_that_a_reader_looks_for():
    for page in ("docs/start.md", "docs/tutorials/module.md", "docs/results.md", "CHANGELOG.md"):
        assert page in links(README)
