"""Self-attention over a visible prefix: causal, bidirectional, or one step at a time behind a cache."""

import torch
from torch import Tensor, nn

from gma.attention.alignment import without_prior
from gma.attention.memory import CachedRows, Memory, Past, Projections


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

    def forward(self, hidden: Tensor, visible: Tensor, past: Past | None = None) -> Tensor:
        """[B, T, E] → [B, T, E]

        Args:
            visible: int32 [B, 1, T], the positions each row sees; earlier ones in `past` count.
            past: the cache that holds the earlier positions of these sentences, and takes the new ones; None if there
                are none.
        """
        query, *parts = self.input(hidden).unflatten(2, (3, self.heads, -1)).unbind(2)
        memory: Memory = Projections(tuple(parts))
        if past is not None:
            past.cache.write(past.rows, past.start, *parts)
            memory = CachedRows(past.cache, past.rows, past.cache.room)
        query = query.transpose(1, 2)
        dropout_p = self.dropout if self.training else 0.0
        context = memory.attend(query, without_prior(query, visible), "none", dropout_p, self.backend)
        return self.output(context.transpose(1, 2).flatten(2))


def causal(batch: int, length: int, device: torch.device) -> Tensor:
    """Row i sees i positions, from 1: int32 [batch, 1, length]."""
    return torch.arange(1, length + 1, dtype=torch.int32, device=device).expand(batch, 1, length)
