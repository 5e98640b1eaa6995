"""Sweeps: what is in the curve, what is computed again and what is not."""

import csv
import dataclasses
import io
import json
import math
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from gma.cli import plot
from gma.corpus import generated
from gma.errors import UserError
from gma.evaluation import figures, sweep
from gma.evaluation.evaluate import evaluate, evaluate_alignment, evaluate_log
from gma.evaluation.inputs import load_gold
from gma.evaluation.text import load_text
from gma.model import directory
from tests.support import tiny_model, tiny_run

PAIRS = generated.generate(12, seed=6)
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two models and an offline one, and a text."""
    folder = tmp_path_factory.mktemp("sweep")
    corpus = tiny_run.make_corpus(folder / "corpus")
    for seed, name in enumerate(("one", "two", "whole")):
        tiny_model.make(folder / name, corpus, seed=seed, offline=name == "whole")
    generated.write(folder, PAIRS, "text")
    return folder


@pytest.fixture
def computed(monkeypatch) -> list[tuple[str, float | None]]:
    """Every point that is really evaluated. No figures: they take longer than the points."""
    points = []
    monkeypatch.setattr(figures, "save", lambda figure, path: [])

    def counted(*arguments, **options):
        points.append((options["system"], options["delta"]))
        return evaluate(*arguments, **options)

    monkeypatch.setattr(sweep, "evaluate", counted)
    return points


def run(folder: Path, output: Path, *names: str, deltas=(0.5, 2.0), text="text", **options) -> list[sweep.Point]:
    models, files = [folder / name for name in names], [folder / f"{text}.{language}" for language in ("de", "en")]
    points = sweep.measure(models, deltas, output, QUIET, source=files[0], reference=files[1], **options)
    sweep.present(points, output, QUIET)
    return points


def test_points_are_those_of_evaluate(folder, tmp_path):
    points = run(folder, tmp_path, "one", "whole", deltas=(0.5, math.inf))
    assert [(point.system, point.delta) for point in points] == [("one", 0.5), ("one", math.inf), ("whole", None)]
    loaded = directory.load(folder / "one")
    text = load_text(loaded, folder / "text.de", folder / "text.en")
    expected = evaluate(loaded, text, system="one", delta=0.5)
    assert (points[0].bleu, points[0].al) == (expected.scores.bleu.score, expected.scores.latency.al)
    assert (points[0].paper_al, points[0].past_the_end) == (expected.paper.al, expected.past_the_end)
    assert sweep.load_curve(tmp_path / "curve.json") == points
    with (tmp_path / "curve.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["system"], row["delta"]) for row in rows] == [("one", "0.5"), ("one", "inf"), ("whole", "")]
    assert [float(row["al"]) for row in rows] == [point.al for point in points]
    log = evaluate_log(tmp_path / "instances" / "one-delta-0.5.log")
    assert log.scores.latency == expected.scores.latency
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_nothing_is_computed_twice(folder, tmp_path, computed):
    first = run(folder, tmp_path, "one")
    assert computed == [("one", 0.5), ("one", 2.0)]
    assert run(folder, tmp_path, "one") == first
    assert len(computed) == 2
    both = run(folder, tmp_path, "one", "two", deltas=(1.0, 2.0))
    assert computed[2:] == [("one", 1.0), ("two", 1.0), ("two", 2.0)]
    # what was asked for before is still in the curve
    assert [(point.system, point.delta) for point in both] == [
        ("one", 0.5),
        ("one", 1.0),
        ("one", 2.0),
        ("two", 1.0),
        ("two", 2.0),
    ]


def test_a_sweep_that_is_cut_off_goes_on(folder, tmp_path, computed, monkeypatch):
    write = sweep._write

    def cut(output, points, text):
        write(output, points, text)
        if len(points) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "_write", cut)
    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path, "one", deltas=(0.5, 1.0, 2.0))
    monkeypatch.setattr(sweep, "_write", write)
    assert len(run(folder, tmp_path, "one", deltas=(0.5, 1.0, 2.0))) == 3
    assert computed == [("one", 0.5), ("one", 1.0), ("one", 2.0)]


@pytest.mark.parametrize("change", ["model", "text", "case"])
def test_what_depends_on_something_that_changed_is_computed_again(folder, tmp_path, computed, change):
    shutil.copytree(folder, tmp_path / "own")
    own = tmp_path / "own"
    before = run(own, tmp_path, "one", "two")
    del computed[:]
    options = {}
    if change == "model":
        tiny_model.make(own / "one", own / "corpus", seed=9)
    elif change == "text":
        (own / "text.en").write_text((own / "text.en").read_text(encoding="utf-8") + "\n", encoding="utf-8")
        (own / "text.de").write_text((own / "text.de").read_text(encoding="utf-8") + "Hund\n", encoding="utf-8")
    else:
        options["lowercase"] = True
    after = run(own, tmp_path, "one", **options)
    assert computed == [("one", 0.5), ("one", 2.0)]
    # the other model's points stay if they are of the same text
    kept = [point for point in after if point.system == "two"]
    assert kept == ([point for point in before if point.system == "two"] if change == "model" else [])


def test_a_model_whose_files_are_written_again_is_the_same_model(folder, tmp_path, computed):
    shutil.copytree(folder, tmp_path / "own")
    run(tmp_path / "own", tmp_path, "one")
    before = (tmp_path / "own" / "one" / "model.safetensors").read_bytes()
    # the order of its metadata is left to chance
    for _ in range(20):
        tiny_model.make(tmp_path / "own" / "one", folder / "corpus", seed=0)
        if (tmp_path / "own" / "one" / "model.safetensors").read_bytes() != before:
            break
    run(tmp_path / "own", tmp_path, "one")
    assert len(computed) == 2


def test_gold_links_give_alignment_scores_and_are_part_of_the_text(folder, tmp_path, computed):
    gold = load_gold(folder / "text.align")
    measured = [
        sweep.measure(
            [folder / "one", folder / "whole"],
            [2.0],
            tmp_path,
            Console(quiet=True),
            source=folder / "text.de",
            reference=folder / "text.en",
            gold=links,
        )
        for links in (gold, gold, None)
    ]
    assert measured[0] == measured[1]
    assert len(computed) == 4
    one, whole = measured[0]
    loaded = directory.load(folder / "one")
    text = load_text(loaded, folder / "text.de", folder / "text.en")
    expected = evaluate_alignment(loaded, text, gold, delta=2.0)
    assert one.position_aer == min(layer.error_rate for layer in expected.by_position)
    assert one.posterior_aer == min(layer.error_rate for layer in expected.by_posterior)
    assert one.within == expected.coverage.share
    assert (whole.position_aer, whole.within) == (None, 1.0)
    assert all(point.within is None for point in measured[2])


def test_points_that_are_left_out_are_counted(folder, tmp_path, computed):
    run(folder, tmp_path, "one", "two")
    said = io.StringIO()
    sweep.measure(
        [folder / "one"],
        [1.0],
        tmp_path,
        Console(file=said, width=200),
        source=folder / "text.en",
        reference=folder / "text.de",
    )
    assert f"4 points in {tmp_path} are of another text" in said.getvalue()


def test_models_with_the_same_name():
    names = sweep.system_names([Path("/runs/a/model"), Path("/runs/b/model"), Path("/runs/b/model")])
    assert list(names) == ["a/model", "b/model"]
    assert list(sweep.system_names([Path("/runs/a/model")])) == ["model"]


def test_deltas():
    assert sweep.parse_deltas("2, 0.5,inf,2,-1") == [-1.0, 0.5, 2.0, math.inf]
    for wrong in ("", "1,,2", "one", "nan"):
        with pytest.raises(UserError, match="expected numbers"):
            sweep.parse_deltas(wrong)


def test_two_texts_in_one_curve(folder, tmp_path):
    lower = tiny_run.make_corpus(tmp_path / "corpus", "data.lowercase=true")
    tiny_model.make(tmp_path / "lower", lower, "data.lowercase=true")
    with pytest.raises(UserError, match="one curve needs one text"):
        run(folder, tmp_path / "out", "one", str(tmp_path / "lower"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected a gma-sweep file"),
        ('{"format": "gma-sweep", "version": 2, "points": [{"system": "x"}]}', "expected points with"),
    ],
)
def test_a_damaged_curve(folder, tmp_path, content, message):
    (tmp_path / "curve.json").write_text(content)
    with pytest.raises(UserError, match=message):
        run(folder, tmp_path, "one")


def test_a_curve_with_a_setting_that_is_no_number(tmp_path):
    point = {**dict.fromkeys((field.name for field in dataclasses.fields(sweep.Point)), 1), "delta": "x"}
    content = {"format": sweep.FORMAT, "version": sweep.VERSION, "points": [point]}
    (tmp_path / "curve.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="damaged: system is 1"):
        sweep.load_curve(tmp_path / "curve.json")


def test_the_command_and_its_figure(folder, tmp_path, monkeypatch, capsys):
    files = ["--source", folder / "text.de", "--reference", folder / "text.en"]
    models = f"{folder / 'one'},{folder / 'two'}"
    assert tiny_model.command(monkeypatch, "sweep", models, "--delta", "1,2", *files, "--output", tmp_path) == 0
    # wherever its lines are broken
    printed = " ".join(capsys.readouterr().out.split())
    assert "word convention" in printed
    assert "nrefs:1" in printed
    assert json.loads((tmp_path / "curve.json").read_text())["points"][0]["latency_convention"] == "word"
    for convention in ("word", "paper"):
        plot.curve([tmp_path], tmp_path / f"figure-{convention}.svg", convention=convention)
        assert (tmp_path / f"figure-{convention}.png").exists()
        assert f"{convention} convention" in (tmp_path / f"figure-{convention}.svg").read_text(encoding="utf-8")
    shutil.copytree(folder / "one", tmp_path / "own")
    assert tiny_model.command(monkeypatch, "sweep", tmp_path / "own", "--delta", "1", *files) == 0
    assert len(sweep.load_curve(tmp_path / "own" / "sweep" / "curve.json")) == 1
    capsys.readouterr()
    assert tiny_model.command(monkeypatch, "sweep", folder / "one", "--delta", "x", "--output", tmp_path) == 2
    assert "--delta has 'x'" in capsys.readouterr().err
