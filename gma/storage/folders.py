"""What a folder is for: files of one kind must not overwrite those of another that have the same names."""

import os
from collections.abc import Collection
from pathlib import Path

from gma.errors import UserError

CORPUS, RUN, MODEL = "a prepared corpus", "a training run", "a model"
# files that mark each kind of folder; a run is checked first, as it also holds a model
MARKS = {RUN: ("checkpoints", "history.jsonl"), MODEL: ("model.safetensors", "config.toml"), CORPUS: ("corpus.json",)}


def real(path: Path) -> Path:
    """The path without links; unlike `Path.resolve`, that of links which lead in a circle, too."""
    return Path(os.path.realpath(path))


def kind_of(folder: Path) -> str | None:
    """Of a folder that has been written to, or None."""
    return next((kind for kind, names in MARKS.items() if any((folder / name).exists() for name in names)), None)


def check_free_for(kinds: Collection[str], folder: Path, remedy: str) -> None:
    """UserError if `folder` exists and is of none of `kinds`, or no folder; nothing has been written then."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; expected a folder: {remedy}")
    kind = kind_of(folder)
    if kind is not None and kind not in kinds:
        raise UserError(f"{folder} holds {kind}, whose files would be overwritten; {remedy}")
