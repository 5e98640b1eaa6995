"""Philox4x32-10, the counter-based generator behind dropout (Salmon et al., 2011).

A weight is kept or dropped by a pure function of (seed, batch, head, row, key), so every backend drops the same
weights whatever its tiling, and the backward pass needs nothing but the seed.
"""

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def philox4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four random 32-bit words for each counter. All words are int64 tensors in [0, 2³²) that broadcast together."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(MULTIPLIERS[0], c0)
        high1, low1 = _multiply(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c0, c1, c2, c3


def _multiply(constant: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a 32×32-bit product, by 16-bit halves because int64 has no unsigned shift."""
    upper = (constant >> 16) * word
    lower = (constant & 0xFFFF) * word
    return (upper + (lower >> 16)) >> 16, ((upper << 16) + lower) & MASK


def drop_threshold(dropout_p: float) -> int:
    """A weight is kept if its random word is at least this."""
    return int(dropout_p * 2.0**32)


def dropout_scale(
    seed: Tensor, shape: torch.Size, dropout_p: float, dtype: torch.dtype, first_sentence: int = 0
) -> Tensor:
    """What each weight is multiplied with: 0 where dropped, 1/(1−p) where kept. [B, H, T, S]

    key = (low, high 32 bits of the seed); counter = (j>>2, i, b·H+h, 0), all 0-based; weight j takes word j&3.
    b counts from `first_sentence`.
    """
    batch, heads, rows, keys = shape
    device = seed.device
    counter = (
        torch.arange((keys + 3) // 4, device=device),
        torch.arange(rows, device=device)[:, None],
        torch.arange(first_sentence * heads, (first_sentence + batch) * heads, device=device)[:, None, None],
        torch.zeros((), dtype=torch.int64, device=device),
    )
    words = torch.stack(philox4x32(counter, (seed & MASK, (seed >> 32) & MASK)), dim=-1)
    words = words.flatten(-2)[..., :keys].reshape(shape)
    return (words >= drop_threshold(dropout_p)).to(dtype) / (1.0 - dropout_p)
