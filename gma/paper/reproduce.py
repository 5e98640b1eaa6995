"""`gma reproduce`: trains, sweeps and compares every system of the paper. What was cut off goes on."""

import shlex
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from rich.console import Console

from gma import config
from gma.config import Config
from gma.config.toml import toml_value
from gma.evaluation import sweep
from gma.evaluation.evaluate import compare_logs
from gma.evaluation.inputs import load_gold, load_log
from gma.evaluation.sweep import Point
from gma.metrics import GoldLinks
from gma.model import directory
from gma.model.directory import ModelDirectoryError
from gma.paper import report, systems
from gma.paper.equal_lag import Comparison, nearest_setting
from gma.paper.results import Results, Row, Training
from gma.paper.systems import WAIT_K, Model, System
from gma.paper.times import Times
from gma.storage import foreign, tensor_file
from gma.terminal import say
from gma.training import run, segmenter

CORPUS, SWEEP, EQUAL_LAG, TIMES = "corpus", "sweep", "equal-lag", "times.json"
# how many training sentences are labelled with meaning units
SEGMENTED = 5000
# gold links of the corpus's test split, where it has some
LINKS = "test.align"


class Stopped(Exception):
    """A signal has ended a training; the same command goes on from there."""

    def __init__(self, signal: int):
        super().__init__(f"stopped by signal {signal}")
        self.signal = signal


def reproduce(
    recipe: str,
    folder: Path,
    console: Console,
    *,
    names: Sequence[str] = (),
    group: str | None = None,
    overrides: Sequence[str] = (),
) -> None:
    """Do what is left to do of the chosen systems, then write tables and figures of all that is in `folder`.

    Args:
        names, group: of the systems; if nothing is given, the recipe's standard ones.
        overrides: `section.key=value`, for every system.
    """
    work = Reproduction(systems.recipe_named(recipe), folder, console, overrides)
    standard = () if group else systems.budget_of(recipe).standard
    chosen = systems.choose(work.plan, names or standard, group)
    # finds a wrong override before anything is trained; models that are not chosen may be shared by those that are
    for system in work.plan:
        for model in system.models:
            work.config_of(model)
    folder.mkdir(parents=True, exist_ok=True)
    for place, system in enumerate(chosen):
        say(console, f"[{place + 1} of {len(chosen)}] {system.title}{work.time_left(chosen[place:])}")
        work.make(system)
    for path in report.write(work.results(), folder):
        say(console, f"written: {path}")


class Reproduction:
    """A folder with a model directory for every model, and one sweep of them all."""

    def __init__(self, recipe: str, folder: Path, console: Console, overrides: Sequence[str] = ()):
        self.recipe, self.folder, self.console, self.overrides = recipe, folder, console, tuple(overrides)
        self.plan = systems.plan(recipe)
        self.times = Times(folder / TIMES)

    def config_of(self, model: Model) -> Config:
        """The recipe, the budget that all share, what makes the system, and what the caller wants otherwise."""
        corpus = f"data.folder={toml_value(str(self.folder / CORPUS))}"
        trained = self.model(model.under) if model.under else model
        budget = systems.budget_of(self.recipe).overrides
        return config.load(self.recipe, [*budget, corpus, *trained.overrides, *self.overrides]).config

    def model(self, name: str) -> Model:
        return next(model for system in self.plan for model in system.models if model.name == name)

    def make(self, system: System) -> None:
        """Train and sweep it."""
        for model in system.models:
            with self.times.of(model.name, self.config_of(model).training.updates):
                self.train(model)
                self.measure(model, system.latencies_of(model) or None, SWEEP)

    def train(self, model: Model) -> None:
        """Make the model directory, or go on making it."""
        if model.under is not None:
            self.train(self.model(model.under))
            # unless that was done with the same weights
            under, folder = self.folder / model.under, self.folder / model.name
            if not _is_segmented(under, folder):
                segmenter.segment(under, folder, self.console, limit=SEGMENTED)
            return
        outcome = run.train(self.config_of(model), self.folder / model.name, self.console)
        if outcome.signal:
            raise Stopped(outcome.signal)

    def measure(self, model: Model, latencies: Sequence[float] | None, output: str) -> list[Point]:
        """Evaluate a trained model, unless that was done before; all points of `output`."""
        folders = [self.folder / model.name]
        return sweep.measure(folders, latencies, self.folder / output, self.console, gold=self.gold())

    def gold(self) -> list[GoldLinks] | None:
        """Links of the test split, where the corpus has them."""
        path = Path(self.config_of(self.plan[0].models[0]).data.folder) / LINKS
        return load_gold(path) if path.exists() else None

    def results(self) -> Results:
        """All that is in the folder."""
        path = self.folder / SWEEP / sweep.CURVE
        points = {(point.system, point.delta): point for point in (sweep.load_curve(path) if path.exists() else [])}
        rows = [row for system in self.plan for row in self._rows(system, points)]
        comparisons, unmatched = self._compare(rows)
        chosen, seeds = self.config_of(self.plan[0].models[0]), systems.budget_of(self.recipe).seeds
        command = ["gma", "reproduce", "--recipe", self.recipe, "--folder", str(self.folder), *self.overrides]
        return Results(
            recipe=self.recipe,
            command=shlex.join(command),
            config=chosen,
            rows=tuple(rows),
            comparisons=tuple(comparisons),
            unmatched=unmatched,
            gold=self.gold(),
            training={row.model.name: self._training(row.model) for row in rows},
            times=self.times.finished(),
            seeds=seeds if len(seeds) > 1 else (chosen.training.seed,),
        )

    def time_left(self, remaining: Sequence[System]) -> str:
        """Estimated from the mean time of the models that are finished, in this call and earlier ones."""
        finished = self.times.finished()
        missing = [model for system in remaining for model in system.models if model.name not in finished]
        if not missing or not finished:
            return ""
        mean = sum(spent.wall for spent in finished.values()) / len(finished)
        return f", about {timedelta(seconds=round(mean * len(missing)))} left"

    def _rows(self, system: System, points: dict[tuple[str, float | None], Point]) -> list[Row]:
        """Of a system; none of a seed unless every point is there."""
        rows: list[Row] = []
        for seed in sorted({model.seed for model in system.models}):
            models = [model for model in system.models if model.seed == seed]
            keys = [(model, latency) for model in models for latency in system.latencies_of(model) or (None,)]
            if not all((model.name, latency) in points for model, latency in keys):
                continue
            for model, latency in keys:
                log = sweep.log_path(self.folder / SWEEP, model.name, latency)
                rows.append(Row(system, model, points[model.name, latency], log, _length_ratio(log)))
        return rows

    def _compare(self, rows: Sequence[Row]) -> tuple[list[Comparison], dict[tuple[str, str], tuple[Row, ...]]]:
        """Systems with wait-k at equal lag, and wait-k's rows with a lag that the system has at no setting."""
        budget = systems.budget_of(self.recipe)
        comparisons: list[Comparison] = []
        unmatched: dict[tuple[str, str], tuple[Row, ...]] = {}
        for name in budget.compared:
            for lag in budget.lags:
                missing: list[Row] = []
                for seed in range(len(budget.seeds)):
                    ours, theirs = (
                        [row for row in rows if row.system.name == chosen and row.model.seed == seed]
                        for chosen in (name, WAIT_K)
                    )
                    if ours and theirs:
                        found, without = self._compare_models(ours, theirs, lag)
                        comparisons += found
                        missing += without
                unmatched[name, lag] = tuple(missing)
        return comparisons, unmatched

    def _compare_models(
        self, ours: Sequence[Row], theirs: Sequence[Row], lag: str
    ) -> tuple[list[Comparison], list[Row]]:
        """One model with one of wait-k's."""
        swept, model = {row.point.delta: row.point for row in ours if row.point.delta is not None}, ours[0].model
        tried = dict(swept)

        def lag_of(delta: float) -> float:
            found = self.measure(model, [delta], EQUAL_LAG)
            tried[delta] = next(point for point in found if (point.system, point.delta) == (model.name, delta))
            return getattr(tried[delta], lag)

        with self.times.of(EQUAL_LAG, self.config_of(model).training.updates):
            settings = [
                nearest_setting(
                    getattr(row.point, lag), {delta: getattr(point, lag) for delta, point in tried.items()}, lag_of
                )
                for row in theirs
            ]
        comparisons, unmatched = [], []
        lags = [getattr(point, lag) for point in swept.values()]
        for row, delta in zip(theirs, settings):
            folder = self.folder / (SWEEP if delta in swept else EQUAL_LAG)
            differences = compare_logs(load_log(row.log), load_log(sweep.log_path(folder, model.name, delta)))
            comparison = Comparison(
                row.point,
                tried[delta],
                differences["bleu"],
                differences["al"],
                ours[0].system.name,
                lag,
                model.seed,
            )
            if comparison.is_equal or min(lags) <= getattr(row.point, lag) <= max(lags):
                comparisons.append(comparison)
            else:
                unmatched.append(row)
        return comparisons, unmatched

    def _training(self, model: Model) -> Training:
        folder = self.folder / (model.under or model.name)
        path = folder / directory.TRAINING
        record = foreign.read_json(path)
        try:
            return Training(
                parameters=record["parameters"],
                updates=record["update"],
                loss=record["validation"]["loss"],
            )
        except (KeyError, TypeError) as error:
            raise foreign.ForeignFile(f"{path}: lacks {error}; expected what `gma train` has written") from error


def _length_ratio(log: Path) -> float:
    """Words written by the words of the references."""
    instances = load_log(log)
    written, wanted = (
        sum(len(text.split()) for text in side)
        for side in ((one.prediction for one in instances), (one.reference for one in instances))
    )
    return written / max(1, wanted)


def _is_segmented(under: Path, folder: Path) -> bool:
    """Whether `folder` holds a segmenter that was made for the model in `under` as it is now."""
    try:
        directory.load(folder)
    except ModelDirectoryError:
        return False
    before, now = (tensor_file.digest(place / directory.MODEL) for place in (folder, under))
    return before == now
