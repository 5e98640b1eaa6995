"""Gaussian multi-head attention (GMA): wait for the predicted aligned position and δ tokens more."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from gma.attention.alignment import Aligner, Alignment
from gma.config.settings import AttentionSettings
from gma.policies.base import CrossAttention, Look, Source
from gma.policies.latency_loss import diagonal_offset


class GaussianCrossAttention(CrossAttention):
    """β_ij ∝ exp(q_i·k_j/√d) · N(j; p_i, σ_i) over j ≤ g_i = ⌊p_i + δ⌋; p_i = p_{i−1} + Δp_i        (Eq. 4–10)

    Args:
        aligned: whether this layer predicts an alignment; if not, it is given another layer's.
    """

    name: ClassVar = "gaussian"
    summary: ClassVar = "GMA: wait for the predicted position and δ more"
    latency_symbol: ClassVar = "δ"
    usual_latencies: ClassVar = (0.5, 1.0, 2.0, 4.0)
    has_positions: ClassVar = True
    latency_of_rows: ClassVar = True

    def __init__(self, width: int, heads: int, dropout: float, settings: AttentionSettings, aligned: bool = True):
        super().__init__(width, heads, dropout, settings, aligned, prior=settings.prior)
        self.diagonal_weight = settings.diagonal_weight
        outputs = 1 if settings.sharing in ("heads", "all") else heads
        self.aligner: Aligner | None = None
        if aligned:
            self.aligner = Aligner(
                width,
                outputs,
                settings.middle_delta,
                settings.width_rule,
                settings.positions,
                settings.convention,
            )

    @classmethod
    def shares_layers(cls, settings: AttentionSettings) -> bool:
        return settings.sharing in ("layers", "all")

    def align(
        self, query: Tensor, source: Source, previous: Tensor | None = None, delta: float | Tensor | None = None
    ) -> Alignment:
        assert self.aligner is not None, "a layer that is given another's alignment does not align"
        return self.aligner(query * self.head_dim**-0.5, source.lengths, previous, delta)

    def auxiliary_loss(self, looks: Sequence[Look], source_lengths: Tensor, target_lengths: Tensor) -> Tensor | None:
        if not self.diagonal_weight:
            return None
        # only the position that makes the row wait: the other layers are free to look back
        furthest = torch.cat([look.alignment.center for look in looks], dim=1).amax(dim=1)  # [B, T]
        offset = diagonal_offset(furthest, source_lengths, target_lengths)
        # linear far away: at first positions are anywhere, and a square would be all there is in the gradient
        distance = functional.huber_loss(offset, torch.zeros_like(offset), reduction="none")
        return self.diagonal_weight * (distance * target_lengths).sum()
