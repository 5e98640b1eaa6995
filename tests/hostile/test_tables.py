"""What commands print in a pipe: tables that fit 80 columns and lose nothing, and lines without blanks behind them."""

from typing import TextIO, cast

import pytest
from rich.console import Console

from gma.cli import demo, demo_train, info
from gma.cli.info import config
from gma.config import recipes
from gma.corpus.prepare import SideSummary, SplitSummary, Summary
from gma.evaluation import sweep, tables
from gma.metrics.bootstrap import BootstrapDifference
from gma.model import directory
from gma.terminal import Output

WIDTH = 80


@pytest.fixture
def printed(monkeypatch, capsys):
    """Gives the lines of everything that commands print into a pipe."""
    console = Console(file=cast(TextIO, Output()), width=WIDTH)
    for module in (info, demo, demo_train):
        monkeypatch.setattr(module, "console", console)

    def read(thing=None) -> list[str]:
        if thing is not None:
            console.print(thing)
        lines = capsys.readouterr().out.split("\n")
        assert len(lines) > 3
        assert all(len(line) <= WIDTH for line in lines), [line for line in lines if len(line) > WIDTH]
        assert all(line == line.rstrip() for line in lines)
        return lines

    return read


@pytest.mark.parametrize("recipe", recipes())
def test_every_setting_of_every_recipe(printed, recipe):
    config([recipe, f"data.folder=/a/folder/{'with/a/long/name/' * 10}"])
    shown = "".join(line.replace("│", " ") for line in printed())
    for key in ("data.source_vocabulary", "attention.delta", "training.validate_sentences", f"recipe {recipe}:"[:20]):
        assert key in shown
    assert "…" not in shown


def test_backends_and_policies(printed, monkeypatch):
    from gma_kernels import backends

    reason = "nothing --this-option-has-no-blank-in-it-and-is-longer-than-a-column " * 3
    long = {name: status._replace(reason=reason) for name, status in backends().items()}
    monkeypatch.setattr("gma_kernels.backends", lambda: long)
    info.info()
    lines = printed()
    assert not any("…" in line for line in lines)


def test_a_prepared_corpus(printed):
    many = 10**9
    side = SideSummary(30 * many, many // 100)
    splits = {name: SplitSummary(many, many - 4, dict.fromkeys(("bad", "empty", "length", "ratio"), many), side, side)
              for name in ("train", "valid", "test")}  # fmt: skip
    lines = printed(Summary(splits, 32_000, 32_000, False, 1e4, 1e5, 1e6, 1 << 40, 1 << 42).table())
    assert not any("…" in line for line in lines)


POINT = {field.name: 0 for field in sweep.Point.__dataclass_fields__.values()}


@pytest.mark.parametrize("number", [0.004, 9.99, -10.21, 99.99, 1234.5])
def test_a_sweep(printed, number):
    given = {"system": "a-model-with-a-long-name", "bleu_signature": "s" * 60, "past_the_end": 1.0, "delta": 0.05}
    given |= {"bleu": 45.6, "chrf": 67.8, "ap": 0.98}
    given |= dict.fromkeys(("al", "laal", "dal", "cw", "paper_al"), number)
    point = sweep.Point(**{**POINT, **given})
    lines = printed(sweep.table([point]))
    shown = f"{number:.2f}" if number < 100 else f"{number:.0f}"
    assert sum(line.count(shown) for line in lines) == 5
    assert not any("…" in line for line in lines)


def test_a_comparison(printed):
    row = BootstrapDifference(baseline=99.99, system=9.99, difference=-100.0, low=-100.0, high=-99.5, p_value=0.0001,
                              resamples=10**6, seed=2**31, confidence=0.95)  # fmt: skip
    lines = printed(tables.comparison({"bleu": row, "al": row}, "a/folder/" + "with/a/long/name/" * 6))
    assert any("-100.00 … -99.50" in line for line in lines)


def test_the_latencies_of_the_demo(printed):
    loaded = directory.load(directory.find("de-en"))
    lines = printed(demo._latencies(loaded, demo.SHOWN))
    assert any("δ" in line for line in lines)


@pytest.mark.parametrize(
    ("argv", "which", "expected"),
    [
        ("/opt/venv/bin/gma", "/opt/venv/bin/gma", "gma"),
        ("/opt/venv/bin/gma", None, "/opt/venv/bin/gma"),
        ("/opt/venv/bin/gma", "/usr/bin/gma", "/opt/venv/bin/gma"),
        (".venv/bin/gma", None, ".venv/bin/gma"),
    ],
)
def test_the_demo_names_the_command_that_is_there(monkeypatch, argv, which, expected):
    monkeypatch.setattr("sys.argv", [argv])
    monkeypatch.setattr("shutil.which", lambda name: which)
    assert demo.own_command() == expected


def test_the_demo_names_the_interpreter_where_there_is_no_command(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/gma/__main__.py"])
    monkeypatch.setattr("sys.executable", "/opt/bin/python")
    assert demo.own_command() == "/opt/bin/python -m gma"
