"""The processes of one training run: who am I, sums over all of us. One process alone is a world of size 1.

`torchrun` starts them and ends all when one fails; by themselves, too, none waits for another longer than `PATIENCE`.
"""

import inspect
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from gma.config import ConfigError

CPU = torch.device("cpu")
# the only buffers are tables that every process computes for itself; the option's name depends on torch's version
SYNCHRONISE_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)
PATIENCE = timedelta(minutes=30)
# gloo's thread lets go of finished work a moment after we do. Were it the last to, it would need the interpreter's
# lock to free the tensors, which whoever takes the process group down holds while waiting for that thread
_recent: deque[distributed.Work] = deque(maxlen=8)


@dataclass(frozen=True)
class World:
    """This process among those that train together."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def is_first(self) -> bool:
        """Rank 0 writes and speaks; the others do neither."""
        return self.rank == 0

    def total(self, *values: float) -> list[float]:
        """Sums over all processes, in float64, the same on each. On the CPU: waiting for a GPU would stall it."""
        if self.size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        work = distributed.all_reduce(sums, async_op=True)
        work.wait()
        _recent.append(work)
        return sums.tolist()

    def gather(self, items: list) -> list:
        """The lists of all processes joined in order of rank, on each."""
        if self.size == 1:
            return items
        parts: list[list] = [[] for _ in range(self.size)]
        distributed.all_gather_object(parts, items)
        return [item for part in parts for item in part]

    def share(self, value: Any) -> Any:
        """Rank 0's value, which JSON can hold, on each."""
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if self.is_first else b""
        (length,) = self.total(len(text))
        letters = torch.zeros(int(length), dtype=torch.uint8)
        if self.is_first:
            letters.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        distributed.broadcast(letters, src=0)
        return json.loads(letters.numpy().tobytes())

    def share_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors with rank 0's."""
        if self.size > 1:
            for tensor in tensors:
                distributed.broadcast(tensor, src=0)

    def wait(self) -> None:
        """Until all are here."""
        self.total(0.0)

    def parallel(self, model: nn.Module, find_unused_parameters: bool) -> nn.Module:
        """The model with gradients averaged over all processes during backward."""
        if self.size == 1:
            return model
        ids = [self.device.index] if self.device.type == "cuda" else None
        options = {SYNCHRONISE_BUFFERS: False, "find_unused_parameters": find_unused_parameters}
        return DistributedDataParallel(model, ids, **options)


@contextmanager
def join(device: str) -> Iterator[World]:
    """The world that `torchrun` describes in the environment, or one process alone.

    device: 'auto', 'cpu', 'cuda' (each process takes its own), or 'cuda:N'.
    """
    rank, size, local_rank = (
        int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    place = _device(device, size, local_rank)
    if place.type == "cuda":
        # kernels are launched on the current device, wherever their tensors are
        torch.cuda.set_device(place)
    if size == 1:
        yield World(device=place)
        return
    # both: small numbers travel between CPUs, gradients between the devices
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    distributed.init_process_group(backend, timeout=PATIENCE)
    yield World(rank, size, place)
    # not when an exception passes: leaving in good order would wait for a process that may be gone
    distributed.destroy_process_group()


def _device(name: str, size: int, local_rank: int) -> torch.device:
    available = torch.cuda.is_available()
    if name == "cpu" or (name == "auto" and not available):
        return CPU
    if not available:
        raise ConfigError(f"training.device is {name!r}, but torch finds no GPU here; expected 'cpu' or 'auto'")
    if size > 1 and ":" in name:
        raise ConfigError(f"training.device is {name!r} with {size} processes; expected 'cuda': each takes its own GPU")
    place = torch.device(name if ":" in name else f"cuda:{local_rank}")
    count = torch.cuda.device_count()
    if place.index >= count:
        raise ConfigError(f"there is no {place}: this machine has {count} GPUs; start at most one process for each")
    return place
