"""How late a model is expected to write, as something that can be minimised."""

from typing import NamedTuple

import torch
from torch import Tensor


class ExpectedLatency(NamedTuple):
    """Of every sentence, [B]; in source tokens, and in their square."""

    average: Tensor
    variance: Tensor


def expected_latency(delays: Tensor, source_lengths: Tensor, target_lengths: Tensor) -> ExpectedLatency:
    """Average lag of the heads together, and how far they are apart, from expected delays g [B, heads, T].

    As in Ma et al. 2020, section 3.2:

        average   differentiable average lagging of ḡ_i = Σ_h softmax_h(g_hi) g_hi: the late heads count, as one late
                  head makes all wait
        variance  mean over i of the variance of g_hi over the heads h: so that no head is left behind

    Rows past a target's length are left out.
    """
    row = torch.arange(delays.shape[2], device=delays.device)
    # in the precision of the delays: whole numbers divided by one another would be float32
    lengths = target_lengths.clamp(min=1).to(delays.dtype)
    real = (row < target_lengths[:, None]) / lengths[:, None]  # [B, T], sums to 1
    together = (delays.softmax(dim=1) * delays).sum(dim=1)  # [B, T]
    # g'_i = max(g_i, g'_{i−1} + |x|/|y|), so that the lag g'_i − (i−1)·|x|/|y| is a running maximum
    lag = (together - row * (source_lengths / lengths)[:, None]).cummax(dim=1).values
    spread = delays.var(dim=1, correction=0)
    return ExpectedLatency((lag * real).sum(dim=1), (spread * real).sum(dim=1))


def diagonal_offset(position: Tensor, source_lengths: Tensor, target_lengths: Tensor) -> Tensor:
    """Mean over a sentence's rows i of min(p_i, |x|) − i·|x|/|y|: [B], in source tokens, from positions p [B, T].

    0 where positions are, on average, as far along the source as their rows along the target; what a single row does is
    free, and so is where beyond |x| a position lies. Rows past a target's length are left out.
    """
    row = torch.arange(1, position.shape[1] + 1, device=position.device)
    lengths = target_lengths.clamp(min=1).to(position.dtype)
    diagonal = row * (source_lengths / lengths)[:, None]  # [B, T]
    offset = torch.minimum(position, source_lengths[:, None]) - diagonal
    return (offset * (row <= target_lengths[:, None])).sum(dim=1) / lengths
