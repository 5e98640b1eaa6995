"""The reproduction: what is planned, that it goes on where it was cut off, and what stands in its tables."""

import csv
import math
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from gma import config
from gma.config import ConfigError
from gma.corpus import generated, prepare
from gma.errors import UserError
from gma.evaluation import figures, sweep
from gma.evaluation.inputs import load_log
from gma.paper import published, reproduce, systems, tables
from gma.paper.reproduce import Reproduction
from gma.paper.systems import Budget
from gma.paper.times import Spent
from gma.training import run
from tests.support import generated_statistics, tiny_model

TINY = (
    "model.preset=custom",
    "model.width=16",
    "model.feed_forward=32",
    "model.heads=2",
    "model.encoder_layers=1",
    "model.decoder_layers=2",
    "data.generated=0",
    "training.tokens=256",
    "training.warmup_updates=10",
    "training.device=cpu",
)
SMALL = Budget(
    overrides=("training.updates=6", "training.minutes=0", "training.validate_every=0", "training.save_every=3"),
    delta=(0.0, 7.0),
    deltas=(-2.0, 1.0, 7.0),
    ks=(1.0, 5.0, 20.0),
    averages=(0.1,),
    variances=(0.1,),
    thresholds=(0.001, 0.5),
)
# what depends on the time of day
TIMED = "reproduction-models.csv"


def make_corpus(folder: Path) -> tuple[str, ...]:
    """Overrides for a small corpus with gold links, in which everything is quick."""
    overrides = [*TINY, f"data.root={folder}", f"data.folder={folder / 'prepared'}"]
    pairs = generated.generate(260, seed=4)
    for name, part in (("train", pairs[32:]), ("valid", pairs[12:32]), ("test", pairs[:12])):
        generated.write(folder, part, name)
        overrides += [f'data.{name}.source=["{name}.de"]', f'data.{name}.target=["{name}.en"]']
    prepared = folder / "prepared"
    prepare.prepare(config.load("generated", overrides).config.data, prepared, Console(quiet=True))
    (folder / "test.align").rename(prepared / reproduce.LINKS)
    return tuple(overrides)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> tuple[str, ...]:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Little to do, and no vector graphics: they take longer than what they show."""
    monkeypatch.setitem(systems.BUDGETS, "generated", SMALL)
    monkeypatch.setattr(reproduce, "SEGMENTED", 20)
    monkeypatch.setattr(figures, "save", lambda figure, path: [])


def make(folder: Path, corpus: tuple[str, ...], *names: str) -> dict[str, str]:
    """Reproduce these systems; the files of the report that do not depend on the time, by name."""
    reproduce.reproduce("generated", folder, Console(quiet=True), names=names, overrides=corpus)
    return {path.name: path.read_text() for path in sorted(folder.glob("reproduction-*.csv")) if path.name != TIMED}


def rows_of(files: dict[str, str], name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(files[f"reproduction-{name}.csv"].splitlines()))


def test_a_recipe_may_be_named_by_its_beginning():
    assert systems.recipe_named("multi30k") == "multi30k-de-en"
    for wrong in ("", "x", "multi30k-de-en-x"):
        with pytest.raises(UserError, match="expected one of generated, multi30k-de-en, europarl-de-en"):
            systems.recipe_named(wrong)


@pytest.mark.parametrize("recipe", systems.BUDGETS)
def test_every_planned_model_has_a_valid_config_and_the_same_size_and_updates(recipe, tmp_path, monkeypatch):
    monkeypatch.undo()
    work = Reproduction(recipe, tmp_path, Console(quiet=True))
    models = [model for system in work.plan for model in system.models]
    assert len({model.name for model in models}) == len(models)
    configs, seeds = [work.config_of(model) for model in models], systems.budget_of(recipe).seeds
    for model, chosen in zip(models, configs):
        training = chosen.training
        assert training.seed == seeds[model.seed]
        assert (chosen.model, chosen.data) == (configs[0].model, configs[0].data)
        assert training.model_copy(update={"seed": seeds[0]}) == configs[0].training
    trained = {(chosen.attention, chosen.training.seed) for chosen in configs}
    assert len(trained) == len([model for model in models if model.under is None])
    assert configs[0].training.updates > 0
    assert configs[0].training.minutes == 0


def test_the_plan_has_every_system_and_every_ablation_of_the_paper():
    plan = systems.plan("generated")
    titles = [system.title for system in plan if system.group == "systems"]
    assert titles == ["Offline", "Wait-k", "MU", "MMA-H", "MMA-IL", "GMA"]
    assert {system.name for system in plan if system.group == "ablations"} == published.ABLATIONS.keys()
    for system in plan:
        assert bool(system.symbol) == bool(system.latencies or system.models[0].value is not None)


@pytest.mark.parametrize(
    ("names", "group", "expected"),
    [
        ((), "systems", ["offline", "wait-k", "mu", "mma-h", "mma-il", "gma"]),
        (("gma", "offline"), None, ["offline", "gma"]),
        (("gma", "prior-none"), "ablations", ["prior-none"]),
    ],
)
def test_choosing(names, group, expected):
    assert {*systems.budget_of("multi30k").standard} <= {system.name for system in systems.plan("multi30k")}
    assert [system.name for system in systems.choose(systems.plan("generated"), names, group)] == expected


@pytest.mark.parametrize("content", ["", "[]", '{"gma": 3}', '{"gma": {"wall": 1.0}}', "\x00"])
def test_a_damaged_record_of_times_is_named(tmp_path, content):
    (tmp_path / reproduce.TIMES).write_text(content)
    with pytest.raises(UserError, match=r"times\.json is not as this command writes it; delete it"):
        Reproduction("generated", tmp_path, Console(quiet=True))


def test_what_there_is_not_is_refused_by_name(tmp_path, monkeypatch, capsys):
    plan = systems.plan("generated")
    with pytest.raises(UserError, match="there is no system 'gna'; expected some of offline, wait-k"):
        systems.choose(plan, ["gna"])
    with pytest.raises(UserError, match="--only is 'all'; expected systems or ablations"):
        systems.choose(plan, group="all")
    with pytest.raises(UserError, match="none of gma is among the ablations"):
        systems.choose(plan, ["gma"], "ablations")
    assert tiny_model.command(monkeypatch, "reproduce", "--recipe", "iwslt15-en-vi", "--folder", tmp_path / "x") == 2
    assert "nothing is planned for the recipe 'iwslt15-en-vi'" in capsys.readouterr().err
    assert tiny_model.command(monkeypatch, "reproduce", "model.sise=3", "--folder", tmp_path / "x") == 2
    assert "model.sise" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_an_override_that_some_system_cannot_take_is_refused_before_anything_is_trained(tmp_path, corpus):
    with pytest.raises(ConfigError, match=r"attention.delta = 2.0 .* means nothing with attention.policy = 'offline'"):
        make(tmp_path / "run", (*corpus, "attention.delta=2.0"), "gma")
    assert not (tmp_path / "run").exists()


def test_training_may_be_limited_by_time_alone(tmp_path, corpus):
    folder = tmp_path / "a folder"
    make(folder, (*corpus, "training.updates=0", "training.minutes=0.005"), "gma")
    (row, _) = csv.DictReader((folder / TIMED).read_text().splitlines())
    assert (row["model"], row["minutes"] != "") == ("gma", True)
    assert int(row["updates"]) > 0
    # as a shell takes it
    assert f"gma reproduce --recipe generated --folder '{folder}' " in (folder / "reproduction.md").read_text()


def test_a_whole_reproduction(tmp_path, corpus):
    files = make(
        tmp_path / "run", corpus, "offline", "wait-k", "mu", "mma-h", "mma-il", "gma", "ablation-gma", "prior-none"
    )
    curve = rows_of(files, "curve")
    assert [(row["system"], row["setting"]) for row in curve] == [
        ("Offline", ""),
        *(("Wait-k", f"k = {k}") for k in (1, 5, 20)),
        *(("MU", f"θ = {threshold}") for threshold in (0.001, 0.5)),
        ("MMA-H", "λ = 0.1"),
        ("MMA-IL", "λ = 0.1"),
        *(("GMA", f"δ = {delta}") for delta in (-2, 1, 7)),
    ]
    points = {
        (point.system, point.delta): point for point in sweep.load_curve(tmp_path / "run" / "sweep" / "curve.json")
    }
    assert float(curve[1]["AL (word)"]) == pytest.approx(points["wait-k", 1.0].al, abs=0.005)
    assert float(curve[-1]["CW (paper)"]) == pytest.approx(points["gma", 7.0].paper_cw, abs=0.005)
    assert points["gma", 1.0].position_aer is not None
    assert points["offline", None].within == 1.0
    assert points["mu", 0.5].within is None
    assert [row["variant"][:3] for row in rows_of(files, "ablation")] == ["GMA", "no "]
    assert rows_of(files, "ablation")[1]["BLEU, published"] == "20.84"
    assert rows_of(files, "sharing")[0]["predicted alignments"] == "2 × 1 = 2"
    assert [row["AER, published"] for row in rows_of(files, "alignment")] == ["0.49", "0.61", "0.76"]
    assert [row["system"] for row in rows_of(files, "steps")][-1] == tables.TRUTH
    text = (tmp_path / "run" / "reproduction.md").read_text()
    assert text.startswith("# Every system and every ablation of the paper\n")
    assert "```sh\ngma reproduce --recipe generated --folder " in text
    assert "seed 1 for all" in text
    least = generated_statistics.statistics(generated.generate(260, seed=4)[:12]).waiting
    assert f"as soon as its gold-aligned source words have been read is AL {least:.2f}," in text


def test_seeds_models_for_each_k_and_the_other_systems_compared(tmp_path, corpus, monkeypatch):
    """As for europarl-de-en, on the smallest budget there is."""
    seeded = replace(
        SMALL,
        deltas=(-2.0, 7.0),
        ks=(1.0, 20.0),
        each=(1.0, 3.0),
        gains=(3.0, 0.01),
        shares=(0.1, 2.0),
        seeds=(1, 2),
        compared=("gma", "gain"),
        lags=("al", "laal"),
        with_successors=True,
    )
    monkeypatch.setitem(systems.BUDGETS, "generated", seeded)
    files = make(tmp_path, corpus, "wait-k", "wait-k-each", "itst", "gma", "gain")
    curve = rows_of(files, "curve")
    assert [(row["system"], row["setting"]) for row in curve] == [
        ("Wait-k", "k = 1"),
        ("Wait-k", "k = 20"),
        ("Wait-k, one model per k", "k = 1"),
        ("Wait-k, one model per k", "k = 3"),
        ("ITST", "θ = 0.1"),
        ("ITST", "θ = 2"),
        ("GMA", "δ = -2"),
        ("GMA", "δ = 7"),
        ("Gain", "θ = 3"),
        ("Gain", "θ = 0.01"),
    ]
    points = {(point.system, point.delta): point for point in sweep.load_curve(tmp_path / "sweep" / "curve.json")}
    both = [points["gain", 3.0], points["gain-seed-2", 3.0]]
    assert curve[8]["BLEU, each seed"] == " / ".join(f"{point.bleu:.2f}" for point in both)
    assert float(curve[8]["LAAL (word)"]) == pytest.approx(sum(point.laal for point in both) / 2, abs=0.005)
    ratios = []
    for name in ("gain", "gain-seed-2"):
        log = load_log(sweep.log_path(tmp_path / "sweep", name, 3.0))
        ratios.append(sum(len(one.prediction.split()) for one in log) / sum(len(one.reference.split()) for one in log))
    assert float(curve[8]["length"]) == pytest.approx(sum(ratios) / 2, abs=0.005)
    compared = {name for name in files if name.startswith("reproduction-equal-lag")}
    of_gain = [f"reproduction-equal-lag-gain-{lag}.csv" for lag in ("al", "laal")]
    assert compared == {"reproduction-equal-lag.csv", "reproduction-equal-lag-gma-laal.csv", *of_gain}
    for name in compared:
        rows = list(csv.DictReader(files[name].splitlines()))
        assert [(row["Wait-k"], row["seed"]) for row in rows] == [
            (f"k = {k}", seed) for seed in ("1", "2") for k in (1, 20)
        ]
    assert "reproduction-successors.csv" in files
    text = (tmp_path / "reproduction.md").read_text()
    assert "with each of the seeds 1, 2" in text
    assert "## Gain against Wait-k at equal LAAL" in text
    assert "Means over the seeds 1, 2" in text


def test_it_goes_on_where_it_was_killed_and_ends_with_the_same_tables(tmp_path, corpus, monkeypatch):
    names = ("wait-k", "gma")
    whole = make(tmp_path / "whole", corpus, *names)
    trained = []
    train = run.train

    def interrupted(chosen, folder, console):
        """Killed without warning after the first system is done, and by a signal half-way through the second."""
        trained.append(folder.name)
        if folder.name == "gma" and trained.count("gma") == 1:
            raise KeyboardInterrupt
        if trained.count("gma") == 2 and folder.name == "gma":
            halved = chosen.model_copy(update={"training": chosen.training.model_copy(update={"updates": 3})})
            return train(halved, folder, console)._replace(signal=signal.SIGTERM)
        return train(chosen, folder, console)

    monkeypatch.setattr(run, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "parts", corpus, *names)
    with pytest.raises(reproduce.Stopped) as stopped:
        make(tmp_path / "parts", corpus, *names)
    assert stopped.value.signal == signal.SIGTERM
    assert not list((tmp_path / "parts").glob("reproduction*"))
    parts = make(tmp_path / "parts", corpus, *names)
    assert trained == ["wait-k", "gma"] * 3
    assert parts.keys() >= {"reproduction-curve.csv", "reproduction-equal-lag.csv", "reproduction-steps.csv"}
    assert parts == whole
    evaluated = []
    monkeypatch.setattr(sweep, "evaluate", lambda *arguments, **options: evaluated.append(options))
    times = (tmp_path / "parts" / "times.json").read_text()
    assert make(tmp_path / "parts", corpus, "gma") == whole
    assert evaluated == []
    assert (tmp_path / "parts" / "times.json").read_text() == times


def test_a_segmenter_is_made_again_only_for_another_model(tmp_path, corpus, monkeypatch):
    made = []
    segment = reproduce.segmenter.segment
    monkeypatch.setattr(
        reproduce.segmenter, "segment", lambda *args, **options: made.append(1) or segment(*args, **options)
    )
    make(tmp_path, corpus, "mu")
    make(tmp_path, corpus, "mu")
    assert len(made) == 1
    make(tmp_path, (*corpus, "training.updates=7"), "mu")
    assert len(made) == 2


def test_the_time_left_is_that_of_the_models_left(tmp_path):
    work = Reproduction("generated", tmp_path, Console(quiet=True))
    chosen = systems.choose(work.plan, ["offline", "wait-k", "gma"])
    assert work.time_left(chosen) == ""
    work.times.spent = {
        "offline": Spent(60.0, 1.0, 6),
        "gma": Spent(1e6, 1.0, None),
    }
    assert work.time_left(chosen[1:]) == ", about 0:02:00 left"


def test_published_numbers_are_consistent():
    """The paper prints GMA at δ = 1 on De→En base three times."""
    (row,) = [row for row in published.CURVES["WMT15 De→En, base"] if row.delta == 1.0]
    assert (row.al, row.bleu) == published.REFERENCE == published.ABLATIONS["ablation-gma"]
    assert all(0 < row.ap < 1 and math.isfinite(row.dal) for rows in published.CURVES.values() for row in rows)
