"""The checkpoints of a run: one file each, written whole, checked when read, the last few kept."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from gma.errors import UserError
from gma.storage import atomic, tensor_file
from gma.storage.tensor_file import DamagedFile

NAME = re.compile(r"update-(\d{8,})\.safetensors")
DAMAGED = ".damaged"


class CheckpointError(UserError, RuntimeError):
    """No checkpoint that can be used, or one that cannot be written; the message says what to do."""


class Checkpoint(NamedTuple):
    path: Path
    tensors: dict[str, Tensor]
    state: dict[str, Any]


class CheckpointFolder:
    """`update-00001234.safetensors`, …, the newest `keep` of them."""

    def __init__(self, folder: Path, keep: int):
        self.folder, self.keep = folder, keep

    def paths(self) -> list[Path]:
        """Oldest first."""
        named = ((NAME.fullmatch(path.name), path) for path in self.folder.glob("update-*.safetensors"))
        return [path for _, path in sorted((int(match[1]), path) for match, path in named if match)]

    def save(self, update: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
        """Write one, and only then delete the oldest beyond `keep`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"update-{update:08}.safetensors"
        try:
            tensor_file.write(path, tensors, state)
        except (OSError, tensor_file.SafetensorError) as error:
            raise CheckpointError(f"{path} could not be written: {error}; the ones before it are intact") from error
        for old in self.paths()[: -self.keep]:
            old.unlink()
        return path

    def newest(self, warn: Callable[[str], object]) -> Checkpoint | None:
        """The newest intact one, or None if there never was any.

        A damaged one is named to `warn` and renamed to `….damaged`, so that it neither counts as kept nor is met again.
        Where only such ones are left it is an error every time: a second call must not begin the run anew over them.
        """
        atomic.remove_temporaries(self.folder)
        for path in reversed(self.paths()):
            try:
                return Checkpoint(path, *tensor_file.read(path))
            except DamagedFile as error:
                aside = path.replace(path.with_name(path.name + DAMAGED))
                warn(f"{error}. Set aside as {aside.name}; trying the checkpoint before it")
            except OSError as error:
                # the file may be whole: resuming from an older one would throw it away
                raise CheckpointError(
                    f"{path} cannot be opened: {error.strerror}; put that right, and try again"
                ) from error
        if damaged := list(self.folder.glob(f"update-*{DAMAGED}")):
            raise CheckpointError(
                f"none of the {len(damaged)} checkpoints in {self.folder} is intact; "
                "train into another folder, or delete this one to start again"
            )
        return None
