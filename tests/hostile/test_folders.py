"""Folders of the wrong kind: refused with the true reason, and nothing in them has changed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from gma.corpus.prepare import prepare
from gma.errors import UserError
from gma.model import directory
from gma.training.average import average
from gma.training.segmenter import segment
from tests.support import tiny_run

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_run.make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    tiny_run.train(corpus, run, "training.updates=10")
    return run


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _refused(folder: Path, act, match: str) -> None:
    before = _files(folder)
    with pytest.raises(UserError, match=match):
        act(folder)
    assert _files(folder) == before


@pytest.mark.parametrize("part", ["run", "model", "settings only", "history only"])
def test_a_corpus_is_not_prepared_over_something_else(run, tmp_path, part):
    folder = tmp_path / "folder"
    if part == "run":
        shutil.copytree(run, folder)
    else:
        folder.mkdir()
        names = {"model": ("model.safetensors", "config.toml", "tokenizer.json", "training.json")}
        for name in names.get(part, ("config.toml",) if part == "settings only" else ("history.jsonl",)):
            shutil.copy(run / name, folder)
    kind = "a training run" if part in ("run", "history only") else "a model"
    _refused(folder, lambda folder: prepare(tiny_run.load(folder).data, folder, QUIET), f"holds {kind}")


def test_a_corpus_is_not_prepared_over_the_model_of_the_package():
    folder = directory.find("de-en")
    _refused(folder, lambda folder: prepare(tiny_run.load(folder).data, folder, QUIET), "holds a model")


@pytest.mark.parametrize("spelling", ["{}", "{}/", "{}/../{name}", "link"])
def test_a_run_and_its_corpus_are_two_folders(tmp_path, spelling):
    folder = tmp_path / "both"
    if spelling == "link":
        folder.mkdir()
        (tmp_path / "link").symlink_to(folder)
    data = tmp_path / "link" if spelling == "link" else spelling.format(folder, name=folder.name)
    with pytest.raises(UserError, match=r"data\.folder = .*is the folder of the run, too"):
        tiny_run.train(data, folder)
    assert not folder.exists() or not list(folder.iterdir())


def test_a_run_does_not_begin_in_another_corpus(corpus, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(corpus, other)
    _refused(other, lambda folder: tiny_run.train(corpus, folder), "holds a prepared corpus")


def test_a_model_is_not_written_over_a_corpus_or_a_run(corpus, run):
    for folder, kind in ((corpus, "a prepared corpus"), (run, "a training run")):
        _refused(folder, lambda folder: average(run, 1, folder), f"holds {kind}")
        _refused(folder, lambda folder: segment(run, folder, QUIET, limit=10), f"holds {kind}")


def test_a_file_is_no_folder(corpus, run, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for act in (
        lambda: prepare(tiny_run.load(file).data, file, QUIET),
        lambda: tiny_run.train(corpus, file),
        lambda: average(run, 1, file),
    ):
        with pytest.raises(UserError, match="is a file; expected a folder"):
            act()
    assert file.read_text() == "mine"


def test_a_corpus_may_be_prepared_again_and_a_model_averaged_again(corpus, run, tmp_path):
    for _ in range(2):
        tiny_run.make_corpus(tmp_path / "corpus")
        average(run, 1, tmp_path / "model")


def test_a_slash_at_the_end_changes_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert directory.find("de-en/") == directory.find("de-en") == directory.find(Path("de-en"))


def test_a_sweep_writes_where_its_help_says(tmp_path):
    (tmp_path / "one.de").write_text("Guten Tag.\n", "utf-8")
    (tmp_path / "one.en").write_text("Hello.\n", "utf-8")
    command = [sys.executable, "-m", "gma", "sweep", "de-en/", "--delta", "1", "--source", "one.de"]
    subprocess.run([*command, "--reference", "one.en"], cwd=tmp_path, check=True, capture_output=True, timeout=240)
    assert (tmp_path / "de-en" / "sweep" / "curve.json").is_file()
    help = subprocess.run([sys.executable, "-m", "gma", "sweep", "--help"], check=True, capture_output=True, text=True)
    assert "MODEL/sweep of the" in " ".join(help.stdout.replace("│", " ").split())
