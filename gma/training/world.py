"""The processes of one training run: their number, sums over all of them. One process alone is a world of size 1.

`torchrun` starts them, and ends all when one fails; none waits for another longer than `PATIENCE`.
"""

import inspect
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

from gma.errors import UserError
from gma.model.device import choose_device

CPU = torch.device("cpu")
# buffers need no synchronisation: every process computes the same tables; the option's name depends on torch's version
SYNCHRONISE_BUFFERS = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)
PATIENCE = timedelta(minutes=30)
# keeps recent work alive: if gloo's thread were the last to let go of it, that thread would need the interpreter's lock
# to free the tensors, which destroy_process_group holds while it waits for the thread
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
        """Rank 0's value on each."""
        if self.size == 1:
            return value
        values = [value]
        distributed.broadcast_object_list(values, src=0, device=CPU)
        return values[0]

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
        options: dict[str, Any] = {SYNCHRONISE_BUFFERS: False, "find_unused_parameters": find_unused_parameters}
        return DistributedDataParallel(model, ids, **options)


@contextmanager
def join(device: str) -> Iterator[World]:
    """The world that `torchrun` describes in the environment, or one process alone.

    device: 'auto', 'cpu', 'cuda' (each process takes its own), or 'cuda:N'.
    """
    rank, size, local_rank = (
        int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
    )
    if size > 1 and ":" in device:
        raise UserError(f"training.device is {device!r} with {size} processes; expected 'cuda': each takes its own GPU")
    place = choose_device(device, option="training.device", process=local_rank)
    if place.type == "cuda":
        # kernels are launched on the current device, wherever their tensors are
        torch.cuda.set_device(place)
    if size == 1:
        yield World(device=place)
        return
    # two backends: small numbers travel between CPUs, gradients between devices
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    distributed.init_process_group(backend, timeout=PATIENCE)
    yield World(rank, size, place)
    # not after an exception: an orderly exit would wait for a process that may be gone
    distributed.destroy_process_group()
