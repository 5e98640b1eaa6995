"""The shell completes recipes, corpora and models."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gma.cli import completion


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for model in ("runs/one", "runs/deep/two"):
        Path(model, "checkpoints").mkdir(parents=True)
        for name in completion.MODEL:
            Path(model, name).touch()
    for folder in ("runs/empty", "runs/.hidden", "detail"):
        Path(folder).mkdir(parents=True)
    Path("runs/one/sweep").mkdir()
    Path("runs/one/sweep/curve.json").touch()
    Path("runs/mine.toml").touch()
    Path("mine.toml").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("complete", "typed", "expected"),
    [
        ("models", "", ["de-en", "runs/one"]),
        ("models", "de", ["de-en"]),
        ("models", "runs/", ["runs/deep/two", "runs/one"]),
        ("models", "runs/o", ["runs/one"]),
        ("models", "de-en,runs/o", ["de-en,runs/one"]),
        ("models", "nothing", []),
        ("models", "\0", []),
        ("models", "/root/nobody/", []),
        ("runs", "ru", ["runs/one"]),
        ("curves", "runs/", ["runs/one/sweep/curve.json"]),
        ("settings", "gen", ["generated"]),
        ("settings", "m", ["mine.toml", "multi30k-de-en"]),
        ("settings", "runs/", ["runs/deep/two/config.toml", "runs/mine.toml", "runs/one/config.toml"]),
        ("settings", "training.mi", ["training.minutes="]),
        ("settings", "data.so", ["data.source=", "data.source_vocabulary="]),
        ("settings", "nothing.", []),
        ("corpora", "wmt", ["wmt15-de-en"]),
        ("corpora", "x", []),
    ],
)
def test_what_may_be_meant(place, complete, typed, expected):
    assert getattr(completion, complete)(typed) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("gma train gener", ["generated"]),
        ("gma train generated training.minu", ["training.minutes="]),
        ("gma download tato", ["tatoeba-de-en"]),
        ("gma stream d", ["de-en"]),
        ("gma plot attention runs/o", ["runs/one"]),
    ],
)
def test_a_shell_that_asks_is_answered(place, line, expected):
    command = Path(sys.executable).with_name("gma")
    if not command.exists():
        pytest.skip("the command is not installed")
    asked = {"_GMA_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    done = subprocess.run([command], env=os.environ | asked, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == expected
    assert not done.stderr
