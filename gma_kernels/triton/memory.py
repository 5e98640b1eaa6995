"""Where the tiles of [B, H, N, D] tensors lie, and which program works on which of them.

Sentences that are packed lie one behind the other in one long sentence. Strides of packed tensors name the stride of
a row in place of that of a sentence, so that a sentence's number of rows before it is its `batch` in all addresses.
"""

import triton
import triton.language as tl


@triton.jit
def place(length, heads, offsets, sentences, BLOCK: tl.constexpr):
    """This program's (block, b·H + h, sentence b, head h), from a grid of one dimension, the only one that may be long.

    length: rows of the tensors, or keys. offsets: where packed sentences begin, [sentences + 1], or None. With them
    there are length // BLOCK + sentences blocks: sentence b has those from offsets[b] // BLOCK + b on, the last may be
    empty.
    Later blocks come first: where rows see more and more of the source, the long ones must not start last.
    """
    program = tl.program_id(0)
    if offsets is None:
        blocks = tl.cdiv(length, BLOCK)
        index = program // blocks
        return blocks - 1 - program % blocks, index, index // heads, index % heads
    else:
        blocks = length // BLOCK + sentences
        head = program // blocks
        block = blocks - 1 - program % blocks
        sentence = tl.full((), 0, tl.int32)
        after = sentences
        while after - sentence > 1:
            middle = (sentence + after) // 2
            begun = _offset(offsets, middle, length) // BLOCK + middle <= block
            sentence = tl.where(begun, middle, sentence)
            after = tl.where(begun, after, middle)
        block -= _offset(offsets, sentence, length) // BLOCK + sentence
        return tl.maximum(block, 0), sentence * heads + head, sentence, head


@triton.jit
def extent(offsets, index, sentence, head, length):
    """The rows of a sentence: its `batch` in addresses, how many they are, which of all [B·N] rows is the first, and
    where the first lies in a contiguous [B, H, N] tensor. length: rows of the tensors. 64-bit."""
    if offsets is None:
        return sentence, length, sentence.to(tl.int64) * length, index.to(tl.int64) * length
    else:
        begin = _offset(offsets, sentence, length)
        count = tl.maximum(_offset(offsets, sentence + 1, length) - begin, 0)
        return begin, count, begin.to(tl.int64), head.to(tl.int64) * length + begin


@triton.jit
def _offset(offsets, sentence, length):
    """Nobody has looked at them: whatever they hold, nothing outside the tensors may be touched."""
    return tl.minimum(tl.maximum(tl.load(offsets + sentence), 0), length)


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
def store_tile(base, tile, first_line, head, heads, row, rows, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Store [R, BLOCK] into a [B, H, N, SIZE] tensor that is dense in [B, N, H, SIZE] memory. first_line: `extent`."""
    column = tl.arange(0, BLOCK)
    line = (first_line + row) * heads + head
    where = base + line[:, None] * SIZE + column[None, :]
    inside = (row < rows)[:, None] & (column < SIZE)[None, :]
    tl.store(where, tile.to(base.dtype.element_ty), mask=inside)
