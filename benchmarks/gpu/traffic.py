"""Bytes the Triton kernels ask of memory, counted from their tile schedule, against the least any kernel must move.

What is counted is every tile a program loads or stores. A source tile loaded by several programs counts each time,
though the L2 cache will often have it; the least counts every element that is needed once.
"""

from typing import NamedTuple

import torch

from benchmarks.gpu.triton_resources import example
from gma_kernels.triton import tile_sizes

NUMBER = 4  # bytes of a center, width, count, logsumexp or row sum


class Traffic(NamedTuple):
    """Bytes of one pass over one batch."""

    step: str
    moved: int
    least: int


def diagonal(rows: int, keys: int) -> list[int]:
    """What each row sees when the center is on the diagonal and δ = 1."""
    return [min(keys, 1 + (i + 1) * keys // rows) for i in range(rows)]


def traffic(batch: int, heads: int, rows: int, keys: int, size: int, dtype: torch.dtype) -> list[Traffic]:
    """Forward, and forward with backward, of one training batch."""
    problem = example(dtype, size, rows, keys)
    element = problem.query.element_size()

    def tile(kernel: str) -> tile_sizes.Tile:
        return problem.tiles(kernel, 8)[0]

    seen = diagonal(rows, keys)
    line = size * element  # one row of a query, key, value, context or a gradient of them
    forward = row_blocks(seen, tile("forward").rows, 2 * line, 2 * line + 4 * NUMBER)
    by_rows = row_blocks(seen, tile("backward_rows").rows, 2 * line, 4 * line + 7 * NUMBER)
    by_keys = key_blocks(seen, keys, tile("backward_keys"), line)
    heard = 2 * max(seen) * line
    least_forward = rows * (2 * line + 4 * NUMBER) + heard
    least_backward = rows * (4 * line + 6 * NUMBER) + heard + 2 * keys * line
    per_head = [
        Traffic("forward", forward, least_forward),
        Traffic("backward", by_rows + by_keys, least_backward),
    ]
    return [Traffic(step, moved * batch * heads, least * batch * heads) for step, moved, least in per_head]


def row_blocks(seen: list[int], block: int, of_key: int, of_row: int) -> int:
    """A kernel over rows: each block loads what its furthest row sees. of_key, of_row: bytes of one of each."""
    blocks = (seen[start : start + block] for start in range(0, len(seen), block))
    return sum(max(rows) * of_key + len(rows) * of_row for rows in blocks)


def key_blocks(seen: list[int], keys: int, tile: tile_sizes.Tile, line: int) -> int:
    """The kernel over keys: each block looks through `visible` twice and loads the rows that see any of it."""
    total = 0
    for start in range(0, keys, tile.keys):
        count = min(tile.keys, keys - start)
        seeing = [i for i, n in enumerate(seen) if n > start]
        first = seeing[0] // tile.rows * tile.rows if seeing else len(seen)
        last = seeing[-1] + 1 if seeing else len(seen)
        # reads key and value where somebody sees them, writes both gradients
        total += count * (4 if seeing else 2) * line + 2 * NUMBER * len(seen)
        total += (last - first) * (2 * line + 5 * NUMBER)
    return total
