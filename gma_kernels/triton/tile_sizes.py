"""Tile sizes, warps and pipeline stages for every kernel and shape: a fixed choice, or the fastest of a short list.

With the environment variable GMA_TRITON_AUTOTUNE=1 the first call of each kind runs every tile of its list and keeps
the fastest for this process. That synchronises with the GPU, and since sums run in another order with another tile, it
gives up that two processes give the same bits; so it is off unless asked for.
"""

import functools
import os
from collections.abc import Callable
from typing import NamedTuple

import torch
import triton

SMALLEST_BLOCK = 16  # of a matrix product's operands
LARGEST_BUCKET = 128


class Tile(NamedTuple):
    """What one program works on at a time, and how it is compiled."""

    rows: int
    keys: int
    warps: int
    stages: int


# (kernel, columns of the wider head, padded to a power of two; 16-bit?) -> tiles for long sequences. The first is the
# fixed choice: within the shared memory of every NVIDIA part, and with D = 64 and 128 in 16 bits the one with fewest
# instructions for a logit, none of them a spill, in the loop over whole tiles (benchmarks.gpu.triton_roofline)
CHOICES: dict[tuple[str, int, bool], tuple[Tile, ...]] = {
    ("forward", 64, True): (Tile(128, 64, 4, 3), Tile(64, 64, 4, 3), Tile(64, 32, 4, 3)),
    ("forward", 128, True): (Tile(128, 64, 8, 2), Tile(128, 32, 8, 2), Tile(64, 32, 8, 2)),
    ("forward", 256, True): (Tile(64, 32, 8, 2), Tile(64, 64, 8, 1)),
    ("forward", 64, False): (Tile(64, 32, 8, 2), Tile(32, 32, 4, 2)),
    ("forward", 128, False): (Tile(32, 32, 8, 2), Tile(64, 32, 8, 1)),
    ("forward", 256, False): (Tile(16, 32, 8, 1), Tile(32, 16, 8, 1)),
    ("backward_rows", 64, True): (Tile(64, 32, 4, 2), Tile(128, 32, 8, 2), Tile(32, 32, 4, 2)),
    ("backward_rows", 128, True): (Tile(32, 64, 4, 1), Tile(32, 32, 8, 2)),
    ("backward_rows", 256, True): (Tile(32, 32, 8, 1), Tile(16, 32, 8, 1)),
    ("backward_rows", 64, False): (Tile(32, 32, 8, 1), Tile(64, 32, 8, 1)),
    ("backward_rows", 128, False): (Tile(32, 16, 8, 1), Tile(16, 32, 8, 1)),
    ("backward_rows", 256, False): (Tile(16, 16, 8, 1),),
    ("backward_keys", 64, True): (Tile(32, 128, 4, 3), Tile(64, 64, 4, 2), Tile(32, 32, 4, 1)),
    ("backward_keys", 128, True): (Tile(64, 64, 4, 2), Tile(32, 64, 4, 2), Tile(32, 32, 8, 2)),
    ("backward_keys", 256, True): (Tile(16, 32, 8, 1), Tile(16, 16, 8, 1)),
    ("backward_keys", 64, False): (Tile(32, 32, 8, 1), Tile(16, 32, 4, 1)),
    ("backward_keys", 128, False): (Tile(16, 32, 8, 1), Tile(16, 16, 8, 1)),
    ("backward_keys", 256, False): (Tile(16, 16, 8, 1),),
}
# the kernel of the weights walks over the source as the forward does, but needs more registers
CHOICES |= {
    ("weights", columns, low): tiles for (kernel, columns, low), tiles in CHOICES.items() if kernel == "forward"
}
CHOICES |= {("weights", 64, True): (Tile(64, 32, 4, 3),), ("weights", 128, True): (Tile(64, 32, 8, 2),)}
# where the above would spill, or leave wgmma or tcgen05 unused: by `part_of`
ON_PART: dict[tuple[int, str, int, bool], tuple[Tile, ...]] = {
    (0, "forward", 128, True): (Tile(64, 32, 8, 2), Tile(128, 32, 8, 2)),
    (0, "backward_keys", 64, True): (Tile(32, 32, 4, 1), Tile(32, 64, 4, 2)),
    (0, "backward_keys", 128, True): (Tile(32, 32, 8, 2), Tile(32, 64, 8, 2)),
    (9, "backward_keys", 64, True): (Tile(64, 64, 4, 2), Tile(64, 128, 8, 2)),
    (9, "backward_keys", 128, True): (Tile(32, 64, 4, 2), Tile(64, 64, 8, 2)),
    (10, "backward_rows", 128, True): (Tile(64, 32, 4, 2), Tile(32, 64, 4, 1)),
    (12, "backward_rows", 128, True): (Tile(16, 64, 4, 2), Tile(32, 32, 8, 2)),
    (12, "backward_keys", 64, True): (Tile(32, 64, 4, 2), Tile(64, 64, 4, 2)),
    (12, "backward_keys", 128, True): (Tile(32, 64, 4, 2), Tile(32, 64, 8, 2)),
}
# with a left bound: a window's rows see part of every tile, the less of it the wider it is, and all tiles are masked
WITH_WINDOW: dict[tuple[str, int, bool], tuple[Tile, ...]] = {
    ("backward_keys", 64, True): (Tile(32, 64, 4, 2), Tile(32, 32, 4, 1)),
    ("backward_keys", 128, True): (Tile(32, 64, 4, 2), Tile(32, 32, 8, 2)),
}
# with dropout, whose generator wants registers, where the above would spill
WITH_DROPOUT: dict[tuple[str, int, bool], tuple[Tile, ...]] = {
    ("forward", 64, True): (Tile(64, 32, 4, 3), Tile(64, 64, 4, 3)),
    ("forward", 128, True): (Tile(64, 32, 8, 2), Tile(128, 32, 8, 2)),
    ("backward_rows", 64, True): (Tile(32, 32, 4, 2),),
    ("backward_rows", 128, True): (Tile(16, 64, 8, 2), Tile(16, 32, 8, 2)),
    ("backward_keys", 64, True): (Tile(32, 32, 4, 1), Tile(32, 64, 4, 2)),
    ("backward_keys", 128, True): (Tile(32, 32, 8, 2), Tile(32, 64, 8, 2)),
}
_fastest: dict[tuple, Tile] = {}


def padded(size: int) -> int:
    """A head's columns in a tile."""
    return max(triton.next_power_of_2(size), SMALLEST_BLOCK)


def bucket(length: int) -> int:
    """T or S rounded up to what tells tiles apart."""
    return min(max(triton.next_power_of_2(length), SMALLEST_BLOCK), LARGEST_BUCKET)


@functools.cache
def part_of(device: torch.device) -> int:
    """The major compute capability, 0 for AMD's parts, 8 for the interpreter."""
    if device.type != "cuda":
        return 8
    return torch.cuda.get_device_capability(device)[0] if torch.version.hip is None else 0


def candidates(
    kernel: str, columns: int, element_bytes: int, rows: int, keys: int, dropout: bool, window: bool, part: int
) -> tuple[Tile, ...]:
    """Tiles to choose from, the fixed choice first, none with more rows than there are; nor more keys, where they are
    what programs share. columns: see `padded`. part: see `part_of`."""
    key = (kernel, max(columns, 64), element_bytes == 2)
    found = CHOICES[key]
    if dropout:
        found = WITH_DROPOUT.get(key, found)
    elif window and key in WITH_WINDOW:
        found = WITH_WINDOW[key]
    else:
        found = ON_PART.get((part, *key), found)
    most = bucket(keys) if kernel == "backward_keys" else LARGEST_BUCKET
    return tuple(
        dict.fromkeys(tile._replace(rows=min(tile.rows, bucket(rows)), keys=min(tile.keys, most)) for tile in found)
    )


def measures(tiles: tuple[Tile, ...]) -> bool:
    """Whether the fastest is to be found out."""
    return len(tiles) > 1 and os.environ.get("GMA_TRITON_AUTOTUNE") == "1"


def fastest(key: tuple, tiles: tuple[Tile, ...], run: Callable[[Tile], None]) -> Tile:
    """The tile to use for calls of this kind. `run` launches with a given one."""
    if key not in _fastest:
        # measuring synchronises, which would end the capture of a graph
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return tiles[0]
        _fastest[key] = min(tiles, key=lambda tile: _milliseconds(tile, run))
    return _fastest[key]


def _milliseconds(tile: Tile, run: Callable[[Tile], None]) -> float:
    try:
        return triton.testing.do_bench(lambda: run(tile))
    except triton.runtime.errors.OutOfResources:
        return float("inf")
