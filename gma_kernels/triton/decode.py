"""The decoding kernels: one query row for each sentence and head, a step of a translator that writes word by word.

Such a step is bound by reading keys and values, so it uses no matrix products, and a long source is split across
programs so that few streams keep a whole GPU busy: each program leaves the maximum, sum and weighted values of its
part, and a second small kernel joins the parts.
"""

import triton
import triton.language as tl

from gma_kernels.triton.forward import absorb, exponential, initial_state, readable, source_bounds, tile_logits
from gma_kernels.triton.memory import load_tile
from gma_kernels.triton.prior import load_prior, load_sight, log_prior, within_sight


@triton.jit(do_not_specialize=["keys", "part"])
def decode_kernel(
    query, query_strides, key, key_strides, value, value_strides,
    center, center_strides, width, width_strides, visible, visible_strides, first, first_strides,
    context, logsumexp, part_sums, part_largest, part_total,
    heads, keys, part, parts, scale,
    PRIOR: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr,
    HEAD_SIZE: tl.constexpr, HEAD_BLOCK: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    """One program for `part` keys of one sentence and head; part is a multiple of KEYS.

    With SPLIT, writes part_sums [B·H, parts, Dv], part_largest and part_total [B·H, parts]; otherwise context
    [B, H, 1, Dv] and logsumexp [B, H, 1], both dense.
    """
    program = tl.program_id(0)
    index = program // parts
    batch, head = index // heads, index % heads
    row = tl.zeros([1], tl.int32)
    begin, seen = load_sight(visible, visible_strides, first, first_strides, batch, head, row, 1, keys)
    prior, sound = load_prior(center, center_strides, width, width_strides, batch, head, row, begin, seen, PRIOR)
    q = load_tile(query, query_strides, batch, head, row, 1, HEAD_SIZE, HEAD_BLOCK, True).to(tl.float32)
    start = program % parts * part
    low = tl.max(begin, 0)
    limit = tl.max(seen, 0)
    end = tl.minimum(start + part, limit)
    if WINDOW:
        start = tl.maximum(start, low // KEYS * KEYS)
    largest = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    sums = tl.zeros([VALUE_BLOCK], tl.float32)
    for tile in range(start, end, KEYS):
        step = tl.arange(0, KEYS)
        position = tile + step
        read = readable(position, low, limit, WINDOW)
        k = load_tile(key, key_strides, batch, head, read, limit, HEAD_SIZE, HEAD_BLOCK, False)
        v = load_tile(value, value_strides, batch, head, read, limit, VALUE_SIZE, VALUE_BLOCK, False)
        logits = tl.sum(q * k.to(tl.float32), 1) * scale + log_prior(prior, tile, step, PRIOR)
        logits = tl.where(within_sight(position, low, limit, WINDOW), logits, float("-inf"))
        new = tl.maximum(largest, tl.max(logits, 0))
        finite = tl.where(new == float("-inf"), 0.0, new)
        rescale = exponential(largest - finite)
        weights = exponential(logits - finite)
        total = total * rescale + tl.sum(weights, 0)
        sums = sums * rescale + tl.sum(weights[:, None] * v.to(tl.float32), 0)
        largest = new
    total = tl.where(sound, total, float("nan"))
    one = tl.arange(0, 1)
    if SPLIT:
        column = tl.arange(0, VALUE_BLOCK)
        where = part_sums + program.to(tl.int64) * VALUE_SIZE + column
        tl.store(where, sums, mask=column < VALUE_SIZE)
        tl.store(part_largest + program + one, largest)
        tl.store(part_total + program + one, total)
    else:
        _finish(context, logsumexp, index, largest, total, sums, seen, VALUE_SIZE, VALUE_BLOCK)


@triton.jit(do_not_specialize=["keys", "part"])
def decode_group_kernel(
    query, query_strides, key, key_strides, value, value_strides,
    center, center_strides, width, width_strides, visible, visible_strides, first, first_strides,
    context, logsumexp, part_sums, part_largest, part_total,
    heads, keys, part, parts, scale,
    PRIOR: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr, SPLIT: tl.constexpr,
    HEAD_SIZE: tl.constexpr, HEAD_BLOCK: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The same for the GROUP heads that share a head of keys, which is read once for all of them.

    They are the rows of a product: query is [B, H_kv, GROUP, D], what belongs to rows [B, 1 or H_kv, GROUP], and heads
    is H_kv. ROWS is at least GROUP. What is written is the same, too.
    """
    program = tl.program_id(0)
    index = program // parts
    batch, head = index // heads, index % heads
    row = tl.arange(0, ROWS)
    begin, seen = load_sight(visible, visible_strides, first, first_strides, batch, head, row, GROUP, keys)
    prior, sound = load_prior(center, center_strides, width, width_strides, batch, head, row, begin, seen, PRIOR)
    q = load_tile(query, query_strides, batch, head, row, GROUP, HEAD_SIZE, HEAD_BLOCK, False)
    low, start, _, limit = source_bounds(begin, seen, keys, KEYS, WINDOW)
    begin_part = program % parts * part
    state = initial_state(ROWS, VALUE_BLOCK)
    for tile in range(tl.maximum(start, begin_part), tl.minimum(begin_part + part, limit), KEYS):
        logits = tile_logits(
            q, key, key_strides, batch, head, tile, low, limit, begin, seen, prior, scale,
            PRIOR, HEAD_SIZE, HEAD_BLOCK, KEYS, False, WINDOW,
        )  # fmt: skip
        state = absorb(
            state, logits, value, value_strides, None, index, batch, head, row, tile, low, limit, 0,
            False, VALUE_SIZE, VALUE_BLOCK, KEYS, False, WINDOW,
        )  # fmt: skip
    largest, total, sums = state
    total = tl.where(sound, total, float("nan"))
    line = index.to(tl.int64) * GROUP + row
    column = tl.arange(0, VALUE_BLOCK)
    if SPLIT:
        line = line * parts + program % parts
        tl.store(part_largest + line, largest, mask=row < GROUP)
        tl.store(part_total + line, total, mask=row < GROUP)
        where = part_sums + line[:, None] * VALUE_SIZE + column[None, :]
    else:
        sums = tl.where((seen > 0)[:, None], sums / total[:, None], 0.0).to(context.dtype.element_ty)
        normaliser = tl.where(seen > 0, largest + tl.log(total), float("-inf"))
        tl.store(logsumexp + line, normaliser, mask=row < GROUP)
        where = context + line[:, None] * VALUE_SIZE + column[None, :]
    tl.store(where, sums, mask=(row < GROUP)[:, None] & (column < VALUE_SIZE)[None, :])


@triton.jit(do_not_specialize=["keys"])
def join_kernel(
    part_sums, part_largest, part_total, visible, visible_strides, first, first_strides,
    context, logsumexp, heads, keys, parts,
    VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One program for one sentence and head; PARTS is `parts` rounded up to a power of two."""
    index = tl.program_id(0)
    part = tl.arange(0, PARTS)
    column = tl.arange(0, VALUE_BLOCK)
    place = index.to(tl.int64) * parts + part
    inside = part < parts
    largest = tl.load(part_largest + place, mask=inside, other=float("-inf"))
    total = tl.load(part_total + place, mask=inside, other=0.0)
    cell = (inside[:, None]) & (column < VALUE_SIZE)[None, :]
    sums = tl.load(part_sums + place[:, None] * VALUE_SIZE + column[None, :], mask=cell, other=0.0)
    row = tl.zeros([1], tl.int32)
    batch, head = index // heads, index % heads
    _, seen = load_sight(visible, visible_strides, first, first_strides, batch, head, row, 1, keys)
    new = tl.zeros([1], tl.float32) + tl.max(largest, 0)
    finite = tl.where(new == float("-inf"), 0.0, new)
    rescale = exponential(largest - finite)
    total = tl.zeros([1], tl.float32) + tl.sum(total * rescale, 0)
    sums = tl.sum(sums * rescale[:, None], 0)
    _finish(context, logsumexp, index, new, total, sums, seen, VALUE_SIZE, VALUE_BLOCK)


@triton.jit
def _finish(context, logsumexp, index, largest, total, sums, seen, VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr):
    """largest, total, seen: [1]. sums: [VALUE_BLOCK]"""
    column = tl.arange(0, VALUE_BLOCK)
    result = tl.where(seen > 0, sums / total, 0.0)
    where = context + index.to(tl.int64) * VALUE_SIZE + column
    tl.store(where, result.to(context.dtype.element_ty), mask=column < VALUE_SIZE)
    normaliser = tl.where(seen > 0, largest + tl.log(total), float("-inf"))
    tl.store(logsumexp + index + tl.arange(0, 1), normaliser)
