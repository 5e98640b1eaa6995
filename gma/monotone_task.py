"""A synthetic task that needs both content and position: which of several equal words is meant?

A source is a row of words. Every word has a kind, of which there are few, so that each kind stands in several
places, and a meaning. A target row names the kind it looks for and how far its source word is from the last one; the
answer is that word's meaning. Attention by content finds all words of the kind; only the position tells them apart.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

import gma

KINDS, MEANINGS = 6, 32
STEPS = 3  # a row moves 1 … 3 words along the source
ROWS, WORDS = 12, 28


class Batch(NamedTuple):
    kind: Tensor  # [B, S]
    meaning: Tensor  # [B, S]
    step: Tensor  # [B, T], 0-based class of the step taken
    aligned: Tensor  # [B, T], 1-based source position

    @property
    def wanted_kind(self) -> Tensor:
        return self.kind.gather(1, self.aligned - 1)

    @property
    def answer(self) -> Tensor:
        return self.meaning.gather(1, self.aligned - 1)


def draw(size: int, generator: torch.Generator) -> Batch:
    """Random sentences; a step past the last word stays on it."""
    kind = torch.randint(KINDS, (size, WORDS), generator=generator)
    meaning = torch.randint(MEANINGS, (size, WORDS), generator=generator)
    step = torch.randint(STEPS, (size, ROWS), generator=generator)
    aligned = (1 + (step + 1).cumsum(dim=1)).clamp(max=WORDS)
    return Batch(kind, meaning, step, aligned)


class Reader(nn.Module):
    """One attention layer between embeddings and a classifier: nothing else could solve the task."""

    def __init__(self, attention: nn.MultiheadAttention):
        super().__init__()
        size = attention.embed_dim
        self.kind = nn.Embedding(KINDS, size)
        self.step = nn.Embedding(STEPS, size)
        self.meaning = nn.Embedding(MEANINGS, size)
        self.attention = attention
        self.answer = nn.Linear(size, MEANINGS)

    def queries(self, batch: Batch) -> Tensor:
        """[B, T, E]"""
        return self.kind(batch.wanted_kind) + self.step(batch.step)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Scores of the meanings [B, T, MEANINGS] and the attention weights [B, T, S]."""
        context, weights = self.attention(self.queries(batch), self.kind(batch.kind), self.meaning(batch.meaning))
        return self.answer(context), weights

    def align(self, batch: Batch) -> gma.Alignment:
        """Of a reader with Gaussian attention: [B, 1, T] each."""
        lengths = torch.full((batch.kind.shape[0],), batch.kind.shape[1], dtype=torch.int32)
        return self.attention.align(self.queries(batch), lengths)
