"""Wait-k: read k tokens first, then one for every token written (Ma et al. 2019).

Trained with one k, or with a k drawn for every batch (multipath, Elbayad et al. 2020), which serves every k.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor

from gma.attention.alignment import Alignment, within_source
from gma.config.settings import AttentionSettings
from gma.policies.base import CrossAttention, LatencyError, Source
from gma_kernels.contract import accumulation_dtype

# 0.29 · 100 is a little less than 29 in floating point
ROUNDING = 1e-9


class WaitKCrossAttention(CrossAttention):
    """Plain attention to the first g_i = min(k + i − 1 − ⌊c·i⌋, |x|) source tokens.

    c is the catch-up: the share of target tokens that are written with no new source token before them, for a target
    that is 1/(1 − c) times as long as its source.
    """

    name: ClassVar = "wait_k"
    summary: ClassVar = "read k tokens, then one for every token written"
    latency_symbol: ClassVar = "k"
    usual_latencies: ClassVar = (1.0, 3.0, 5.0, 7.0)
    latency_of_rows: ClassVar = True

    def __init__(self, width: int, heads: int, dropout: float, settings: AttentionSettings, aligned: bool = True):
        super().__init__(width, heads, dropout, settings, aligned)
        self.k, self.catch_up = settings.middle_delta, settings.catch_up

    @classmethod
    def checked_latency(cls, delta: float) -> float:
        delta = super().checked_latency(delta)
        if delta < 1 or not (delta == math.inf or delta.is_integer()):
            raise LatencyError(f"k is {delta:g}; expected a whole number of source tokens, 1 or more, or inf for all")
        return delta

    @classmethod
    def drawn_latency(cls, low: float, high: float, share: float, longest: int, progress: float) -> float:
        """k ~ U{low … min(high, |x|)}"""
        return low + math.floor(share * max(1.0, min(high, longest) - low + 1.0))

    def align(
        self, query: Tensor, source: Source, previous: Tensor | None = None, delta: float | Tensor | None = None
    ) -> Alignment:
        """`position` counts the rows: i."""
        batch, rows = query.shape[:2]
        k = self.k if delta is None else delta
        k = k.double().reshape(len(k), 1, -1) if isinstance(k, Tensor) else k
        row = torch.arange(1, rows + 1, dtype=torch.float64, device=query.device).expand(batch, 1, rows)
        if previous is not None:
            row = row + previous.nan_to_num(nan=0.0)[..., None]
        diagonal = row - 1.0 - torch.floor(self.catch_up * row + ROUNDING)
        center = diagonal.to(accumulation_dtype(query.dtype))
        return Alignment(center, torch.ones_like(center), within_source(diagonal + k, source.lengths), row)
