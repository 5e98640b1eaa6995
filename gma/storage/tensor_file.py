"""Named tensors and a JSON record in one safetensors file that knows whether it is intact.

Reading one executes nothing: there is no pickle in it. The digest covers names, dtypes, shapes, bytes and the record,
so that a truncated or altered file is never taken for a good one.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, safe_open, save_file
from torch import Tensor, nn

from gma.errors import UserError
from gma.storage import atomic, foreign

RECORD, DIGEST = "gma_record", "gma_digest"


class DamagedFile(UserError, ValueError):
    """A file that is truncated, altered, or not what it should be; the message names it and the reason."""


class Contents(NamedTuple):
    tensors: dict[str, Tensor]
    record: dict[str, Any]


def write(path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Write atomically. No two of the tensors may share memory: see `own_tensors`."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(record, sort_keys=True)
    metadata = {RECORD: text, DIGEST: _digest(plain, text)}
    atomic.replace(path, lambda temporary: save_file(plain, temporary, metadata))


def read(path: Path) -> Contents:
    """Read and check; DamagedFile if anything at all is wrong with the contents, OSError if it cannot be opened."""
    # opened first: what safetensors raises for a missing and for a damaged file differs between its versions
    path.open("rb").close()
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        tensors = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise DamagedFile(f"{path}: not a whole safetensors file ({error})") from error
    if RECORD not in metadata or DIGEST not in metadata:
        raise DamagedFile(f"{path}: no digest in it; expected a file written by gma")
    if metadata[DIGEST] != _digest(tensors, metadata[RECORD]):
        raise DamagedFile(f"{path}: its digest does not match its contents, it was altered after it was written")
    record = foreign.parse_json(metadata[RECORD], f"{path}, its record")
    if not isinstance(record, dict):
        raise DamagedFile(f"{path}: its record is no object; expected a file written by gma")
    return Contents(tensors, record)


def digest(path: Path) -> str:
    """Of the contents of a file that `write` wrote; the bytes of two with the same contents may differ."""
    with safe_open(path, "pt") as file:
        return file.metadata()[DIGEST]


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The module's parameters and persistent buffers, each once, under its first name (tied ones have several)."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (name, tensor))
    return {name: tensor.detach() for name, tensor in found.values()}


@torch.no_grad()
def fill(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy `tensors`, read from `path`, into those of the same name; DamagedFile, and no change, on a mismatch."""
    check_shapes(expected, tensors, path)
    for name, tensor in expected.items():
        if tensor.is_floating_point() and not (tensors[name].is_floating_point() and tensors[name].isfinite().all()):
            raise DamagedFile(f"{path}: {name} holds what is no finite number; restore the file")
    for name, tensor in expected.items():
        tensor.copy_(tensors[name])


def check_shapes(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path) -> None:
    """DamagedFile unless names and shapes are the same. On the meta device, `expected` takes no memory."""
    if missing := sorted(expected.keys() - found.keys()):
        raise DamagedFile(f"{path}: lacks {_some(missing)} of the model that the config describes")
    if extra := sorted(found.keys() - expected.keys()):
        raise DamagedFile(f"{path}: holds {_some(extra)}, unknown to the model that the config describes")
    for name, tensor in expected.items():
        if found[name].shape != tensor.shape:
            raise DamagedFile(
                f"{path}: {name} is {list(found[name].shape)}; expected {list(tensor.shape)} "
                "of the model that the config describes"
            )


def _digest(tensors: Mapping[str, Tensor], record: str) -> str:
    digest = hashlib.blake2b(digest_size=32)
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    digest.update(record.encode())
    return digest.hexdigest()


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
