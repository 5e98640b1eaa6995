"""`gma init`: two text files become a recipe, and the recipe a model."""

import gzip
import io
import os
import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from gma.cli import init
from gma.config import load
from gma.corpus import generated
from gma.corpus.prepare import prepare
from gma.corpus.token_file import PreparedCorpus
from gma.errors import UserError
from gma.model import directory
from gma.training import display, sizing
from gma.training import run as runs
from gma.training.sizing import SIZES, Plan, Text
from tests.support import tiny_run

MANY = 10**9


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A text of 600 pairs, in the folder that the test is in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GMA_DATA", raising=False)
    monkeypatch.setattr(sizing, "MEASURING", 0.0)
    source, target, _ = generated.write(tmp_path / "raw", generated.splits(600)["train"], "train")
    source.rename("mine.de")
    target.rename("mine.en")
    return tmp_path


def test_two_files_become_a_model(texts):
    """Each command as it is typed, and something to read within seconds of its beginning, also in a pipe."""
    gma = [sys.executable, "-m", "gma"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    said = subprocess.run([*gma, "init", "mine.de", "mine.en"], env=environment, capture_output=True, text=True).stdout
    assert re.search(r"600 pairs, [\d,]+ and [\d,]+ words", said)
    assert re.search(r"model: \d\.\d million parameters", said)
    assert re.search(r"about \d+ (seconds|minutes|hours) here, at [\d,]+ target tokens/s", said)
    assert said.endswith("next: gma train mine.toml --folder runs/mine\n")
    subprocess.run([*gma, "prepare", "mine.toml"], env=environment, check=True, capture_output=True)
    short = ["training.updates=4", "training.warmup_updates=1", "training.validate_sentences=2"]
    command = [*gma, "train", "mine.toml", "--folder", "runs/mine", *short]
    # what the machine needs to begin any Python with pydantic, five seconds aside
    begun = time.monotonic()
    subprocess.run([*gma, "config", "mine.toml"], env=environment, check=True, capture_output=True)
    usual = time.monotonic() - begun
    begun = time.monotonic()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        assert training.stdout.readline() == "training in runs/mine, with the corpus in runs/data/mine\n"
        assert time.monotonic() - begun < max(5.0, 2 * usual)
        rest = training.stdout.read()
    assert training.returncode == 0
    assert "update 1 of 4" in rest
    line = (texts / "mine.de").read_text().splitlines()[0]
    written = subprocess.run([*gma, "translate", "runs/mine"], input=line, capture_output=True, text=True, check=True)
    assert written.stdout.count("\n") == 1


def test_the_recipe_is_what_was_planned_and_says_every_key_s_reason(texts):
    text = Text(5_000_000, 100_000_000, 110_000_000)
    size = SIZES[2_000_000]
    larger = Plan(SIZES[10_000_000], 90_000, "float32", 60_000_000, 500.0, 3e6)
    plan = Plan(size, 45_000, "float32", 11_000_000, 9000.0, 40_000.0, larger)
    settings = sizing.settings(text, plan, ["mine.de", "mine.en"], str(texts), "runs/data/mine", ("de", "en"))
    (texts / "mine.toml").write_text(init.recipe(texts / "mine.toml", text, plan, settings), "utf-8")
    assert load(texts / "mine.toml").config == settings
    lines = (texts / "mine.toml").read_text("utf-8").splitlines()
    assert max(map(len, lines)) <= 120 + len(str(texts))
    assert any("60 million would take about 35 days" in line for line in lines)
    # under each header and above each group of keys stands what it is for
    for before, line in pairwise(lines):
        if before.startswith("["):
            assert line.startswith("# ")


@pytest.mark.parametrize("pairs", [2, 3, 19, 20, 21, 1000, 20_001, MANY])
def test_some_pairs_are_validated_on_and_most_are_not(pairs):
    every = sizing.held_out(pairs)
    assert 1 <= pairs // every <= max(1000, pairs // 20)
    assert pairs // every <= pairs / 2


def test_held_out_pairs_are_not_trained_on(texts):
    config = load(None, ["data.generated=0", *SPLIT, "data.held_out=7"]).config
    prepare(config.data, texts / "corpus", Console(quiet=True))
    corpus = PreparedCorpus.open(texts / "corpus")
    lines = (texts / "mine.de").read_text().splitlines()
    valid = corpus.split("valid")
    assert [valid.source_text[place] for place in range(len(valid))] == lines[6::7]
    assert len(corpus.split("train")) + len(valid) == len(lines) == 600


SPLIT = ['data.train.source=["mine.de"]', 'data.train.target=["mine.en"]', "data.root=."]


@pytest.mark.parametrize(
    ("pairs", "patience", "expected"),
    [(50, MANY, 128), (9_000, MANY, 128), (29_000, MANY, 256), (500_000, MANY, 384), (MANY, MANY, 512), (MANY, 0, 128)],
)
def test_more_text_makes_a_larger_model_that_this_machine_can_train(monkeypatch, pairs, patience, expected):
    monkeypatch.setattr(sizing, "measure", lambda size, *_: (size.width * 10_000, 1e6 / size.width))
    plan = sizing.plan(Text(pairs, 10 * pairs, 11 * pairs), "float32", patience)
    assert plan.size.width == expected
    assert (plan.larger is not None) == (patience == 0)
    assert plan.updates >= 300


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.1, "10 seconds"),
        (89, "90 seconds"),
        (120, "2 minutes"),
        (5000, "83 minutes"),
        (9e4, "25 hours"),
        (1e6, "12 days"),
    ],
)
def test_how_long_it_takes_in_words(seconds, expected):
    assert init.duration(seconds) == expected


WRONG = {
    "missing": (["mine.de", "none.en"], r"none\.en: cannot be read"),
    "the same file": (["mine.de", "./mine.de"], "expected a text and its translation"),
    "fewer lines": (["mine.de", "short.en"], r"has 600 lines and short\.en has 599"),
    "no text": (["empty.de", "empty.en"], "0 pairs of lines; expected 2 or more"),
    "not UTF-8": (["mine.de", "latin.en"], r"latin\.en, line 1: not UTF-8"),
    "a folder": (["mine.de", "."], r"\.: cannot be read"),
    "an old name": (["mine.de", "mine.en", "--output", "there.toml"], r"there\.toml is there already"),
    "no TOML": (["mine.de", "mine.en", "--output", "recipe.txt"], "a name that ends in .toml"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_text_is_refused_and_nothing_is_written(texts, name):
    arguments, message = WRONG[name]
    lines = (texts / "mine.en").read_bytes().splitlines(keepends=True)
    (texts / "short.en").write_bytes(b"".join(lines[:-1]))
    (texts / "latin.en").write_bytes(b"\xfcber\n" + b"".join(lines[1:]))
    (texts / "there.toml").write_text("mine")
    for code in ("de", "en"):
        (texts / f"empty.{code}").write_text("\n\n")
    before = sorted(texts.rglob("*"))
    output = Path(arguments[3]) if len(arguments) > 2 else None
    with pytest.raises(UserError, match=message):
        init.init(*map(Path, arguments[:2]), output)
    assert sorted(texts.rglob("*")) == before


def test_files_in_two_folders_packed_and_without_languages_in_their_names(texts):
    (texts / "b").mkdir()
    with gzip.open(texts / "b" / "second.txt.gz", "wb") as file:
        file.write((texts / "mine.en").read_bytes())
    (texts / "mine.de").rename(texts / "first.txt")
    init.init(texts / "first.txt", texts / "b" / "second.txt.gz", texts / "new" / "one.toml")
    config = load(texts / "new" / "one.toml").config
    assert (config.data.source, config.data.target) == ("source", "target")


def test_an_update_of_minutes_is_warned_of(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(display, "SLOW_UPDATE", 0.0)
    corpus = tiny_run.make_corpus(tmp_path / "corpus")
    trainer = tiny_run.trainer(corpus, tmp_path / "run", "training.updates=2", console=Console(width=300))
    trainer.train()
    assert capsys.readouterr().out.count("warning: an update takes about 0:00:0") == 1


def test_a_recipe_may_start_from_a_trained_model(texts):
    arguments = ["mine.de", "mine.en", "--start-from", "de-en"]
    subprocess.run([sys.executable, "-m", "gma", "init", *arguments], check=True, capture_output=True)
    config = load("mine.toml", []).config
    shipped = directory.load("de-en")
    assert config.training.start_from == "de-en"
    assert config.attention == shipped.config.attention
    assert config.model == shipped.config.model.model_copy(update={"dropout": config.model.dropout})
    console = Console(file=io.StringIO(), width=200)
    short = ["training.updates=2", "training.warmup_updates=1", "training.validate_sentences=2"]
    runs.train(load("mine.toml", short).config, texts / "run", console)
    assert re.search(r"starting from de-en: [\d,]+ weights\n", console.file.getvalue())
