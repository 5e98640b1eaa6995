"""How long each model of a reproduction took, over all calls that were not killed outright."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from gma.errors import UserError
from gma.storage import atomic, foreign


class Spent(NamedTuple):
    """Seconds by the clock and of all processors; `goal`: the updates that were finished in them, None for none yet."""

    wall: float = 0.0
    cpu: float = 0.0
    goal: int | None = None


class Times:
    """What was spent on each model, kept in a file."""

    def __init__(self, path: Path):
        self.path = path
        self.spent = _read(path) if path.exists() else {}

    def finished(self) -> dict[str, Spent]:
        """Of the models that are finished, by name."""
        return {name: spent for name, spent in self.spent.items() if spent.goal is not None}

    @contextmanager
    def of(self, name: str, goal: int) -> Iterator[None]:
        """Add the time spent inside, unless `goal` updates were finished before: to find that out is not counted."""
        wall, cpu = time.monotonic(), time.process_time()
        before = self.spent.get(name, Spent())
        reached = before.goal
        try:
            yield
            reached = goal
        finally:
            if before.goal != goal:
                now = before.wall + time.monotonic() - wall, before.cpu + time.process_time() - cpu
                self.spent[name] = Spent(*now, reached)
                record = {name: spent._asdict() for name, spent in self.spent.items()}
                atomic.replace_text(self.path, json.dumps(record, indent=2) + "\n")


def _read(path: Path) -> dict[str, Spent]:
    try:
        record = foreign.read_json(path)
        return {name: Spent(spent["wall"] + 0.0, spent["cpu"] + 0.0, spent["goal"]) for name, spent in record.items()}
    except (AttributeError, KeyError, TypeError, ValueError, UserError) as error:
        raise UserError(f"{path} is not as this command writes it; delete it to count from now on") from error
