"""Sentences of different lengths as one tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gma.text.vocabulary import PAD


def padded(rows: Sequence[Sequence[int]], device: torch.device | None = None) -> Tensor:
    """Token ids, right-padded: int64 [n, longest]"""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD).to(device)
