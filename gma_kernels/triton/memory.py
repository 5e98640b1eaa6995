"""Where the tiles of [B, H, N, D] tensors lie, and which program works on which of them."""

import triton
import triton.language as tl


@triton.jit
def place(blocks, heads):
    """This program's block and (batch, head), from a grid of one dimension, the only one that may be long.

    Later blocks come first: where rows see more and more of the source, the long ones must not start last.
    """
    program = tl.program_id(0)
    index = program // blocks
    return blocks - 1 - program % blocks, index, index // heads, index % heads


@triton.jit
def pointers(base, strides, batch, head, row, column):
    """[R, C] pointers into [B, H, N, D] with any outer strides; 64-bit."""
    start = base + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]
    return start + row.to(tl.int64)[:, None] * strides[2] + column[None, :]


@triton.jit
def load_tile(base, strides, batch, head, row, limit, SIZE: tl.constexpr, BLOCK: tl.constexpr, EVERY_ROW: tl.constexpr):
    """Rows `row` [R] and SIZE columns, padded with zeros to [R, BLOCK]. Rows from `limit` on are zeros and not read;
    with EVERY_ROW there are none."""
    column = tl.arange(0, BLOCK)
    where = pointers(base, strides, batch, head, row, column)
    if SIZE == BLOCK:
        if EVERY_ROW:
            return tl.load(where)
        return tl.load(where, mask=(row < limit)[:, None], other=0.0)
    inside = (column < SIZE)[None, :]
    if not EVERY_ROW:
        inside = inside & (row < limit)[:, None]
    return tl.load(where, mask=inside, other=0.0)


@triton.jit
def store_tile(base, tile, batch, head, heads, row, rows, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Store [R, BLOCK] into a [B, H, N, SIZE] tensor that is dense in [B, N, H, SIZE] memory."""
    column = tl.arange(0, BLOCK)
    line = (batch.to(tl.int64) * rows + row) * heads + head
    where = base + line[:, None] * SIZE + column[None, :]
    inside = (row < rows)[:, None] & (column < SIZE)[None, :]
    tl.store(where, tile.to(base.dtype.element_ty), mask=inside)


@triton.jit
def row_offsets(index, row, rows):
    """Where `row` [R] of head `index` = b·H + h lies in a contiguous [B, H, T] tensor; 64-bit."""
    return index.to(tl.int64) * rows + row
