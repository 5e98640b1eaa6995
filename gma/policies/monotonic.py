"""Monotonic multi-head attention (MMA): every head scans the source and decides where to stop (Ma et al. 2020)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from gma.attention.alignment import Alignment
from gma.attention.memory import Memory, Projections
from gma.config.settings import AttentionSettings
from gma.policies.base import CrossAttention, Look, Source
from gma.policies.expected_alignment import expected_alignment, infinite_lookback
from gma.policies.latency_loss import expected_latency
from gma_kernels.contract import accumulation_dtype, full_precision

# of a prior that leaves a hard head nothing but the position where it stopped
ONE_POSITION = 1e-9


class MonotonicCrossAttention(CrossAttention):
    """p_ij = sigmoid(q_i·k_j/√d + r) is the probability that a head stops at j.

        decoding   t_i = the first j ≥ t_{i−1} with p_ij ≥ ½, otherwise |x|; a row needs g_i = max over heads of t_i.
                   "hard" heads (MMA-H) attend to t_i alone, "infinite_lookback" heads (MMA-IL) softly to all j ≤ t_i
        training   the expectation of the same over random stops α; noise on the energies makes it pay to be sure;
                   λ_avg · lag + λ_var · variance of the expected delays Σ_j j α_ij is added to the loss

    In training mode `center` is the expected delay and every row sees the whole source.
    """

    name: ClassVar = "monotonic"
    summary: ClassVar = "MMA: each head reads until it stops; wait for all"
    latency_of_all: ClassVar = None

    def __init__(self, width: int, heads: int, dropout: float, settings: AttentionSettings, aligned: bool = True):
        hard = settings.monotonic == "hard"
        # the energies of a soft head have a query and a key of their own, behind those of its attention
        queries, memories = (1, 2) if hard else (2, 3)
        prior = "gaussian" if hard else "none"
        super().__init__(width, heads, dropout, settings, aligned, prior=prior, queries=queries, memories=memories)
        self.hard, self.noise = hard, settings.noise
        self.latency_average, self.latency_variance = settings.latency_average, settings.latency_variance
        self.energy_bias = nn.Parameter(torch.tensor([settings.energy_bias]))

    def energy(self, query: Tensor, memory: Memory) -> Tensor:
        """logit p, [B, H, T, S], from projected queries [B, T, queries · E] and the source's memory."""
        which, key = (0, memory.part(0)) if self.hard else (1, memory.part(2))
        return self._product(query, which, key) + self.energy_bias

    def _product(self, query: Tensor, which: int, key: Tensor) -> Tensor:
        """Scaled products of one of the queries with keys [B, S, H, D]; float32 at least, also under autocast."""
        dtype = accumulation_dtype(query.dtype)
        with full_precision(query.device.type):
            return self.split_heads(query, which).to(dtype) * self.head_dim**-0.5 @ key.to(dtype).permute(0, 2, 3, 1)

    def align(
        self, query: Tensor, source: Source, previous: Tensor | None = None, delta: float | Tensor | None = None
    ) -> Alignment:
        if previous is None:
            previous = query.new_ones(query.shape[0], self.heads)
        return self._stop(query, source, previous.nan_to_num(nan=1.0))

    def resume(self, query: Tensor, source: Source, alignment: Alignment, delta: Tensor) -> Alignment:
        # a head that has stopped finds its own position first; one that waits goes on with what is new
        return self._stop(query, source, alignment.position[..., 0])

    def _stop(self, query: Tensor, source: Source, start: Tensor) -> Alignment:
        """Where the heads stop if the first row scans from `start` [B, H]; a head that stops nowhere in what is there
        asks for one token more."""
        energy = self.energy(query, source.memory)
        place = torch.arange(1, energy.shape[3] + 1, device=energy.device)
        nowhere = energy.shape[3] + 1
        stops = (energy >= 0) & (place <= source.arrived[:, None, None, None])
        stops = functional.pad(torch.where(stops, place, nowhere), (0, 1), value=nowhere)
        following = stops.flip(3).cummin(dim=3).values.flip(3)  # the first stop at or after each position
        otherwise = torch.minimum(source.arrived + 1, source.lengths)[:, None]
        pointer, pointers = start.long(), []
        for row in range(query.shape[1]):
            pointer = following[:, :, row].gather(2, pointer[..., None] - 1).squeeze(2).minimum(otherwise)
            pointers.append(pointer)
        position = torch.stack(pointers, dim=2).double()
        center = position.to(energy.dtype)
        return Alignment(center, torch.full_like(center, ONE_POSITION), position.int(), position)

    def forward(
        self,
        query: Tensor,
        memory: Projections,
        source_lengths: Tensor,
        delta: float | Tensor | None = None,
        shared: Alignment | None = None,
    ) -> tuple[Tensor, Alignment]:
        if not self.training:
            return super().forward(query, memory, source_lengths, delta, shared)
        key, value = memory.parts[:2]
        with full_precision(query.device.type):
            energy = self.energy(query, memory)
            stop = (energy + self.noise * torch.randn_like(energy)).sigmoid()
            weights = expected = expected_alignment(stop, source_lengths)
            if not self.hard:
                weights = infinite_lookback(expected, self._product(query, 0, key))
            place = torch.arange(1, expected.shape[3] + 1, dtype=expected.dtype, device=expected.device)
            delay = expected @ place  # [B, H, T]
        context = functional.dropout(weights, self.dropout).to(value.dtype) @ value.transpose(1, 2)
        visible = source_lengths.int()[:, None, None].expand(delay.shape)
        alignment = Alignment(delay, torch.ones_like(delay), visible, delay.double())
        return self.output(context.transpose(1, 2).flatten(2)), alignment

    def auxiliary_loss(self, looks: Sequence[Look], source_lengths: Tensor, target_lengths: Tensor) -> Tensor | None:
        delays = torch.cat([look.alignment.center for look in looks], dim=1)
        latency = expected_latency(delays, source_lengths, target_lengths)
        return (self.latency_average * latency.average + self.latency_variance * latency.variance).sum()
