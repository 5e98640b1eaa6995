"""The decoding kernels: one query row for each sentence and head, a step of a translator that writes word by word.

Such a step is bound by reading keys and values, so it uses no matrix products, and a long source is split across
programs so that few streams keep a whole GPU busy: each program leaves the maximum, sum and weighted values of its
part, and a second small kernel joins the parts.
"""

import triton
import triton.language as tl

from gma_kernels.triton.forward import exponential
from gma_kernels.triton.memory import load_tile
from gma_kernels.triton.prior import load_prior, load_visible, log_prior


@triton.jit(do_not_specialize=["keys", "part"])
def decode_kernel(
    query, query_strides, key, key_strides, value, value_strides,
    center, center_strides, width, width_strides, visible, visible_strides,
    context, logsumexp, part_sums, part_largest, part_total,
    heads, keys, part, parts, scale,
    PRIOR: tl.constexpr, SPLIT: tl.constexpr,
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
    seen = load_visible(visible, visible_strides, batch, head, row, 1, keys)
    prior, sound = load_prior(center, center_strides, width, width_strides, batch, head, row, seen, PRIOR)
    q = load_tile(query, query_strides, batch, head, row, 1, HEAD_SIZE, HEAD_BLOCK, True).to(tl.float32)
    begin = program % parts * part
    limit = tl.max(seen, 0)
    end = tl.minimum(begin + part, limit)
    largest = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    sums = tl.zeros([VALUE_BLOCK], tl.float32)
    for first in range(begin, end, KEYS):
        position = first + tl.arange(0, KEYS)
        k = load_tile(key, key_strides, batch, head, position, limit, HEAD_SIZE, HEAD_BLOCK, False)
        v = load_tile(value, value_strides, batch, head, position, limit, VALUE_SIZE, VALUE_BLOCK, False)
        logits = tl.sum(q * k.to(tl.float32), 1) * scale + log_prior(prior, position, PRIOR)
        logits = tl.where(position < limit, logits, float("-inf"))
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


@triton.jit
def join_kernel(
    part_sums, part_largest, part_total, visible, visible_strides, context, logsumexp, heads, parts,
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
    seen = load_visible(visible, visible_strides, index // heads, index % heads, row, 1, 1)
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
