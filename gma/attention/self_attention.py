"""Self-attention over a visible prefix: causal, bidirectional, or one step at a time behind a cache."""

import torch
from torch import Tensor, nn

import gma_kernels
from gma.attention.alignment import without_prior
from gma.attention.key_value_cache import KeyValueCache


class SelfAttention(nn.Module):
    """Plain multi-head attention of a sequence to itself, through the same operator as the cross-attention.

    A row sees the first `visible` positions, so that causal attention skips what it may not see instead of masking it.
    """

    def __init__(self, width: int, heads: int, dropout: float, backend: str):
        super().__init__()
        self.heads, self.dropout, self.backend = heads, dropout, backend
        self.input = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.input.weight)
        nn.init.xavier_uniform_(self.output.weight)
        nn.init.zeros_(self.input.bias)
        nn.init.zeros_(self.output.bias)

    def forward(self, hidden: Tensor, visible: Tensor) -> Tensor:
        """hidden: [B, T, E]; visible: int32 [B, 1, T]; returns [B, T, E]."""
        query, key, value = (part.transpose(1, 2) for part in self._project(hidden))
        context = gma_kernels.gaussian_attention(
            query,
            key,
            value,
            *without_prior(query, visible)[:3],
            prior="none",
            dropout_p=self.dropout if self.training else 0.0,
            backend=self.backend,
        )
        return self.output(context.transpose(1, 2).flatten(2))

    def extend(self, hidden: Tensor, visible: Tensor, cache: KeyValueCache, rows: Tensor, start: Tensor) -> Tensor:
        """`forward` for the next T positions of some sentences, whose earlier ones are in the cache.

        hidden: [n, T, E]; visible: int32 [n, 1, T], earlier positions counted; rows, start: [n]; returns [n, T, E].
        """
        query, key, value = self._project(hidden)
        cache.write(rows, start, key, value)
        query = query.transpose(1, 2)
        context = cache.attend(query, rows, *without_prior(query, visible)[:3], "none", self.backend)
        return self.output(context.transpose(1, 2).flatten(2))

    def _project(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Query, key and value, [B, T, H, D] each."""
        return self.input(hidden).unflatten(2, (3, self.heads, -1)).unbind(2)


def causal(batch: int, length: int, device: torch.device) -> Tensor:
    """Row i sees i positions, from 1: int32 [batch, 1, length]."""
    return torch.arange(1, length + 1, dtype=torch.int32, device=device).expand(batch, 1, length)
