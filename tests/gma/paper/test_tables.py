"""Tables of a reproduction whose points are made up."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gma import config
from gma.metrics import BootstrapDifference
from gma.paper import published, systems, tables
from gma.paper.equal_lag import Comparison
from gma.paper.results import Results, Row, Training
from gma.paper.tables import NOTHING, ReportTable
from gma.paper.times import Spent
from tests.support.points import made_up_point

NEAREST = "nearest there is"


def row(name: str, delta: float | None, **scores: float) -> Row:
    system = next(system for system in systems.plan("generated") if system.name == name)
    model = system.models[0]
    return Row(system, model, made_up_point(system=model.name, delta=delta, **{"empty": 0, **scores}), Path("none.log"))


def difference(value: float, low: float, high: float) -> BootstrapDifference:
    return BootstrapDifference(10.0, 10.0 + value, value, low, high, 0.02, 0.95, 1000, 12345)


@pytest.fixture
def results() -> Results:
    """Wait-k at lags that GMA has, comes near to, and does not have."""
    waits = [row("wait-k", k, al=al, bleu=50.0 + k) for k, al in ((1.0, 1.0), (3.0, 3.0), (5.0, 4.6))]
    ours = [
        row("gma", delta, al=delta + 2, bleu=60.0, position_aer=0.3, posterior_aer=0.2, within=0.9)
        for delta in (0.0, 1.0, 3.0)
    ]
    al = difference(0.0, -0.1, 0.1)
    return Results(
        recipe="generated",
        command="gma reproduce --recipe generated --folder runs/x",
        config=config.load("generated").config,
        rows=(row("offline", None, al=13.0), *waits, *ours),
        comparisons=(
            Comparison(waits[1].point, ours[1].point, difference(7.0, 5.5, 8.5), al),
            Comparison(waits[2].point, ours[2].point, difference(-1.0, -3.0, 1.0), al),
        ),
        unmatched={("gma", "al"): (waits[0],)},
        gold=None,
        training={"gma": Training(1000, 20, 1.5)},
        times={"gma": Spent(120.0, 60.0, 20), "equal-lag": Spent(60.0, 6.0, 20)},
    )


def test_equal_lag(results):
    table, dal = tables.equal_lag(results), ("1.00", "1.00")
    assert all(len(cells) == len(table.columns) for cells in table.rows)
    assert table.rows == [
        ("k = 1", NOTHING, "1.00", NOTHING, *dal[:1], NOTHING, "51.00", *[NOTHING] * 4, "no such δ"),
        ("k = 3", "δ = 1", "3.00", "3.00", *dal, "53.00", "60.00", "+7.00", "+5.50 … +8.50", "0.020", "yes"),
        ("k = 5", "δ = 3", "4.60", "5.00", *dal, "55.00", "60.00", "-1.00", "-3.00 … +1.00", "0.020", NEAREST),
    ]
    assert "Of 1 pairs with equal lag, the interval lies above 0 (GMA better) in 1, below 0" in table.note
    assert "1,000 resamples, seed 12345" in table.note


def test_published_numbers_stand_beside_ours_and_say_why_they_are_not_comparable(results):
    table = tables.published_curve(results)
    ours, theirs = table.rows[:3], table.rows[3:]
    assert [cells[0] for cells in ours] == ["generated (ours)"] * 3
    assert len(theirs) == sum(map(len, published.CURVES.values()))
    assert ("WMT15 De→En, base (published)", "1", "4.66", "0.67", "5.56", "1.49", "28.50") in [
        row[:7] for row in theirs
    ]
    assert all(row[-1].startswith("no: ") for row in theirs)
    assert all(("language pair" in row[-1]) == ("En→Vi" in row[0]) for row in theirs)
    assert "[0.0, 7.0]" in table.note


def test_alignment_at_three_levels(results):
    table = tables.alignment(results)
    assert [row[:2] for row in table.rows] == [("low", "δ = 0"), ("mid", "δ = 1"), ("high", "δ = 3")]
    assert table.rows[0][3:] == ("0.30", "0.20", "90.0%", "0.49", "81.0%")


def test_similar_lag_takes_each_system_s_nearest_point_and_leaves_out_what_waits_for_all(results):
    found = results.similar_lag
    assert [(row.system.name, row.setting) for row in found] == [("wait-k", "k = 3"), ("gma", "δ = 1")]


def test_rows_without_a_word_have_no_steps(results):
    silent = [row("mu", 0.5, al=3.0, empty=1), row("mma-h", None, al=3.0, empty=1), row("mu", 0.7, al=9.0)]
    found = replace(results, rows=(*results.rows, *silent)).similar_lag
    assert [(row.system.name, row.setting) for row in found][2:] == [("mu", "θ = 0.7")]


def test_a_model_whose_time_was_not_recorded(results):
    table = tables.models(replace(results, training={**results.training, "wait-k": Training(1, 2, 3.0)}))
    assert table.rows[1] == ("wait-k", "1", "2", "3.000", NOTHING, NOTHING)


def test_times_are_summed_up(results):
    table = tables.models(results)
    assert [(row[0], *row[-2:]) for row in table.rows] == [
        ("gma", "2.0", "1.0"),
        ("equal-lag", "1.0", "0.1"),
        ("all systems", "3.0", "1.1"),
    ]


def test_a_table_as_markdown_and_as_csv():
    table = ReportTable("x", "X", (" name", "p > |x|"), [("a, b", "1.0"), ("c", NOTHING)], "")
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.markdown().splitlines()]
    assert lines[0] == ["name", r"p > \|x\|"]
    assert re.fullmatch(r"\|:-+\|-+:\|", table.markdown().splitlines()[1])
    assert lines[2:] == [["a, b", "1.0"], ["c", "–"]]
    assert table.csv() == 'name,p > |x|\n"a, b",1.0\nc,\n'


def test_what_is_not_there_makes_no_table(results):
    few = replace(results, rows=results.rows[:1], comparisons=(), unmatched={}, training={})
    assert [table.name for table in tables.tables_of(few)] == ["curve"]
