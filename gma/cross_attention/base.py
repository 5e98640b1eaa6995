"""What a policy is: cross-attention that knows how much source each of its rows needs."""

from torch import Tensor, nn

import gma_kernels
from gma.alignment import Alignment
from gma.key_value_cache import KeyValueCache


class CrossAttention(nn.Module):
    """Multi-head attention from target to source. A policy says by `align` how much of the source each row uses.

    The same `align` serves training, where all rows come at once and |x| is known, and decoding, where a row comes at
    a time and the source may not have ended: `source_lengths` is then larger than any need, and `visible` is what the
    row waits for.

    Args:
        prior: the operator's position prior; 'none' for plain attention.
    """

    def __init__(self, width: int, heads: int, dropout: float, prior: str, backend: str):
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.dropout, self.prior, self.backend = dropout, prior, backend
        self.query = nn.Linear(width, width)
        self.memory = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        for projection in (self.query, *self.memory.weight.chunk(2)):
            # as nn.MultiheadAttention does for its three joint projections
            nn.init.xavier_uniform_(getattr(projection, "weight", projection), gain=2**-0.5)
        nn.init.xavier_uniform_(self.output.weight)
        for projection in (self.query, self.memory, self.output):
            nn.init.zeros_(projection.bias)

    def align(
        self, query: Tensor, source_lengths: Tensor, previous: Tensor | None, delta: float | Tensor | None
    ) -> Alignment:
        """Where each row looks and how many source tokens it needs.

        Args:
            query: [B, T, E], projected.
            source_lengths: [B]
            previous: `position` of the row before the first, [B, 1 or H]; NaN, or None for all, at the start.
            delta: the latency to keep, one for all or [B]; None for the configured one.
        """
        raise NotImplementedError

    def forward(
        self,
        hidden: Tensor,
        states: Tensor,
        source_lengths: Tensor,
        delta: float | Tensor | None = None,
        shared: Alignment | None = None,
    ) -> tuple[Tensor, Alignment]:
        """All rows at once: [B, T, E] attended from `hidden` [B, T, E] to the encoder's `states` [B, S, E].

        shared: another layer's alignment, used instead of one's own.
        """
        query = self.query(hidden)
        alignment = shared if shared is not None else self.align(query, source_lengths, None, delta)
        key, value = (part.transpose(1, 2) for part in self.project(states))
        context = gma_kernels.gaussian_attention(
            self.split_heads(query),
            key,
            value,
            *alignment[:3],
            prior=self.prior,
            dropout_p=self.dropout if self.training else 0.0,
            backend=self.backend,
        )
        return self.output(context.transpose(1, 2).flatten(2)), alignment

    def weights(self, hidden: Tensor, states: Tensor, alignment: Alignment) -> Tensor:
        """The posterior attention behind `forward`, [B, H, T, S], for people to look at."""
        key, _ = self.project(states)
        query = self.split_heads(self.query(hidden))
        return gma_kernels.attention_weights(
            query, key.transpose(1, 2), *alignment[:3], prior=self.prior, backend=self.backend
        )

    def attend(self, query: Tensor, cache: KeyValueCache, rows: Tensor, alignment: Alignment) -> Tensor:
        """One row of each of some sentences: [n, 1, E] from projected queries [n, 1, E] to what the cache holds."""
        context = cache.attend(self.split_heads(query), rows, *alignment[:3], self.prior, self.backend)
        return self.output(context.transpose(1, 2).flatten(2))

    def project(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of encoder states [B, S, E], [B, S, H, D] each."""
        return self.memory(states).unflatten(2, (2, self.heads, self.head_dim)).unbind(2)

    def split_heads(self, query: Tensor) -> Tensor:
        """[B, T, E] → [B, H, T, D], a view."""
        return query.unflatten(2, (self.heads, self.head_dim)).transpose(1, 2)
