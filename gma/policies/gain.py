"""Information gain: wait while hearing the rest of the sentence would tell more than θ nats about the next token."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from gma.attention.alignment import Alignment, within_source, without_prior
from gma.attention.memory import Projections
from gma.attention.uncompiled import uncompiled
from gma.config.settings import AttentionSettings
from gma.policies.base import CrossAttention, LatencyError, Source
from gma_kernels.contract import accumulation_dtype, full_precision

# share of the training sentences that wait by the policy itself; the others wait as Wait-k does, with small k half of
# the time, so that the head sees gains which the policy would not have chosen
OWN_WAITING, SMALL_K, LARGEST_SMALL_K = 0.5, 0.5, 10
# of log u: no gain is worth mentioning below, and none can be as large above
LOG_GAIN_RANGE = (-12.0, 4.0)


class GainCrossAttention(CrossAttention):
    """Plain attention to the first g_i source tokens, where more would not tell enough about the next target token:

        u_ij = exp(v·tanh(W q_i + U h_j) + c)  ≈  KL( p(y_i | y_<i, x) ‖ p(y_i | y_<i, x_≤j) )
        g_i  = the first j ≥ max(g_{i−1}, i) with u_ij ≤ θ, otherwise |x|

    The expectation of that divergence over what may still come is the information that the unheard source holds about
    the token. The head behind u is in the first layer, which decides for all; it looks on: no gradient of it reaches
    the queries and states it sees. j ≥ i, so that no more is written than was heard: a model that is allowed to run
    ahead writes what is likely to come and cannot take it back.
    """

    name: ClassVar = "gain"
    summary: ClassVar = "wait while more source would tell more than θ nats about the next token"
    latency_symbol: ClassVar = "θ"
    usual_latencies: ClassVar = (1.0, 0.5, 0.2, 0.1, 0.05)
    latency_of_all: ClassVar = 0.0
    learns_from_hindsight: ClassVar = True

    def __init__(self, width: int, heads: int, dropout: float, settings: AttentionSettings, aligned: bool = True):
        if aligned:
            # the head's projections stand behind those of attention
            super().__init__(width, heads, dropout, settings, aligned, queries=2, memories=3, linear=LookingOn)
            self.gain = nn.Linear(width, 1)
        else:
            super().__init__(width, heads, dropout, settings, aligned)
        self.theta, self.decides = settings.middle_delta, aligned

    @classmethod
    def checked_latency(cls, delta: float) -> float:
        theta = super().checked_latency(delta)
        if not 0.0 <= theta < math.inf:
            raise LatencyError(f"θ is {theta:g}; expected a finite number of nats, 0 or more, where 0 waits for all")
        return theta

    @classmethod
    def shares_layers(cls, settings: AttentionSettings) -> bool:
        return True

    @classmethod
    def drawn_latency(cls, low: float, high: float, share: float, longest: int, progress: float) -> float:
        """log θ ~ U(log low, log high)"""
        return low * (high / low) ** share

    def log_gain(self, asking: Tensor, heard: Tensor) -> Tensor:
        """log u, […], of the head's projections of queries and states, […, E] each; float32 at least."""
        dtype = accumulation_dtype(asking.dtype)
        with full_precision(asking.device.type):
            hidden = torch.tanh(asking.to(dtype) + heard.to(dtype))
            result = functional.linear(hidden, self.gain.weight.to(dtype), self.gain.bias.to(dtype))
        return result.squeeze(-1).clamp(*LOG_GAIN_RANGE)

    def align(
        self, query: Tensor, source: Source, previous: Tensor | None = None, delta: float | Tensor | None = None
    ) -> Alignment:
        """`position` is [B, 2, T]: g_i and i."""
        if isinstance(delta, float) and self.waits_for_all(delta):
            visible = source.lengths.int()[:, None, None].expand(-1, 1, query.shape[1])
            return self._alignment(query, visible, 1)
        if previous is None:
            previous = torch.full((query.shape[0], 2), math.nan, dtype=torch.float64, device=query.device)
        start, row = previous.nan_to_num(nan=0.0).unbind(1)
        return self._scan(query, source, start, row + 1, self.theta if delta is None else delta)

    def resume(self, query: Tensor, source: Source, alignment: Alignment, delta: Tensor) -> Alignment:
        if not self.decides:
            return super().resume(query, source, alignment, delta)
        # all before the token that was waited for has been looked at
        start, row = alignment.position[:, :, 0].unbind(1)
        return self._scan(query, source, start, row, delta)

    def _alignment(self, query: Tensor, visible: Tensor, first: Tensor | int) -> Alignment:
        """Of rows that see so much, [B, 1, T], counted from `first`."""
        row = torch.arange(query.shape[1], dtype=torch.float64, device=query.device)
        counted = (row + torch.as_tensor(first, device=query.device).reshape(-1, 1, 1)).expand(visible.shape)
        return without_prior(query, visible.int())._replace(position=torch.cat((visible.double(), counted), dim=1))

    @torch.no_grad()
    @uncompiled
    def _scan(self, query: Tensor, source: Source, start: Tensor, first: Tensor, delta: float | Tensor) -> Alignment:
        """Where the rows stop, if the first one, which is row `first` [B], looks from `start` [B] on; one that has
        looked at all that is there wants one token more."""
        batch, rows = query.shape[:2]
        heard, asking = source.memory.part(2).flatten(2), query[..., -self.heads * self.head_dim :]
        theta = torch.as_tensor(delta, dtype=torch.float64, device=query.device).expand(batch)[:, None]
        place = torch.arange(1, heard.shape[1] + 1, device=query.device)
        otherwise = torch.minimum(source.arrived + 1, source.lengths).long()
        pointer, pointers = start.long(), []
        for row in range(rows):
            enough = self.log_gain(asking[:, row, None], heard).double().exp() <= theta  # [B, S]
            pointer = pointer.maximum(first.long() + row)
            stops = enough & (place <= source.arrived[:, None]) & (place >= pointer[:, None])
            stop = torch.where(stops, place, otherwise[:, None])
            pointer = torch.cat((stop, otherwise[:, None]), dim=1).amin(dim=1)
            pointers.append(pointer)
        return self._alignment(query, torch.stack(pointers, dim=1)[:, None], first)

    def forward(
        self,
        query: Tensor,
        memory: Projections,
        source_lengths: Tensor,
        delta: float | Tensor | None = None,
        shared: Alignment | None = None,
    ) -> tuple[Tensor, Alignment]:
        if shared is None and self.training:
            shared = self._align_in_training(query, memory, source_lengths, delta)
        return super().forward(query, memory, source_lengths, delta, shared)

    @torch.no_grad()
    @uncompiled
    def _align_in_training(
        self, query: Tensor, memory: Projections, source_lengths: Tensor, delta: float | Tensor | None
    ) -> Alignment:
        """The policy's own waiting for some of the sentences, Wait-k's for the others, each with a k of its own.

        Without the first the head would be of no use: the first j that looks good enough is often one whose gain is
        underestimated, and only by going there is that found out. And the decoder must know what it is to catch up.
        """
        batch, rows = query.shape[:2]
        draw, wide = torch.rand(3, batch, dtype=torch.float64, device=query.device), source_lengths.double()
        longest = torch.where(draw[0] < SMALL_K, wide.clamp(max=LARGEST_SMALL_K), wide)
        k = 1.0 + torch.floor(draw[1] * longest)
        row = torch.arange(rows, dtype=torch.float64, device=query.device)
        visible = within_source((k[:, None] + row)[:, None], source_lengths)
        own = (draw[2] < OWN_WAITING).nonzero().squeeze(1)
        source = Source(source_lengths[own], source_lengths[own], memory.of(own))
        chosen = self.align(query[own], source, None, delta[own] if isinstance(delta, Tensor) else delta)
        visible = visible.index_copy(0, own, chosen.visible)
        return self._alignment(query, visible, 1)

    def hindsight_loss(
        self, query: Tensor, memory: Projections, alignment: Alignment, scores: Tensor, hindsight: Tensor, real: Tensor
    ) -> Tensor:
        """Poisson's e^{log u} − KL·log u, of which the mean of KL is the minimum; summed over real rows."""
        visible = alignment.visible[:, 0].long()
        place = (visible - 1).clamp(min=0)[..., None]
        heard = memory.part(2).flatten(2)
        heard = heard.gather(1, place.expand(-1, -1, heard.shape[2]))
        log_gain = self.log_gain(query[..., -heard.shape[2] :], heard)
        divergence = functional.kl_div(
            scores.detach().float().log_softmax(dim=2),
            hindsight.float().log_softmax(dim=2),
            reduction="none",
            log_target=True,
        ).sum(dim=2)
        return ((log_gain.exp() - divergence.clamp(min=0.0) * log_gain) * real).sum()


class LookingOn(nn.Linear):
    """Several projections, of which the last looks on: its gradient goes no further than to its own weights."""

    def forward(self, input: Tensor) -> Tensor:
        own = self.out_features - self.in_features
        felt = functional.linear(input, self.weight[:own], self.bias[:own])
        return torch.cat((felt, functional.linear(input.detach(), self.weight[own:], self.bias[own:])), dim=-1)
