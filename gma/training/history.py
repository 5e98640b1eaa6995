"""What happened in a run: one JSON line per log entry or validation, and the same numbers for TensorBoard."""

import json
import os
from pathlib import Path
from typing import Any

from gma.errors import UserError
from gma.storage import atomic, foreign

HISTORY = "history.jsonl"
REMEDY = "repair or delete that line"


class History:
    """`history.jsonl` and `tensorboard/` in a run's folder. Every record has `kind` and `update`."""

    def __init__(self, run: Path, update: int):
        """Go on after `update`; later records, of updates that were never saved, are dropped."""
        self.path = run / HISTORY
        kept = [record for record in read(self.path) if record["update"] <= update]
        atomic.replace_text(self.path, "".join(json.dumps(record) + "\n" for record in kept))
        self._file = self.path.open("a", encoding="utf-8")
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(run / "tensorboard", purge_step=update + 1)

    def add(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        # on disk before the next checkpoint: a resumed run must find all lines up to it
        os.fsync(self._file.fileno())
        for key, value in record.items():
            if isinstance(value, int | float) and key != "update":
                self._board.add_scalar(f"{record['kind']}/{key}", value, record["update"])

    def close(self) -> None:
        self._file.close()
        self._board.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The records in order; a last line that was cut off is left out."""
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); put it right, or delete it") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = foreign.parse_json(line, f"{path}, line {number}")
        except foreign.ForeignFile as error:
            if number == len(lines):
                break
            raise UserError(f"{error}; {REMEDY}") from error
        if not isinstance(record, dict) or "kind" not in record or not isinstance(record.get("update"), int):
            raise UserError(f"{path}, line {number}: expected an object with `kind` and `update`; {REMEDY}")
        records.append(record)
    return records
