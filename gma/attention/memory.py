"""What attention looks back at: keys and values at hand, or a cache of sentences that are still growing."""

from typing import NamedTuple, Protocol

from torch import Tensor

import gma_kernels
from gma.attention.alignment import Alignment
from gma.attention.key_value_cache import KeyValueCache


class Memory(Protocol):
    """Keys and values in either form."""

    def part(self, which: int) -> Tensor:
        """Keys (0), values (1), or what else a policy keeps of the source: [B, at least the longest, H, D]."""
        ...

    def attend(self, query: Tensor, alignment: Alignment, prior: str, dropout_p: float, backend: str) -> Tensor:
        """Context [B, H, T, Dv] of queries [B, H, T, D]."""
        ...


class Projections(NamedTuple):
    """Keys, values and a policy's own projections of whole sentences, [B, S, H, D] each."""

    parts: tuple[Tensor, ...]

    def part(self, which: int) -> Tensor:
        return self.parts[which]

    def of(self, sentences: Tensor) -> "Projections":
        """Those of some of the sentences, by their indices."""
        return Projections(tuple(part[sentences] for part in self.parts))

    def attend(self, query: Tensor, alignment: Alignment, prior: str, dropout_p: float, backend: str) -> Tensor:
        return gma_kernels.gaussian_attention(
            query,
            self.parts[0].transpose(1, 2),
            self.parts[1].transpose(1, 2),
            alignment.center,
            alignment.width,
            alignment.visible,
            prior=prior,
            dropout_p=dropout_p,
            backend=backend,
        )


class CachedRows(NamedTuple):
    """Some sentences of a cache."""

    cache: KeyValueCache
    rows: Tensor  # [n], ascending
    longest: int  # positions that are there, in the longest of them

    def part(self, which: int) -> Tensor:
        buffer = self.cache.parts[which][:, : self.longest]
        return buffer if self.rows.shape[0] == buffer.shape[0] else buffer[self.rows]

    def attend(self, query: Tensor, alignment: Alignment, prior: str, dropout_p: float, backend: str) -> Tensor:
        # no dropout: a cache is for decoding
        return self.cache.attend(query, self.rows, alignment.center, alignment.width, alignment.visible, prior, backend)


class Past(NamedTuple):
    """Where the earlier positions of some sentences are kept, and where the next ones go."""

    cache: KeyValueCache
    rows: Tensor  # [n], ascending
    start: Tensor  # [n], positions that are there
