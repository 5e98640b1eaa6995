"""ITST: wait until enough of what a target token needs has been transported to it (Zhang and Feng, EMNLP 2022)."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from gma.attention.alignment import Alignment, within_source, without_prior
from gma.attention.memory import Memory, Projections
from gma.attention.uncompiled import uncompiled
from gma.config.settings import AttentionSettings
from gma.policies.base import CrossAttention, LatencyError, Look, Source
from gma_kernels.contract import accumulation_dtype, full_precision

# source tokens beside the diagonal that cost nothing
TOLERANCE = 1.0
# e^{−3}: at the last update 5% of the threshold's way are left
DECAY = 3.0


class TransportCrossAttention(CrossAttention):
    """Attention weighted by the information T_ij that source token j transports to target token i:

        T_ij = sigmoid(q'_i·k'_j/√d)        β_ij ∝ T_ij exp(q_i·k_j/√d),  j ≤ g_i
        g_i  = the first j ≥ max(g_{i−1}, i) with Σ_{l≤j} T_il ≥ θ, otherwise |x|

    The heads of a layer share T; every layer has its own, and a row waits for the one that wants most. Two terms are
    added to the loss, so that Σ_j T_ij is 1, of which θ is a share, and so that it comes from near the diagonal.
    """

    name: ClassVar = "itst"
    summary: ClassVar = "ITST: wait until a share of θ of the information has been transported"
    latency_symbol: ClassVar = "θ"
    usual_latencies: ClassVar = (0.2, 0.4, 0.6, 0.8)

    def __init__(self, width: int, heads: int, dropout: float, settings: AttentionSettings, aligned: bool = True):
        # the transport's query and key stand behind those of attention
        super().__init__(width, heads, dropout, settings, aligned, queries=2, memories=3)
        self.theta, self.transport_cost = settings.middle_delta, settings.transport_cost

    @classmethod
    def checked_latency(cls, delta: float) -> float:
        theta = super().checked_latency(delta)
        if theta < 0.0:
            raise LatencyError(f"θ is {theta:g}; expected a share of the information, 0 or more, or inf for all")
        return theta

    @classmethod
    def drawn_latency(cls, low: float, high: float, share: float, longest: int, progress: float) -> float:
        """From high to low, at first fast: what is easy comes first."""
        return low + (high - low) * math.exp(-DECAY * progress)

    def energy(self, query: Tensor, memory: Memory) -> Tensor:
        """logit T, [B, T, S], of projected queries [B, T, queries · E]; float32 at least, also under autocast."""
        asking, offered = query[..., self.heads * self.head_dim :], memory.part(2).flatten(2)
        dtype = accumulation_dtype(query.dtype)
        with full_precision(query.device.type):
            return (asking.to(dtype) * self.head_dim**-0.5) @ offered.to(dtype).transpose(1, 2)

    def align(
        self, query: Tensor, source: Source, previous: Tensor | None = None, delta: float | Tensor | None = None
    ) -> Alignment:
        """`position` is [B, 2, T]: g_i and i."""
        if previous is None:
            previous = torch.full((query.shape[0], 2), math.nan, dtype=torch.float64, device=query.device)
        start, row = previous.nan_to_num(nan=0.0).unbind(1)
        return self._stop(query, source, start, row + 1, self.theta if delta is None else delta)

    def resume(self, query: Tensor, source: Source, alignment: Alignment, delta: Tensor) -> Alignment:
        # all before the token that was waited for has been counted, and was not enough
        start, row = alignment.position[:, :, 0].unbind(1)
        return self._stop(query, source, start, row, delta)

    @torch.no_grad()
    @uncompiled
    def _stop(self, query: Tensor, source: Source, start: Tensor, first: Tensor, delta: float | Tensor) -> Alignment:
        """Where the rows stop. The first is row `first` [B] and waits for `start` [B] tokens at least; a row that has
        not enough with all that is there asks for one token more."""
        batch, rows = query.shape[:2]
        theta = torch.as_tensor(delta, dtype=torch.float64, device=query.device).expand(batch)[:, None, None]
        received = self.energy(query, source.memory).sigmoid().double().cumsum(dim=2)
        there = torch.arange(received.shape[2], device=query.device) < source.arrived[:, None, None]
        before = ((received < theta) & there).sum(dim=2)  # tokens with which it is not enough yet, [B, T]
        row = first[:, None] + torch.arange(rows, dtype=torch.float64, device=query.device)
        heard = (before + 1.0).maximum(start[:, None]).maximum(row).cummax(dim=1).values
        visible = within_source(heard[:, None], source.lengths)
        return without_prior(query, visible)._replace(position=torch.stack((visible[:, 0].double(), row), dim=1))

    def attend(self, query: Tensor, memory: Memory, alignment: Alignment) -> Tensor:
        weights = functional.dropout(self._posterior(query, memory, alignment), self.dropout, self.training)
        value = memory.part(1)
        context = weights.to(value.dtype) @ value.transpose(1, 2)
        return self.output(context.transpose(1, 2).flatten(2))

    def weights(self, query: Tensor, memory: Projections, alignment: Alignment) -> Tensor:
        return self._posterior(query, memory, alignment)

    def _posterior(self, query: Tensor, memory: Memory, alignment: Alignment) -> Tensor:
        """β, [B, H, T, S]"""
        key, dtype = memory.part(0), accumulation_dtype(query.dtype)
        with full_precision(query.device.type):
            scores = self.split_heads(query).to(dtype) * self.head_dim**-0.5 @ key.to(dtype).permute(0, 2, 3, 1)
            scores = scores + functional.logsigmoid(self.energy(query, memory))[:, None]
            unheard = torch.arange(scores.shape[3], device=query.device) >= alignment.visible[..., None]
            return scores.masked_fill(unheard, -math.inf).softmax(dim=3)

    def auxiliary_loss(self, looks: Sequence[Look], source_lengths: Tensor, target_lengths: Tensor) -> Tensor:
        """Mean over the layers."""
        losses = []
        for look in looks:
            transport = self.energy(look.query, look.memory).sigmoid()
            norm, cost = transport_loss(transport, source_lengths, target_lengths)
            losses.append(norm + self.transport_cost * cost)
        return torch.stack(losses).mean()


def transport_loss(transport: Tensor, source_lengths: Tensor, target_lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Both terms of the loss, summed over sentences, of T [B, rows, S]; lengths [B]. Padding counts nothing.

    norm  Σ_i |Σ_j T_ij − 1|
    cost  Σ_ij T_ij max(|j − i·J/I| − ξ, 0) / (I·J),  I rows and J source tokens, ξ = 1
    """
    row = torch.arange(1, transport.shape[1] + 1, device=transport.device)[:, None]
    place = torch.arange(1, transport.shape[2] + 1, device=transport.device)
    # in the precision of T: whole numbers divided by one another would be float32
    rows, tokens = (lengths.to(transport.dtype)[:, None, None] for lengths in (target_lengths, source_lengths))
    transport = transport.masked_fill((place > tokens) | (row > rows), 0.0)
    norm = ((transport.sum(dim=2) - 1.0).abs() * (row[:, 0] <= rows[:, 0])).sum()
    distance = ((place - row * tokens / rows.clamp(min=1.0)).abs() - TOLERANCE).clamp(min=0.0)
    return norm, (transport * distance / (rows.clamp(min=1.0) * tokens)).sum()
