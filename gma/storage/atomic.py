"""Atomic file writes: a file is whole or absent, whenever the process or the machine stops."""

import os
from collections.abc import Callable
from pathlib import Path

# distinctive: leftovers are deleted, and a user's own .tmp file must not be
TEMPORARY = ".gma.tmp"


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file in the same folder, sync it to disk, and rename it to `path`."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        # created here, so that it gets the usual permissions whoever fills it
        temporary.touch()
        write(temporary)
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _synchronise(path.parent)


def replace_text(path: Path, text: str) -> None:
    replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def remove_temporaries(folder: Path) -> None:
    """Delete what killed processes left half written in `folder`."""
    for leftover in folder.glob(f"*{TEMPORARY}"):
        leftover.unlink(missing_ok=True)


def _synchronise(folder: Path) -> None:
    """A new name in a folder is only safe once the folder is; Windows opens no folder, and needs no such step."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
