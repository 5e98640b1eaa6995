"""The forward kernel: a block of rows walks over the source tiles it sees, with online softmax.

    μ' = max(μ, max_j logit_ij)    ℓ ← ℓ e^(μ−μ') + Σ_j e^(logit_ij−μ')
    sums ← sums e^(μ−μ') + Σ_j m_ij e^(logit_ij−μ') v_j

with m the dropout. Tiles past the block's largest `visible` are never touched, and tiles that every row sees wholly
need no mask.
"""

import triton
import triton.language as tl

from gma_kernels.triton.memory import load_tile, place, row_offsets, store_tile
from gma_kernels.triton.philox import kept
from gma_kernels.triton.prior import as_column, load_prior, load_visible, log_prior

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["rows", "keys", "drop_below"])
def forward_kernel(
    query, query_strides, key, key_strides, value, value_strides,
    center, center_strides, width, width_strides, visible, visible_strides, seed,
    context, logsumexp,
    heads, rows, keys, scale, drop_below, keep_scale,
    PRIOR: tl.constexpr, DROPOUT: tl.constexpr,
    HEAD_SIZE: tl.constexpr, HEAD_BLOCK: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """context: dense in [B, T, H, Dv] memory. logsumexp: [B, H, T], natural logarithm, −∞ where nothing is visible."""
    block, index, batch, head = place(tl.cdiv(rows, ROWS), heads)
    row = block * ROWS + tl.arange(0, ROWS)
    seen = load_visible(visible, visible_strides, batch, head, row, rows, keys)
    prior, sound = load_prior(center, center_strides, width, width_strides, batch, head, row, seen, PRIOR)
    q = load_tile(query, query_strides, batch, head, row, rows, HEAD_SIZE, HEAD_BLOCK, False)
    limit, whole = source_bounds(seen, keys, KEYS)
    state = (
        tl.full([ROWS], float("-inf"), tl.float32),
        tl.zeros([ROWS], tl.float32),
        tl.zeros([ROWS, VALUE_BLOCK], tl.float32),
    )
    for first in range(0, whole, KEYS):
        logits = tile_logits(
            q, key, key_strides, batch, head, first, limit, seen, prior, scale, PRIOR, HEAD_SIZE, HEAD_BLOCK, KEYS, True
        )
        state = _absorb(
            state, logits, value, value_strides, seed, index, batch, head, row, first, limit, drop_below,
            DROPOUT, VALUE_SIZE, VALUE_BLOCK, KEYS, True,
        )  # fmt: skip
    for first in range(whole, limit, KEYS):
        logits = tile_logits(
            q,
            key,
            key_strides,
            batch,
            head,
            first,
            limit,
            seen,
            prior,
            scale,
            PRIOR,
            HEAD_SIZE,
            HEAD_BLOCK,
            KEYS,
            False,
        )
        state = _absorb(
            state, logits, value, value_strides, seed, index, batch, head, row, first, limit, drop_below,
            DROPOUT, VALUE_SIZE, VALUE_BLOCK, KEYS, False,
        )  # fmt: skip
    largest, total, sums = state
    total = tl.where(sound, total, float("nan"))
    result = tl.where((seen > 0)[:, None], sums * (keep_scale / total)[:, None], 0.0)
    store_tile(context, result, batch, head, heads, row, rows, VALUE_SIZE, VALUE_BLOCK)
    normaliser = tl.where(seen > 0, largest + tl.log(total), float("-inf"))
    tl.store(logsumexp + row_offsets(index, row, rows), normaliser, mask=row < rows)


@triton.jit
def source_bounds(seen, keys, KEYS: tl.constexpr):
    """The end of what a block's rows see, and of the tiles that every row of it that sees anything sees wholly."""
    limit = tl.maximum(tl.max(seen, 0), 0)
    least = tl.min(tl.where(seen > 0, seen, keys), 0)
    return limit, tl.minimum(least, limit) // KEYS * KEYS


@triton.jit
def tile_logits(
    q, key, key_strides, batch, head, first, limit, seen, prior, scale,
    PRIOR: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_BLOCK: tl.constexpr, KEYS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Logits of a block of rows over one source tile, −∞ where a row does not see. [R, KEYS]"""
    position = first + tl.arange(0, KEYS)
    k = load_tile(key, key_strides, batch, head, position, limit, HEAD_SIZE, HEAD_BLOCK, WHOLE)
    logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    logits += log_prior(as_column(prior), position[None, :], PRIOR)
    if not WHOLE:
        logits = tl.where(position[None, :] < seen[:, None], logits, float("-inf"))
    return logits


@triton.jit
def _absorb(
    state, logits, value, value_strides, seed, index, batch, head, row, first, limit, drop_below,
    DROPOUT: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr, KEYS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    largest, total, sums = state
    v = load_tile(value, value_strides, batch, head, first + tl.arange(0, KEYS), limit, VALUE_SIZE, VALUE_BLOCK, WHOLE)
    largest, rescale, weights = soften(largest, logits)
    total = total * rescale + tl.sum(weights, 1)
    if DROPOUT:
        weights = tl.where(kept(tl.load(seed), index, row, first, drop_below, KEYS), weights, 0.0)
    sums = tl.dot(weights.to(v.dtype), v, sums * rescale[:, None], input_precision="ieee")
    return largest, total, sums


@triton.jit
def exponential(x):
    """e^x by the base-2 exponential, which is one instruction; e^0 is exactly 1.

    The factor is not folded into the scale of the scores: it would round the maximum and what is subtracted from it
    differently, and a row that sees one position would not get weight 1 in the backward.
    """
    return tl.exp2(x * LOG2_E)


@triton.jit
def soften(largest, logits):
    """The new running maximum, what older sums are multiplied with, and e^(logit − maximum)."""
    new = tl.maximum(largest, tl.max(logits, 1))
    # a tile far from a narrow prior can leave −∞ throughout, and −∞ − −∞ would be NaN
    finite = tl.where(new == float("-inf"), 0.0, new)
    return new, exponential(largest - finite), exponential(logits - finite[:, None])
