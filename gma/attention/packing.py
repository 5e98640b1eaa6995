"""Sentences one behind the other, without padding between them."""

from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

# torch has no public class of nested tensors
NestedTensor: TypeAlias = Any


class Packing(NamedTuple):
    """Where the sentences of a packed batch lie: N rows of B sentences."""

    offsets: Tensor  # int32 [B + 1]: 0, and where each ends
    sentence: Tensor  # [N], which one each row belongs to
    place: Tensor  # [N], where in its sentence it stands, from 0
    longest: int

    @classmethod
    def of(cls, nested: NestedTensor) -> "Packing":
        """Of a nested tensor in the jagged layout."""
        offsets, rows = nested.offsets(), nested.values().shape[0]
        lengths = offsets.diff()
        sentences = torch.arange(len(lengths), device=offsets.device)
        # with the size given, a GPU need not be waited for
        sentence = torch.repeat_interleave(sentences, lengths, output_size=rows)
        place = torch.arange(rows, device=offsets.device) - offsets[sentence]
        return cls(offsets.int(), sentence, place, int(lengths.max()) if len(lengths) else 0)

    @property
    def lengths(self) -> Tensor:
        """[B]"""
        return self.offsets.diff()

    def pad(self, x: Tensor) -> Tensor:
        """[1, C, N] → [B, C, longest]"""
        padded = x.new_zeros(len(self.offsets) - 1, self.longest, x.shape[1])
        return padded.index_put((self.sentence, self.place), x[0].T).transpose(1, 2)

    def unpad(self, x: Tensor) -> Tensor:
        """[B, C, longest] → [1, C, N]"""
        return x.transpose(1, 2)[self.sentence, self.place].T[None]
