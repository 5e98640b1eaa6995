"""Dropout inside Triton kernels: Philox4x32-10 with the counters of gma_kernels/philox.py, so the same weights drop."""

import triton
import triton.language as tl


@triton.jit
def kept(seed, index, row, first_key, drop_below, KEYS: tl.constexpr):
    """Which weights of rows `row` [R] and keys first_key … first_key + KEYS − 1 are kept. [R, KEYS]

    first_key is a multiple of 4, so that each counter's four words fall to four keys of the tile; index is b·H + h.
    """
    group = first_key // 4 + tl.arange(0, KEYS // 4)
    counter = tl.broadcast_to(group[None, :], row.shape[0], KEYS // 4)
    zero = tl.zeros_like(counter)
    w0, w1, w2, w3 = tl.philox(seed, counter, zero + row[:, None], zero + index, zero)
    words = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    return words >= drop_below.to(tl.uint32)
