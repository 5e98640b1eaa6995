"""The forward kernel: a block of rows walks over the source tiles it sees, with online softmax.

    μ' = max(μ, max_j logit_ij)    ℓ ← ℓ e^(μ−μ') + Σ_j e^(logit_ij−μ')
    sums ← sums e^(μ−μ') + Σ_j m_ij e^(logit_ij−μ') v_j

with m the dropout. Tiles past the block's largest `visible` and left of its smallest `first` are never touched. Where
there is no `first`, tiles that every row sees wholly need no mask.
"""

import triton
import triton.language as tl

from gma_kernels.triton.memory import extent, load_tile, place, store_tile
from gma_kernels.triton.philox import kept
from gma_kernels.triton.prior import as_column, load_prior, load_sight, log_prior, within_sight

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["rows", "keys", "sentences", "drop_below"])
def forward_kernel(
    query, query_strides, key, key_strides, value, value_strides,
    center, center_strides, width, width_strides, visible, visible_strides, first, first_strides,
    cu_query, cu_key, seed,
    context, logsumexp,
    heads, rows, keys, sentences, scale, drop_below, keep_scale,
    PRIOR: tl.constexpr, DROPOUT: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr, HEAD_BLOCK: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """context: dense in [B, T, H, Dv] memory. logsumexp: [B, H, T], natural logarithm, −∞ where nothing is visible."""
    block, index, sentence, head = place(rows, heads, cu_query, sentences, ROWS)
    batch, rows, first_line, origin = extent(cu_query, index, sentence, head, rows)
    of_keys, keys, _, _ = extent(cu_key, index, sentence, head, keys)
    row = block * ROWS + tl.arange(0, ROWS)
    begin, seen = load_sight(visible, visible_strides, first, first_strides, batch, head, row, rows, keys)
    prior, sound = load_prior(center, center_strides, width, width_strides, batch, head, row, begin, seen, PRIOR)
    q = load_tile(query, query_strides, batch, head, row, rows, HEAD_SIZE, HEAD_BLOCK, False)
    low, _, whole, limit = source_bounds(begin, seen, keys, KEYS, WINDOW)
    key_head = head // GROUP
    state = initial_state(ROWS, VALUE_BLOCK)
    if not WINDOW:
        for tile in range(0, whole, KEYS):
            logits = tile_logits(
                q, key, key_strides, of_keys, key_head, tile, low, limit, begin, seen, prior, scale,
                PRIOR, HEAD_SIZE, HEAD_BLOCK, KEYS, True, WINDOW,
            )  # fmt: skip
            state = absorb(
                state, logits, value, value_strides, seed, index, of_keys, key_head, row, tile, low, limit, drop_below,
                DROPOUT, VALUE_SIZE, VALUE_BLOCK, KEYS, True, WINDOW,
            )  # fmt: skip
    for tile in range(whole, limit, KEYS):
        logits = tile_logits(
            q, key, key_strides, of_keys, key_head, tile, low, limit, begin, seen, prior, scale,
            PRIOR, HEAD_SIZE, HEAD_BLOCK, KEYS, False, WINDOW,
        )  # fmt: skip
        state = absorb(
            state, logits, value, value_strides, seed, index, of_keys, key_head, row, tile, low, limit, drop_below,
            DROPOUT, VALUE_SIZE, VALUE_BLOCK, KEYS, False, WINDOW,
        )  # fmt: skip
    largest, total, sums = state
    total = tl.where(sound, total, float("nan"))
    result = tl.where((seen > 0)[:, None], sums * (keep_scale / total)[:, None], 0.0)
    store_tile(context, result, first_line, head, heads, row, rows, VALUE_SIZE, VALUE_BLOCK)
    normaliser = tl.where(seen > 0, largest + tl.log(total), float("-inf"))
    tl.store(logsumexp + origin + row, normaliser, mask=row < rows)


@triton.jit
def initial_state(ROWS: tl.constexpr, VALUE_BLOCK: tl.constexpr):
    """Maximum, sum of weights and weighted values of rows that have seen nothing yet."""
    nothing = tl.full([ROWS], float("-inf"), tl.float32)
    return nothing, tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, VALUE_BLOCK], tl.float32)


@triton.jit
def source_bounds(begin, seen, keys, KEYS: tl.constexpr, WINDOW: tl.constexpr):
    """Of what a block's rows see: the first position, and where the tile with it begins; the end of the tiles that need
    no mask, since every row that sees anything sees them wholly, none with WINDOW; and the end of everything."""
    limit = tl.maximum(tl.max(seen, 0), 0)
    if WINDOW:
        low = tl.min(tl.where(seen > 0, begin, limit), 0)
        start = low // KEYS * KEYS
        return low, start, start, limit
    else:
        least = tl.min(tl.where(seen > 0, seen, keys), 0)
        return 0, 0, tl.minimum(least, limit) // KEYS * KEYS, limit


@triton.jit
def readable(position, low, limit, WINDOW: tl.constexpr):
    """`position`, with what lies left of `low` moved past `limit`, where `load_tile` reads nothing."""
    if WINDOW:
        return tl.where(position >= low, position, limit)
    else:
        return position


@triton.jit
def tile_logits(
    q, key, key_strides, of_keys, key_head, tile, low, limit, begin, seen, prior, scale,
    PRIOR: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_BLOCK: tl.constexpr, KEYS: tl.constexpr,
    WHOLE: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Logits of a block of rows over one source tile, −∞ where a row does not see. [R, KEYS]"""
    step = tl.arange(0, KEYS)
    position = tile + step
    read = readable(position, low, limit, WINDOW)
    k = load_tile(key, key_strides, of_keys, key_head, read, limit, HEAD_SIZE, HEAD_BLOCK, WHOLE)
    logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    logits += log_prior(as_column(prior), tile, step[None, :], PRIOR)
    if not WHOLE:
        sees = within_sight(position[None, :], begin[:, None], seen[:, None], WINDOW)
        logits = tl.where(sees, logits, float("-inf"))
    return logits


@triton.jit
def absorb(
    state, logits, value, value_strides, seed, index, of_keys, key_head, row, tile, low, limit, drop_below,
    DROPOUT: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr, KEYS: tl.constexpr,
    WHOLE: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """The state after one source tile more."""
    largest, total, sums = state
    read = readable(tile + tl.arange(0, KEYS), low, limit, WINDOW)
    v = load_tile(value, value_strides, of_keys, key_head, read, limit, VALUE_SIZE, VALUE_BLOCK, WHOLE)
    largest, rescale, weights = soften(largest, logits)
    total = total * rescale + tl.sum(weights, 1)
    if DROPOUT:
        weights = tl.where(kept(tl.load(seed), index, row, tile, drop_below, KEYS), weights, 0.0)
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
