"""What a policy is: cross-attention that knows how much source each of its rows needs."""

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

import gma_kernels
from gma.attention.alignment import Alignment, checked_delta
from gma.attention.memory import Memory, Projections
from gma.config.settings import AttentionSettings
from gma.errors import UserError


class LatencyError(UserError, ValueError):
    """A latency that a policy cannot keep."""


class Source(NamedTuple):
    """The source as the decoder's rows find it."""

    lengths: Tensor  # [B], |x|; more than any row can need while the source has not ended
    arrived: Tensor  # [B], the tokens that are there
    memory: Memory


class Look(NamedTuple):
    """What a layer's rows have looked at in one pass over whole sentences."""

    query: Tensor  # [B, T, queries · E], projected
    memory: Projections
    alignment: Alignment


class CrossAttention(nn.Module):
    """Multi-head attention from target to source. A policy says by `align` how much of the source each row uses.

    The same `align` serves training, where all rows come at once and |x| is known, and decoding, where a row comes at
    a time and the source may not have ended: `visible` is then what the row waits for, and `resume` looks again when
    that has arrived.

    Args:
        settings: of the policy, and the operator's backend.
        aligned: whether this layer aligns for itself; if not, it is given the first layer's alignment.
        prior: the operator's position prior; 'none' for plain attention.
        queries: how many projections there are of the target: attention's query, and what else the policy needs.
        memories: how many there are of the source: attention's key and value, and what else the policy needs.
        linear: what projects.

    Attributes:
        name: in settings and messages.
        summary: the policy in one line.
        latency_symbol: what can be chosen when translating, as `delta`; None for a policy with nothing to choose.
        usual_latencies: those of a curve.
        has_positions: rows have an aligned position that means something to people.
        latency_of_all: the latency at which every row waits for the whole source; None if there is none.
        can_be_forced: one masked pass gives what a given translation would have waited for.
        latency_of_rows: `align` takes a latency for every row, [B, T], too.
        learns_from_hindsight: how the scores would change with the whole source is told to it in training, by
            `hindsight_loss`.
        can_be_segmented: it translates whatever it is given as a whole, so that meaning units can be put on top of it.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    latency_symbol: ClassVar[str | None] = None
    usual_latencies: ClassVar[tuple[float, ...]] = ()
    has_positions: ClassVar[bool] = False
    latency_of_all: ClassVar[float | None] = math.inf
    can_be_forced: ClassVar[bool] = True
    latency_of_rows: ClassVar[bool] = False
    can_be_segmented: ClassVar[bool] = False
    learns_from_hindsight: ClassVar[bool] = False

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float,
        settings: AttentionSettings,
        aligned: bool = True,
        *,
        prior: str = "none",
        queries: int = 1,
        memories: int = 2,
        linear: type[nn.Linear] = nn.Linear,
    ):
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.queries, self.memories = queries, memories
        self.dropout, self.prior, self.backend = dropout, prior, settings.backend
        self.query = linear(width, queries * width)
        self.memory = linear(width, memories * width)
        self.output = nn.Linear(width, width)
        for weight in (*self.query.weight.split(width), *self.memory.weight.split(width)):
            # as nn.MultiheadAttention does for its three joint projections
            nn.init.xavier_uniform_(weight, gain=2**-0.5)
        nn.init.xavier_uniform_(self.output.weight)
        for projection in (self.query, self.memory, self.output):
            nn.init.zeros_(projection.bias)

    @classmethod
    def checked_latency(cls, delta: float) -> float:
        """The latency asked for, if this policy can keep it."""
        try:
            delta = checked_delta(delta)
        except ValueError as error:
            raise LatencyError(str(error)) from None
        if cls.latency_symbol is None:
            raise LatencyError(
                f"delta is {delta:g}, but the policy {cls.name!r} has none to choose when translating; leave it out"
            )
        return delta

    @classmethod
    def waits_for_all(cls, delta: float) -> bool:
        """Whether every row waits for the whole source at this latency."""
        return cls.latency_of_all is not None and (cls.latency_symbol is None or delta == cls.latency_of_all)

    @classmethod
    def shares_layers(cls, settings: AttentionSettings) -> bool:
        """Whether the first decoder layer aligns for all."""
        return False

    @classmethod
    def drawn_latency(cls, low: float, high: float, share: float, longest: int, progress: float) -> float:
        """The latency at a share, 0 ≤ share < 1, of a range, for a batch whose longest source has so many tokens.

        progress: how much of the training is over, 0 to 1.
        """
        return low + (high - low) * share

    def align(self, query: Tensor, source: Source, previous: Tensor | None, delta: float | Tensor | None) -> Alignment:
        """Where each row looks and how many source tokens it needs.

        Args:
            query: [B, T, queries · E], projected.
            previous: `position` of the row before the first, [B, 1 or H]; NaN, or None for all, at the start.
            delta: the latency to keep, one for all or [B]; None for the configured one.
        """
        raise NotImplementedError

    def resume(self, query: Tensor, source: Source, alignment: Alignment, delta: Tensor) -> Alignment:
        """The alignment of rows that have waited, now that what they asked for has arrived, or the source has ended.

        delta: [B]
        """
        return within(alignment, source.lengths)

    def auxiliary_loss(self, looks: Sequence[Look], source_lengths: Tensor, target_lengths: Tensor) -> Tensor | None:
        """What a policy adds to the loss in training, summed over sentences; None for nothing.

        looks: of all layers.
        """
        return None

    def hindsight_loss(
        self, query: Tensor, memory: Projections, alignment: Alignment, scores: Tensor, hindsight: Tensor, real: Tensor
    ) -> Tensor:
        """What a policy that learns from hindsight adds to the loss in training, summed.

        Args:
            query: of the first layer, for some of the sentences; so for memory and alignment.
            memory: the source's projections.
            alignment: where the rows stand.
            scores: [B, T, V], with what each row has heard.
            hindsight: [B, T, V], with the whole source.
            real: [B, T], which rows are no padding.
        """
        raise NotImplementedError

    def forward(
        self,
        query: Tensor,
        memory: Projections,
        source_lengths: Tensor,
        delta: float | Tensor | None = None,
        shared: Alignment | None = None,
    ) -> tuple[Tensor, Alignment]:
        """All rows at once, [B, T, E], of sentences whose whole source [B] is there; and where they looked.

        Args:
            query: [B, T, queries · E], projected.
            memory: the source's, as `project` gives it.
            shared: another layer's alignment, used instead of one's own.
        """
        alignment = shared
        if alignment is None:
            source = Source(source_lengths, source_lengths, memory)
            alignment = self.align(query, source, None, delta)
        return self.attend(query, memory, alignment), alignment

    def attend(self, query: Tensor, memory: Memory, alignment: Alignment) -> Tensor:
        """[B, T, E] from projected queries [B, T, queries · E]."""
        dropout_p = self.dropout if self.training else 0.0
        context = memory.attend(self.split_heads(query), alignment, self.prior, dropout_p, self.backend)
        return self.output(context.transpose(1, 2).flatten(2))

    def weights(self, query: Tensor, memory: Projections, alignment: Alignment) -> Tensor:
        """The posterior attention behind `attend`, [B, H, T, S], for people to look at."""
        return gma_kernels.attention_weights(
            self.split_heads(query),
            memory.parts[0].transpose(1, 2),
            alignment.center,
            alignment.width,
            alignment.visible,
            prior=self.prior,
            backend=self.backend,
        )

    def project(self, states: Tensor) -> Projections:
        """Keys, values and the policy's own projections of encoder states [B, S, E]."""
        return Projections(self.memory(states).unflatten(2, (self.memories, self.heads, self.head_dim)).unbind(2))

    def split_heads(self, query: Tensor, which: int = 0) -> Tensor:
        """One of the projections, [B, T, queries · E] → [B, H, T, D], a view."""
        return query.unflatten(2, (self.queries, self.heads, self.head_dim))[:, :, which].transpose(1, 2)


def within(alignment: Alignment, source_lengths: Tensor) -> Alignment:
    """The same with no row seeing more than |x|."""
    longest = source_lengths.to(alignment.visible.dtype)[:, None, None]
    return alignment._replace(visible=alignment.visible.minimum(longest))
