"""Word links by a statistical aligner: those of the generated corpus, which are known; and every wrong call."""

import sys

import pytest
from rich.console import Console

from gma.corpus import align, generated
from gma.errors import UserError
from gma.metrics import GoldLinks, corpus_alignment_error_rate, read_links
from tests.support import tiny_model

QUIET = Console(quiet=True)


def test_words_are_compared_without_case_and_the_punctuation_around_them():
    assert align.normalised('Das „Haus“, sagt er: "Na-na!" … |||') == ["das", "haus", "sagt", "er", "na-na", "…", "bar"]


def test_without_the_aligner_the_message_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "systran_align", None)
    for name in ("a", "b"):
        (tmp_path / name).write_text("x\n")
    files = (tmp_path / "a", tmp_path / "b")
    assert tiny_model.command(monkeypatch, "align", *files, "--output", tmp_path / "links") == 2
    assert 'pip install "gma[align]"' in capsys.readouterr().err
    assert not (tmp_path / "links").exists()


def test_further_text_comes_in_pairs(tmp_path, monkeypatch, capsys):
    options = ("--output", tmp_path / "links", "--with-source", "more.de")
    assert tiny_model.command(monkeypatch, "align", "a", "b", *options) == 2
    assert "expected --with-target as often as --with-source, got 0 and 1" in capsys.readouterr().err


def test_links_of_the_generated_corpus(tmp_path, monkeypatch):
    """Learned from 3,000 pairs of its own kind; an empty line keeps its place."""
    pytest.importorskip("systran_align", reason=align.MISSING)
    pairs = generated.generate(3060, seed=5)
    more = generated.write(tmp_path, pairs[60:], "more")
    source, target, _ = generated.write(tmp_path, pairs[:60], "text")
    for path in (source, target):
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines[:20], "" if path == source else "nothing", *lines[20:]]) + "\n")
    options = ("--output", tmp_path / "links", "--with-source", more[0], "--with-target", more[1])
    assert tiny_model.command(monkeypatch, "align", source, target, *options) == 0
    links = read_links(tmp_path / "links")
    assert len(links) == 61
    assert not links[20].sure
    gold = [GoldLinks(pair.alignment, pair.alignment) for pair in pairs[:60]]
    found = [link.sure for link in (*links[:20], *links[21:])]
    assert corpus_alignment_error_rate(found, gold).error_rate < 0.25
    diagonal = [{(i, i) for i in range(len(pair.target.split()))} for pair in pairs[:60]]
    assert corpus_alignment_error_rate(diagonal, gold).error_rate > 0.5


def test_nothing_to_align(tmp_path):
    pytest.importorskip("systran_align", reason=align.MISSING)
    for name in ("a", "b"):
        (tmp_path / name).write_text("\n\n")
    with pytest.raises(UserError, match="no pair with words on both sides"):
        align.align(tmp_path / "a", tmp_path / "b", tmp_path / "links", QUIET)
