"""What a reproduction has measured: the points of every system, in the order of the plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from gma.config import Config
from gma.evaluation.evaluate import compare_logs
from gma.evaluation.inputs import load_log
from gma.evaluation.instances import Instance
from gma.evaluation.sweep import Point
from gma.metrics import BootstrapDifference, CorpusLatency, GoldLinks, corpus_latency
from gma.metrics.step_sizes import StepSizes, monotone_delays, step_sizes
from gma.paper.equal_lag import Comparison
from gma.paper.systems import REFERENCE, WAIT_K, Model, System
from gma.paper.times import Spent


class Row(NamedTuple):
    """A system at one latency."""

    system: System
    model: Model
    point: Point
    log: Path
    length: float | None = None  # words written, by the words of the references

    @property
    def setting(self) -> str:
        """'δ = 2', or nothing where there is nothing to set."""
        return self.system.setting(self.model, self.point.delta)


class Training(NamedTuple):
    """Of one model; `loss` is the validation loss after the last update."""

    parameters: int
    updates: int
    loss: float


@dataclass(frozen=True)
class Results:
    """Of one recipe on one test set.

    Attributes:
        seeds: of the trainings, in the order that models count them.
        command: that makes them.
        config: of the first model; all share what the report says of it.
        rows: of all systems whose every point is there.
        comparisons: systems with wait-k at equal lag.
        unmatched: by a system's name and a latency, wait-k's rows with a lag that it has at no setting of its curve.
        gold: true links of every sentence of the test set; None where there are none.
        training: by the model's name.
        times: of models and of the search for equal lag.
    """

    recipe: str
    command: str
    config: Config
    rows: tuple[Row, ...]
    comparisons: tuple[Comparison, ...]
    unmatched: Mapping[tuple[str, str], tuple[Row, ...]]
    gold: Sequence[GoldLinks] | None
    training: Mapping[str, Training]
    times: Mapping[str, Spent]
    seeds: tuple[int, ...] = (1,)

    def of(self, name: str, seed: int = 0) -> list[Row]:
        """The rows of a system, of one seed."""
        return [row for row in self.rows if row.system.name == name and row.model.seed == seed]

    def settings(self, name: str) -> list[list[Row]]:
        """The same with those of all seeds together, setting by setting."""
        made = [rows for seed in range(len(self.seeds)) if (rows := self.of(name, seed))]
        return [list(rows) for rows in zip(*made)]

    def group(self, group: str) -> list[System]:
        """The systems of a group, in the order of the plan."""
        return list(dict.fromkeys(row.system for row in self.rows if row.system.group == group))

    @cached_property
    def similar_lag(self) -> list[Row]:
        """Of every system that does not wait for everything, the row whose AL is nearest to wait-k's middle one.

        A row without a written word, as of a model that failed, has no steps and is left out.
        """
        middle = self.of(WAIT_K)
        if not middle:
            return []
        lag = middle[len(middle) // 2].point.al
        moving = [self.of(system.name) for system in self.group("systems") if system.symbol]
        wrote = [[row for row in rows if row.point.empty < row.point.sentences] for rows in moving]
        return [min(rows, key=lambda row: abs(row.point.al - lag)) for rows in wrote if rows]

    @cached_property
    def steps(self) -> list[tuple[Row, StepSizes]]:
        """How many source words the systems read between two words, at similar lag."""
        return [(row, step_sizes([instance.delays for instance in load_log(row.log)])) for row in self.similar_lag]

    @cached_property
    def true_steps(self) -> StepSizes | None:
        """The same of writing each word as soon as its gold-aligned source words have been read."""
        return None if self._true_delays is None else step_sizes(self._true_delays[1])

    @cached_property
    def least_lag(self) -> CorpusLatency | None:
        """What a policy would lag that always knew what to wait for."""
        if self._true_delays is None:
            return None
        log, delays = self._true_delays
        lengths = [instance.source_length for instance in log]
        return corpus_latency(delays, lengths, [len(instance.reference.split()) for instance in log], convention="word")

    @cached_property
    def differences(self) -> Mapping[str, BootstrapDifference]:
        """BLEU of every ablation's model against that of the reference, by the model's name."""
        reference = self.of(REFERENCE)
        if not reference:
            return {}
        baseline = load_log(reference[0].log)
        return {
            row.model.name: compare_logs(baseline, load_log(row.log))["bleu"]
            for row in self.rows
            if row.system.group == "ablations" and row.system.name != REFERENCE
        }

    @cached_property
    def _true_delays(self) -> tuple[Sequence[Instance], list[list[int]]] | None:
        """The sentences of the test set, and g(i) of writing each word once its gold-aligned source has been read."""
        if self.gold is None or not self.rows:
            return None
        log = sorted(load_log(self.rows[0].log), key=lambda instance: instance.index)
        words = [len(instance.reference.split()) for instance in log]
        links = [self.gold[instance.index].sure for instance in log]
        return log, [monotone_delays(sure, count) for sure, count in zip(links, words)]
