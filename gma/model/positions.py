"""Sinusoidal positions (Vaswani et al. 2017, 3.5)."""

import math

import torch
from torch import Tensor, nn


class SinusoidalPositions(nn.Module):
    """sin and cos of each position at width/2 frequencies from 1 to 1/10⁴. Knows any length: the table grows.

    The table is computed in float64 and rounded once, so that far positions are as exact as near ones, and is no part
    of the state: it follows from the width.
    """

    table: Tensor  # [positions so far, E]

    def __init__(self, width: int):
        super().__init__()
        self.width = width
        self.register_buffer("table", torch.zeros(0, width, dtype=torch.float64), persistent=False)

    def _rows(self, count: int) -> Tensor:
        """[count, E] float64"""
        frequency = torch.exp(torch.arange(0, self.width, 2, dtype=torch.float64) * (-math.log(1e4) / self.width))
        angle = torch.arange(count, dtype=torch.float64)[:, None] * frequency
        return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)[:, : self.width]

    def forward(self, length: int) -> Tensor:
        """Positions 0 … length−1, [length, E]."""
        self._reach(length)
        return self.table[:length]

    def at(self, positions: Tensor, largest: int) -> Tensor:
        """Any positions, all of them at most `largest`: [...] → [..., E]"""
        self._reach(largest + 1)
        return self.table[positions]

    def _reach(self, length: int) -> None:
        if length > self.table.shape[0]:
            rows = self._rows(max(length, 256, 2 * self.table.shape[0]))
            self.table = rows.to(self.table.device, self.table.dtype)
