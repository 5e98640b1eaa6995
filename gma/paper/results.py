"""What a reproduction has measured: the points of every system, in the order of the plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gma.config import Config
from gma.evaluation.sweep import Point
from gma.metrics import GoldLinks
from gma.paper.equal_lag import Comparison
from gma.paper.systems import Model, System


class Row(NamedTuple):
    """A system at one latency."""

    system: System
    model: Model
    point: Point
    log: Path

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
        command: that makes them.
        config: of the first model; all share what the report says of it.
        rows: of all systems whose every point is there.
        comparisons: GMA with wait-k at equal lag.
        unmatched: wait-k's rows with a lag that GMA has at no δ in the range it was trained with.
        gold: true links of every sentence of the test set; None where there are none.
        training: by the model's name.
        times: of models and of the search for equal lag, seconds by the clock (`wall`) and of all processors (`cpu`).
    """

    recipe: str
    command: str
    config: Config
    rows: tuple[Row, ...]
    comparisons: tuple[Comparison, ...]
    unmatched: tuple[Row, ...]
    gold: Sequence[GoldLinks] | None
    training: Mapping[str, Training]
    times: Mapping[str, Mapping[str, float]]

    def of(self, name: str) -> list[Row]:
        """The rows of a system."""
        return [row for row in self.rows if row.system.name == name]

    def group(self, group: str) -> list[System]:
        """The systems of a group, in the order of the plan."""
        return list(dict.fromkeys(row.system for row in self.rows if row.system.group == group))
