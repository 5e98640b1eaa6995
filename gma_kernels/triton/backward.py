"""The backward kernels: one over blocks of rows for dquery, dcenter and dwidth, one over blocks of keys for dkey and
dvalue. Each result is summed up by one program in one order, so two runs give the same bits.

Both compute β_ij = e^(logit_ij − logsumexp_i) anew. With m the dropout,

    dβ_ij = m_ij (dcontext_i · v_j)    ds_ij = β_ij (dβ_ij − Σ_k β_ik dβ_ik)    Σ_k β_ik dβ_ik = dcontext_i · context_i

The last sum is wanted before the walk over the keys, but context_i is rounded, to 16 bits perhaps, and what is wrong
with it by some ε is wrong with every ds_ij by β_ij ε: too much where a row sees one position and all ds are 0. So the
first kernel also sums up Σ_j ds_ij, which ought to be 0 and is ε, and what each of its results owes to it (Σ_j β_ij k_j
for dquery), subtracts that at the end, and hands the corrected sum to the second kernel. Where the logsumexp has a
gradient g_i, Σ_j ds_ij ought to be g_i, and ε is what is beyond it.
"""

import triton
import triton.language as tl

from gma_kernels.triton.forward import exponential, readable, source_bounds
from gma_kernels.triton.memory import extent, load_tile, place, store_tile
from gma_kernels.triton.philox import kept
from gma_kernels.triton.prior import (
    NONE,
    as_column,
    as_row,
    load_prior,
    load_sight,
    log_prior,
    prior_factors,
    prior_terms,
    within_sight,
)


@triton.jit(do_not_specialize=["rows", "keys", "sentences", "drop_below"])
def backward_rows_kernel(
    grad_context, grad_context_strides, grad_logsumexp, context, context_strides,
    query, query_strides, key, key_strides, value, value_strides,
    center, center_strides, width, width_strides, visible, visible_strides, first, first_strides,
    cu_query, cu_key, seed, logsumexp,
    grad_query, grad_center, grad_width, row_sums,
    heads, rows, keys, sentences, scale, drop_below, keep_scale,
    PRIOR: tl.constexpr, DROPOUT: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr, HEAD_BLOCK: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """grad_query: dense in [B, T, H, D] memory. grad_center, grad_width, row_sums (Σ_k β_ik dβ_ik − g_i): [B, H, T].
    grad_logsumexp: [B, H, T], or None for zeros."""
    block, index, sentence, head = place(rows, heads, cu_query, sentences, ROWS)
    batch, rows, first_line, origin = extent(cu_query, index, sentence, head, rows)
    of_keys, keys, _, _ = extent(cu_key, index, sentence, head, keys)
    row = block * ROWS + tl.arange(0, ROWS)
    begin, seen = load_sight(visible, visible_strides, first, first_strides, batch, head, row, rows, keys)
    prior, _ = load_prior(center, center_strides, width, width_strides, batch, head, row, begin, seen, PRIOR)
    q = load_tile(query, query_strides, batch, head, row, rows, HEAD_SIZE, HEAD_BLOCK, False)
    grad = load_tile(grad_context, grad_context_strides, batch, head, row, rows, VALUE_SIZE, VALUE_BLOCK, False)
    out = load_tile(context, context_strides, batch, head, row, rows, VALUE_SIZE, VALUE_BLOCK, False)
    place_of_row = origin + row
    # of a row that sees nothing it is −∞, which would make its weights infinite where no mask is needed
    normaliser = tl.load(logsumexp + place_of_row, mask=seen > 0, other=float("inf"))
    row_sum = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
    low, _, whole, limit = source_bounds(begin, seen, keys, KEYS, WINDOW)
    key_head = head // GROUP
    zeros = tl.zeros([ROWS], tl.float32)
    wide_zeros = tl.zeros([ROWS, HEAD_BLOCK], tl.float32)
    sums = (wide_zeros, wide_zeros, zeros, zeros, zeros, zeros, zeros)
    if not WINDOW:
        for tile in range(0, whole, KEYS):
            sums = _rows_tile(
                sums, q, grad, normaliser, row_sum, prior, key, key_strides, value, value_strides, seed,
                index, of_keys, key_head, row, tile, low, limit, begin, seen, scale, drop_below, keep_scale,
                PRIOR, DROPOUT, HEAD_SIZE, HEAD_BLOCK, VALUE_SIZE, VALUE_BLOCK, KEYS, True, WINDOW,
            )  # fmt: skip
    for tile in range(whole, limit, KEYS):
        sums = _rows_tile(
            sums, q, grad, normaliser, row_sum, prior, key, key_strides, value, value_strides, seed,
            index, of_keys, key_head, row, tile, low, limit, begin, seen, scale, drop_below, keep_scale,
            PRIOR, DROPOUT, HEAD_SIZE, HEAD_BLOCK, VALUE_SIZE, VALUE_BLOCK, KEYS, False, WINDOW,
        )  # fmt: skip
    grad_q, mean_key, excess, by_center, mean_center, by_width, mean_width = sums
    if grad_logsumexp is not None:
        excess -= tl.load(grad_logsumexp + place_of_row, mask=seen > 0, other=0.0)
    tl.store(row_sums + place_of_row, row_sum + excess, mask=row < rows)
    sees = seen > 0
    grad_q = tl.where(sees[:, None], (grad_q - excess[:, None] * mean_key) * scale, 0.0)
    store_tile(grad_query, grad_q, first_line, head, heads, row, rows, HEAD_SIZE, HEAD_BLOCK)
    if PRIOR != NONE:
        center_factor, width_factor = prior_factors(prior, PRIOR)
        by_center = (by_center - excess * mean_center) * center_factor
        by_width = (by_width - excess * mean_width) * width_factor
    tl.store(grad_center + place_of_row, tl.where(sees, by_center, 0.0), mask=row < rows)
    tl.store(grad_width + place_of_row, tl.where(sees, by_width, 0.0), mask=row < rows)


@triton.jit
def _rows_tile(
    sums, q, grad, normaliser, row_sum, prior, key, key_strides, value, value_strides, seed,
    index, of_keys, key_head, row, tile, low, limit, begin, seen, scale, drop_below, keep_scale,
    PRIOR: tl.constexpr, DROPOUT: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_BLOCK: tl.constexpr,
    VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr, KEYS: tl.constexpr, WHOLE: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Adds one source tile to the sums over j of ds·k, β·k, ds, and of ds and β times each of the prior's terms."""
    grad_q, mean_key, excess, by_center, mean_center, by_width, mean_width = sums
    step = tl.arange(0, KEYS)
    position = tile + step
    read = readable(position, low, limit, WINDOW)
    k = load_tile(key, key_strides, of_keys, key_head, read, limit, HEAD_SIZE, HEAD_BLOCK, WHOLE)
    v = load_tile(value, value_strides, of_keys, key_head, read, limit, VALUE_SIZE, VALUE_BLOCK, WHOLE)
    prior_rows = as_column(prior)
    logarithm = log_prior(prior_rows, tile, step[None, :], PRIOR)
    logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale + logarithm
    weights = exponential(logits - normaliser[:, None])
    if not WHOLE:
        weights = tl.where(within_sight(position[None, :], begin[:, None], seen[:, None], WINDOW), weights, 0.0)
    grad_weights = _product(grad, v, VALUE_BLOCK)
    if DROPOUT:
        keep = kept(tl.load(seed), index, row, tile, drop_below, KEYS)
        grad_weights = tl.where(keep, grad_weights * keep_scale, 0.0)
    grad_logits = weights * (grad_weights - row_sum[:, None])
    grad_q = tl.dot(grad_logits.to(k.dtype), k, grad_q, input_precision="ieee")
    mean_key = tl.dot(weights.to(k.dtype), k, mean_key, input_precision="ieee")
    excess += tl.sum(grad_logits, 1)
    if PRIOR != NONE:
        center_term, width_term = prior_terms(prior_rows, tile, step[None, :], logarithm, PRIOR)
        by_center += tl.sum(grad_logits * center_term, 1)
        mean_center += tl.sum(weights * center_term, 1)
        by_width += tl.sum(grad_logits * width_term, 1)
        mean_width += tl.sum(weights * width_term, 1)
    return grad_q, mean_key, excess, by_center, mean_center, by_width, mean_width


@triton.jit
def _product(a, b, COLUMNS: tl.constexpr):
    """a bᵀ. The longest sums of float32 are made in parts: added up one by one, their errors are too large."""
    if COLUMNS < 256 or a.dtype != tl.float32:
        return tl.dot(a, tl.trans(b), input_precision="ieee")
    else:  # the compiler looks at what follows a conditional return
        parts: tl.constexpr = COLUMNS // 32
        left = tl.permute(tl.reshape(a, (a.shape[0], parts, 32)), (1, 0, 2))
        right = tl.permute(tl.reshape(b, (b.shape[0], parts, 32)), (1, 2, 0))
        return tl.sum(tl.dot(left, right, input_precision="ieee"), 0)


@triton.jit(do_not_specialize=["rows", "keys", "sentences", "drop_below"])
def backward_keys_kernel(
    grad_context, grad_context_strides,
    query, query_strides, key, key_strides, value, value_strides,
    center, center_strides, width, width_strides, visible, visible_strides, first, first_strides,
    cu_query, cu_key, seed, logsumexp, row_sums,
    grad_key, grad_value,
    heads, rows, keys, sentences, scale, drop_below, keep_scale,
    PRIOR: tl.constexpr, DROPOUT: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr, HEAD_BLOCK: tl.constexpr, VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    """grad_key, grad_value: dense in [B, S, H_kv, ·] memory, summed over the heads of a group in their order."""
    key_heads = heads // GROUP
    block, key_index, sentence, key_head = place(keys, key_heads, cu_key, sentences, KEYS)
    of_keys, keys, first_line, _ = extent(cu_key, key_index, sentence, key_head, keys)
    first_key = block * KEYS
    position = first_key + tl.arange(0, KEYS)
    sums = (tl.zeros([KEYS, HEAD_BLOCK], tl.float32), tl.zeros([KEYS, VALUE_BLOCK], tl.float32))
    for member in range(GROUP):
        head = key_head * GROUP + member
        index = key_index * GROUP + member
        batch, length, _, origin = extent(cu_query, index, sentence, head, rows)
        from_row, whole, to_row = _row_bounds(
            visible, visible_strides, first, first_strides, batch, head, length, keys, first_key,
            ROWS, KEYS, SCAN, WINDOW,
        )  # fmt: skip
        # what nobody sees is not read
        heard = tl.where(from_row < to_row, keys, 0)
        k = load_tile(key, key_strides, of_keys, key_head, position, heard, HEAD_SIZE, HEAD_BLOCK, False)
        v = load_tile(value, value_strides, of_keys, key_head, position, heard, VALUE_SIZE, VALUE_BLOCK, False)
        for tile in range(from_row, whole, ROWS):
            sums = _keys_tile(
                sums, k, v, position, tile, grad_context, grad_context_strides, query, query_strides,
                center, center_strides, width, width_strides, visible, visible_strides, first, first_strides,
                seed, logsumexp, row_sums,
                index, batch, head, origin, to_row, keys, first_key, scale, drop_below, keep_scale,
                PRIOR, DROPOUT, HEAD_SIZE, HEAD_BLOCK, VALUE_SIZE, VALUE_BLOCK, ROWS, KEYS, False, WINDOW,
            )  # fmt: skip
        if not WINDOW:
            for tile in range(whole, to_row, ROWS):
                sums = _keys_tile(
                    sums, k, v, position, tile, grad_context, grad_context_strides, query, query_strides,
                    center, center_strides, width, width_strides, visible, visible_strides, first, first_strides,
                    seed, logsumexp, row_sums,
                    index, batch, head, origin, to_row, keys, first_key, scale, drop_below, keep_scale,
                    PRIOR, DROPOUT, HEAD_SIZE, HEAD_BLOCK, VALUE_SIZE, VALUE_BLOCK, ROWS, KEYS, True, WINDOW,
                )  # fmt: skip
    grad_k, grad_v = sums
    grad_v *= keep_scale
    store_tile(grad_key, grad_k * scale, first_line, key_head, key_heads, position, keys, HEAD_SIZE, HEAD_BLOCK)
    store_tile(grad_value, grad_v, first_line, key_head, key_heads, position, keys, VALUE_SIZE, VALUE_BLOCK)


@triton.jit
def _row_bounds(
    visible, visible_strides, first, first_strides, batch, head, rows, keys, first_key,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SCAN: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Rows from_row … to_row − 1 hold all that see any key of the block; from `whole` on each of them sees all of it,
    which with WINDOW nobody looks for."""
    earliest = rows
    last = -1
    for start in range(0, rows, SCAN):
        row = start + tl.arange(0, SCAN)
        begin, seen = load_sight(visible, visible_strides, first, first_strides, batch, head, row, rows, keys)
        sees = seen > first_key
        if WINDOW:
            sees = sees & (begin < first_key + KEYS)
        earliest = tl.minimum(earliest, tl.min(tl.where(sees, row, rows), 0))
        last = tl.maximum(last, tl.max(tl.where(sees, row, -1), 0))
    from_row = earliest // ROWS * ROWS
    to_row = last + 1
    if WINDOW:
        return from_row, to_row, to_row
    else:
        needed = tl.minimum(first_key + KEYS, keys)
        partial = -1
        for start in range(0, last + 1, SCAN):
            row = start + tl.arange(0, SCAN)
            _, seen = load_sight(visible, visible_strides, first, first_strides, batch, head, row, rows, keys)
            partial = tl.maximum(partial, tl.max(tl.where((seen < needed) & (row <= last), row, -1), 0))
        whole = tl.minimum(tl.maximum((partial + ROWS) // ROWS * ROWS, from_row), to_row)
        return from_row, whole, to_row


@triton.jit
def _keys_tile(
    sums, k, v, position, tile, grad_context, grad_context_strides, query, query_strides,
    center, center_strides, width, width_strides, visible, visible_strides, first, first_strides,
    seed, logsumexp, row_sums,
    index, batch, head, origin, to_row, keys, first_key, scale, drop_below, keep_scale,
    PRIOR: tl.constexpr, DROPOUT: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_BLOCK: tl.constexpr,
    VALUE_SIZE: tl.constexpr, VALUE_BLOCK: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    WHOLE: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Adds what one block of rows gives to (dkey, dvalue) of a source tile. Scores are held transposed: [KEYS, ROWS].

    Rows from `to_row` on have zeros for query and gradient, and so add nothing.
    """
    grad_k, grad_v = sums
    row = tile + tl.arange(0, ROWS)
    begin, seen = load_sight(visible, visible_strides, first, first_strides, batch, head, row, to_row, keys)
    prior, _ = load_prior(center, center_strides, width, width_strides, batch, head, row, begin, seen, PRIOR)
    # a row that sees nothing may hold anything, and is not read; of whole tiles every row sees something
    read = row if WHOLE else tl.where(seen > 0, row, to_row)
    place_of_row = origin + row
    normaliser = tl.load(logsumexp + place_of_row, mask=read < to_row, other=0.0)
    row_sum = tl.load(row_sums + place_of_row, mask=read < to_row, other=0.0)
    q = load_tile(query, query_strides, batch, head, read, to_row, HEAD_SIZE, HEAD_BLOCK, False)
    grad = load_tile(grad_context, grad_context_strides, batch, head, read, to_row, VALUE_SIZE, VALUE_BLOCK, False)
    logits = tl.dot(k, tl.trans(q), input_precision="ieee") * scale
    logits += log_prior(as_row(prior), first_key, tl.arange(0, KEYS)[:, None], PRIOR)
    weights = exponential(logits - normaliser[None, :])
    if not WHOLE:
        sees = within_sight(position[:, None], begin[None, :], seen[None, :], WINDOW)
        weights = tl.where(sees, weights, 0.0)
    dropped = weights
    if DROPOUT:
        keep = tl.trans(kept(tl.load(seed), index, row, first_key, drop_below, KEYS))
        dropped = tl.where(keep, weights, 0.0)
    # before the next product: fewer registers hold what is still needed
    grad_v = tl.dot(dropped.to(grad.dtype), grad, grad_v, input_precision="ieee")
    grad_weights = _product(v, grad, VALUE_BLOCK)
    if not WHOLE:
        # keys and values that no row sees may hold anything
        grad_weights = tl.where(sees, grad_weights, 0.0)
    if DROPOUT:
        grad_weights = tl.where(keep, grad_weights * keep_scale, 0.0)
    grad_logits = weights * (grad_weights - row_sum[None, :])
    grad_k = tl.dot(grad_logits.to(q.dtype), q, grad_k, input_precision="ieee")
    return grad_k, grad_v
