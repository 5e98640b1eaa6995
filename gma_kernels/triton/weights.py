"""The weights kernel: a first walk over the source finds each row's normaliser, a second one writes."""

import triton
import triton.language as tl

from gma_kernels.triton.forward import exponential, soften, source_bounds, tile_logits
from gma_kernels.triton.memory import extent, load_tile, place
from gma_kernels.triton.prior import load_prior, load_sight, within_sight


@triton.jit(do_not_specialize=["rows", "keys"])
def weights_kernel(
    query, query_strides, key, key_strides,
    center, center_strides, width, width_strides, visible, visible_strides, first, first_strides,
    weights,
    heads, rows, keys, scale,
    PRIOR: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr, HEAD_BLOCK: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """weights: [B, H, T, S] contiguous, 0 where a row does not see."""
    block, index, batch, head = place(rows, heads, None, None, ROWS)
    _, _, _, origin = extent(None, index, batch, head, rows)
    row = block * ROWS + tl.arange(0, ROWS)
    begin, seen = load_sight(visible, visible_strides, first, first_strides, batch, head, row, rows, keys)
    prior, sound = load_prior(center, center_strides, width, width_strides, batch, head, row, begin, seen, PRIOR)
    q = load_tile(query, query_strides, batch, head, row, rows, HEAD_SIZE, HEAD_BLOCK, False)
    low, start, _, limit = source_bounds(begin, seen, keys, KEYS, WINDOW)
    key_head = head // GROUP
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    for tile in range(start, limit, KEYS):
        logits = tile_logits(
            q, key, key_strides, batch, key_head, tile, low, limit, begin, seen, prior, scale,
            PRIOR, HEAD_SIZE, HEAD_BLOCK, KEYS, False, WINDOW,
        )  # fmt: skip
        largest, rescale, terms = soften(largest, logits)
        total = total * rescale + tl.sum(terms, 1)
    factor = tl.where(seen > 0, tl.where(sound, 1.0 / total, float("nan")), 0.0)
    finite = tl.where(seen > 0, largest, 0.0)
    line = (origin + row) * keys
    if WINDOW:
        for tile in range(0, start, KEYS):
            _store_nothing(weights, line, row, rows, tile, keys, ROWS, KEYS)
    for tile in range(start, limit, KEYS):
        position = tile + tl.arange(0, KEYS)
        logits = tile_logits(
            q, key, key_strides, batch, key_head, tile, low, limit, begin, seen, prior, scale,
            PRIOR, HEAD_SIZE, HEAD_BLOCK, KEYS, False, WINDOW,
        )  # fmt: skip
        sees = within_sight(position[None, :], begin[:, None], seen[:, None], WINDOW)
        posterior = tl.where(sees, exponential(logits - finite[:, None]) * factor[:, None], 0.0)
        inside = (row < rows)[:, None] & (position < keys)[None, :]
        tl.store(weights + line[:, None] + position[None, :], posterior.to(weights.dtype.element_ty), mask=inside)
    for tile in range(tl.cdiv(limit, KEYS) * KEYS, keys, KEYS):
        _store_nothing(weights, line, row, rows, tile, keys, ROWS, KEYS)


@triton.jit
def _store_nothing(weights, line, row, rows, tile, keys, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """Zeros over one source tile."""
    position = tile + tl.arange(0, KEYS)
    inside = (row < rows)[:, None] & (position < keys)[None, :]
    nothing = tl.zeros([ROWS, KEYS], weights.dtype.element_ty)
    tl.store(weights + line[:, None] + position[None, :], nothing, mask=inside)
