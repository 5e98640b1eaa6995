"""The weights kernel: a first walk over the source finds each row's normaliser, a second one writes."""

import triton
import triton.language as tl

from gma_kernels.triton.forward import exponential, soften, source_bounds, tile_logits
from gma_kernels.triton.memory import load_tile, place, row_offsets
from gma_kernels.triton.prior import load_prior, load_visible


@triton.jit(do_not_specialize=["rows", "keys"])
def weights_kernel(
    query, query_strides, key, key_strides,
    center, center_strides, width, width_strides, visible, visible_strides,
    weights,
    heads, rows, keys, scale,
    PRIOR: tl.constexpr, HEAD_SIZE: tl.constexpr, HEAD_BLOCK: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """weights: [B, H, T, S] contiguous, 0 where a row does not see."""
    block, index, batch, head = place(tl.cdiv(rows, ROWS), heads)
    row = block * ROWS + tl.arange(0, ROWS)
    seen = load_visible(visible, visible_strides, batch, head, row, rows, keys)
    prior, sound = load_prior(center, center_strides, width, width_strides, batch, head, row, seen, PRIOR)
    q = load_tile(query, query_strides, batch, head, row, rows, HEAD_SIZE, HEAD_BLOCK, False)
    limit, _ = source_bounds(seen, keys, KEYS)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for first in range(0, limit, KEYS):
        logits = tile_logits(
            q, key, key_strides, batch, head, first, limit, seen, prior, scale,
            PRIOR, HEAD_SIZE, HEAD_BLOCK, KEYS, False,
        )  # fmt: skip
        largest, rescale, terms = soften(largest, logits)
        total = total * rescale + tl.sum(terms, 1)
    factor = tl.where(seen > 0, tl.where(sound, 1.0 / total, float("nan")), 0.0)
    finite = tl.where(seen > 0, largest, 0.0)
    line = row_offsets(index, row, rows) * keys
    for first in range(0, limit, KEYS):
        position = first + tl.arange(0, KEYS)
        logits = tile_logits(
            q, key, key_strides, batch, head, first, limit, seen, prior, scale,
            PRIOR, HEAD_SIZE, HEAD_BLOCK, KEYS, False,
        )  # fmt: skip
        visible_here = position[None, :] < seen[:, None]
        posterior = tl.where(visible_here, exponential(logits - finite[:, None]) * factor[:, None], 0.0)
        inside = (row < rows)[:, None] & (position < keys)[None, :]
        tl.store(weights + line[:, None] + position[None, :], posterior.to(weights.dtype.element_ty), mask=inside)
    for first in range(tl.cdiv(limit, KEYS) * KEYS, keys, KEYS):
        position = first + tl.arange(0, KEYS)
        inside = (row < rows)[:, None] & (position < keys)[None, :]
        nothing = tl.zeros([ROWS, KEYS], weights.dtype.element_ty)
        tl.store(weights + line[:, None] + position[None, :], nothing, mask=inside)
