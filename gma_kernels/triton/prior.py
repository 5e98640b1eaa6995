"""The log-priors and their derivatives inside Triton kernels: the definition of csrc/prior.h.

Gaussian and laplace are taken relative to their value at the peak, the visible position j₀ nearest the center. With
t = j − j₀ and d = j₀ − center the logarithm is 0 at the peak and never positive.
"""

import triton
import triton.language as tl

# indices into gma_kernels.contract.PRIORS
GAUSSIAN = tl.constexpr(0)
LAPLACE = tl.constexpr(1)
LINEAR = tl.constexpr(2)
NONE = tl.constexpr(3)

SQRT_2 = tl.constexpr(1.4142135623730951)
NARROWEST = tl.constexpr(2.0**-40)
FARTHEST = tl.constexpr(2.0**80)
LINEAR_FLOOR = tl.constexpr(2.0**-10)
# a weight of 0 must not meet an infinite logarithm
LOWEST = tl.constexpr(-1e30)


@triton.jit
def load_prior(center, center_strides, width, width_strides, batch, head, row, begin, seen, PRIOR: tl.constexpr):
    """What the prior needs of each row, and whether its center and width are numbers a row may have.

    row, begin, seen: [R], see `load_sight`. Rows that see nothing are not looked at. Returns
    ((peak, offset, width, 1/width), sound), all [R].
    """
    if PRIOR == NONE:
        unused = tl.full(seen.shape, 1.0, tl.float32)
        return (seen, unused, unused, unused), seen == seen
    c = tl.load(_row_pointers(center, center_strides, batch, head, row), mask=seen > 0, other=1.0)
    w = tl.load(_row_pointers(width, width_strides, batch, head, row), mask=seen > 0, other=1.0)
    sound = (tl.abs(c) < float("inf")) & (w > 0) & (w < float("inf"))
    last = tl.maximum(seen, 1)
    nearest = tl.minimum(tl.maximum(c, (begin + 1).to(tl.float32)), last.to(tl.float32))
    peak = tl.minimum(tl.floor(nearest + 0.5).to(tl.int32), last)
    w = tl.maximum(w, NARROWEST)
    limit = w * FARTHEST
    offset = tl.minimum(tl.maximum(peak.to(tl.float32) - c, -limit), limit)
    return (peak, offset, w, 1.0 / w), sound


@triton.jit
def _row_pointers(base, strides, batch, head, row):
    """[R] pointers into a [B, 1 or H, T] tensor; 64-bit."""
    return base + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1] + row.to(tl.int64) * strides[2]


@triton.jit
def load_sight(visible, visible_strides, first, first_strides, batch, head, row, rows, keys):
    """Each row sees the positions begin < j ≤ seen of 1 … `keys`; none where seen ≤ 0, also past the last row. [R]

    first: the left bound, or None; then begin is 0.
    """
    seen = tl.load(_row_pointers(visible, visible_strides, batch, head, row), mask=row < rows, other=0)
    seen = tl.minimum(seen, keys)
    if first is None:
        return tl.zeros_like(seen), seen
    else:
        begin = tl.load(_row_pointers(first, first_strides, batch, head, row), mask=row < rows, other=0)
        begin = tl.maximum(begin, 0)
        sees = begin < seen
        return tl.where(sees, begin, 0), tl.where(sees, seen, 0)


@triton.jit
def within_sight(position, begin, seen, WINDOW: tl.constexpr):
    """Whether rows see the 0-based positions. All broadcast together; WINDOW: whether there is a left bound."""
    if WINDOW:
        return (position >= begin) & (position < seen)
    else:
        return position < seen


@triton.jit
def as_column(prior):
    """The prior of rows that run down a [R, S] tile."""
    return prior[0][:, None], prior[1][:, None], prior[2][:, None], prior[3][:, None]


@triton.jit
def as_row(prior):
    """The prior of rows that run along a [S, R] tile."""
    return prior[0][None, :], prior[1][None, :], prior[2][None, :], prior[3][None, :]


@triton.jit
def _from_peak(prior, tile, step):
    """t of the 0-based positions tile + step. Converted in two parts, of which only one is of rows and columns: the
    sum is exact below 2²⁴, and a conversion takes four times as long as an addition."""
    return (tile + 1 - prior[0]).to(tl.float32) + step.to(tl.float32)


@triton.jit
def log_prior(prior, tile, step, PRIOR: tl.constexpr):
    """Logarithm of the prior of the positions tile + step, from 0. `prior` and `step` broadcast together to a tile."""
    _, d, width, a = prior
    t = _from_peak(prior, tile, step)
    if PRIOR == GAUSSIAN:
        return (t * a) * ((t * -0.5 - d) * a)
    elif PRIOR == LAPLACE:
        outward = t * tl.where(d < 0, -1.0, 1.0)
        inward = -outward - 2.0 * tl.abs(d)
        return tl.maximum(outward, inward) * (a * -SQRT_2)
    elif PRIOR == LINEAR:
        height = (width - tl.abs(t + d) * 0.5) * a
        return tl.log(tl.maximum(height, LINEAR_FLOOR))
    else:
        return tl.zeros_like(t)


@triton.jit
def prior_terms(prior, tile, step, logarithm, PRIOR: tl.constexpr):
    """What the derivatives by center and by width need of every position; terms constant in j are dropped.

    The sums over j of ds_ij times these are multiplied with `prior_factors`. Not for NONE.
    """
    _, d, width, a = prior
    t = _from_peak(prior, tile, step)
    z = t + d
    if PRIOR == LINEAR:
        distance = tl.abs(z)
        rest = width - distance * 0.5
        slope = tl.where(rest * a > LINEAR_FLOOR, 0.5 / rest, 0.0)
        return slope * _sign(z), slope * distance
    # past what a row sees the logarithm may be positive, and infinite
    finite = tl.minimum(tl.maximum(logarithm, LOWEST), 0.0)
    if PRIOR == LAPLACE:
        return _sign(z) - _sign(d), finite
    else:
        return t, finite


@triton.jit
def prior_factors(prior, PRIOR: tl.constexpr):
    """What the sums of `prior_terms` are multiplied with, by center and by width. A clamped width has no derivative."""
    a = prior[3]
    free = tl.where(prior[2] > NARROWEST, a, 0.0)
    if PRIOR == GAUSSIAN:
        return a * a, free * -2.0
    elif PRIOR == LAPLACE:
        return a * SQRT_2, -free
    else:
        return tl.full(a.shape, 1.0, tl.float32), free


@triton.jit
def _sign(x):
    return tl.where(x > 0, 1.0, 0.0) - tl.where(x < 0, 1.0, 0.0)
