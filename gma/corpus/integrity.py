"""Whether the files of a prepared corpus are those that were prepared: their SHA-256, and every id in the vocabulary.

That takes a while, and is done once: what was found intact is noted beside the corpus, with the moment at which the
system last saw each file change, which no archive can bring along.
"""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gma.errors import UserError
from gma.storage import atomic, foreign
from gma.storage.digest import sha256_of

CHECKED = "checked.json"
AT_ONCE = 1 << 22
REMEDY = "run `gma prepare` again"


class CorpusError(UserError, ValueError):
    """A prepared corpus cannot be used; the message says which file, why, and what to do."""


def check_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """CorpusError unless every file that `manifest` lists is there as it was written."""
    for name, file in manifest["files"].items():
        if Path(name).name != name or not isinstance(file, dict) or not isinstance(file.get("bytes"), int):
            raise CorpusError(f"{folder}: the entry of {name!r} in its manifest is damaged; {REMEDY}")
        path = folder / name
        # a pipe or a device could be read for ever
        size = path.stat().st_size if path.is_file() else None
        if size != file["bytes"]:
            found = "no such file is there" if size is None else f"found {size}"
            raise CorpusError(f"{path}: expected {file['bytes']} bytes, {found}; {REMEDY}")
    if _known(folder) == (now := _state(folder, manifest)):
        return
    for name, file in manifest["files"].items():
        if sha256_of(folder / name) != file.get("sha256"):
            raise CorpusError(f"{folder / name}: altered since it was written, its SHA-256 is another one; {REMEDY}")
    # a folder that cannot be written to is checked every time
    with contextlib.suppress(OSError):
        atomic.replace_text(folder / CHECKED, json.dumps(now) + "\n")


def check_ids(path: Path, tokens: np.ndarray, offsets: np.ndarray, vocabulary: int) -> None:
    """CorpusError unless all ids are below `vocabulary`, and sentences follow one another."""
    for start in range(0, len(tokens), AT_ONCE):
        largest = int(tokens[start : start + AT_ONCE].max())
        if largest >= vocabulary:
            raise CorpusError(f"{path}: has the id {largest}, and the vocabulary {vocabulary} entries; {REMEDY}")
    if len(offsets) > 1 and np.diff(offsets).min() < 0:
        raise CorpusError(f"{path}: a sentence ends before it begins; {REMEDY}")


def _state(folder: Path, manifest: Mapping[str, Any]) -> dict[str, list[Any]]:
    state = {}
    for name, file in manifest["files"].items():
        found = (folder / name).stat()
        state[name] = [file.get("sha256"), found.st_size, str(found.st_ino), str(found.st_ctime_ns)]
    return state


def _known(folder: Path) -> Any:
    try:
        return foreign.read_json(folder / CHECKED)
    except (OSError, foreign.ForeignFile):
        return None
