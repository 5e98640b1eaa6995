"""The expected attention of heads that scan the source and stop at random: what monotonic attention is trained with.

Row i scans on from where row i − 1 stopped and stops at source position j with probability p_ij. With q_ij the
probability that it looks at j, and α_ij that it stops there (Raffel et al. 2017, Eq. 8):

    q_ij = (1 − p_{i,j−1}) q_{i,j−1} + α_{i−1,j}        α_ij = p_ij q_ij        α_0 stops at position 1

That is a walk over the cells (i, j): down with probability p_ij, to the right with 1 − p_ij; q_ij is the probability
that it visits the cell. A row that stops nowhere is taken to stop at the last position, which is p = 1 there: the mass
of every row is 1. Cells with the same i + j do not depend on one another, so T + S − 1 steps do for all of them. There
is no division.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gma.attention.uncompiled import uncompiled


@uncompiled
def expected_alignment(stop: Tensor, source_lengths: Tensor) -> Tensor:
    """α [B, H, T, S] from the probabilities p of stopping, [B, H, T, S]. source_lengths: [B].

    Carried in float64 and rounded once. Every row sums to 1; what lies past a source's end is 0.
    """
    place = torch.arange(1, stop.shape[3] + 1, device=stop.device)
    return _Walk.apply(stop.masked_fill(place == source_lengths[:, None, None, None], 1.0))


@uncompiled
def infinite_lookback(alignment: Tensor, energy: Tensor) -> Tensor:
    """Soft attention to everything up to where a row stops, expected over α. Both [B, H, T, S].

        β_ij = Σ_{k≥j} α_ik e^{u_ij} / Σ_{l≤k} e^{u_il}                         (Arivazhagan et al. 2019)

    With L_j = log Σ_{l≤j} e^{u_il}, which grows with j, this is β_ij = e^{u_ij − L_j} B_ij, where
    B_ij = α_ij + e^{L_j − L_{j+1}} B_{i,j+1}: no factor exceeds 1.
    """
    return _Lookback.apply(alignment, energy)


class _Walk(torch.autograd.Function):
    """α from p. On a diagonal s = i + j:  q_{s+1} = (1 − p_s) q_s + (p_s q_s one row down)."""

    @staticmethod
    def forward(ctx: Any, stop: Tensor) -> Tensor:
        p = _skewed(stop.double())
        visited = torch.zeros_like(p)  # [T + S − 1, T, B·H]
        visited[:1, 0] = 1.0
        for diagonal in range(p.shape[0] - 1):
            stopped = p[diagonal] * visited[diagonal]
            after = visited[diagonal + 1]
            torch.sub(visited[diagonal], stopped, out=after)
            after[1:] += stopped[:-1]
        ctx.save_for_backward(p, visited)
        ctx.shape, ctx.dtype = stop.shape, stop.dtype
        return _straight(p * visited, stop.shape).to(stop.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        p, visited = ctx.saved_tensors
        of_stopping = _skewed(gradient.double())  # of α, then of everything that follows from stopping here
        later = torch.zeros_like(p[0])  # of q on the diagonal after this one
        for diagonal in range(p.shape[0] - 1, -1, -1):
            of_stopping[diagonal, :-1] += later[1:]
            of_stopping[diagonal] -= later
            later = torch.addcmul(later, p[diagonal], of_stopping[diagonal])
        return _straight(of_stopping.mul_(visited), ctx.shape).to(ctx.dtype)


class _Lookback(torch.autograd.Function):
    """β from α and u. With G the gradient of β, and everything along the last dimension:

    dα_k = C_k = Σ_{j≤k} e^{u_j − L_k} G_j                  the mean of G under the soft attention up to k
    du_j = β_j G_j − e^{u_j − L_j} D_j                      D_j = α_j C_j + e^{L_j − L_{j+1}} D_{j+1}
    """

    @staticmethod
    def forward(ctx: Any, alignment: Tensor, energy: Tensor) -> Tensor:
        total = energy.logcumsumexp(dim=3)
        # along the first dimension a scan works on whole blocks of memory
        alignment, energy, total = (x.movedim(3, 0).contiguous() for x in (alignment, energy, total))
        kept = (total[:-1] - total[1:]).exp_()
        share = (energy - total).exp_()
        result = share * _summed_from_the_end(alignment.clone(), kept)
        ctx.save_for_backward(alignment, share, kept, result)
        return result.movedim(0, 3)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        alignment, share, kept, result = ctx.saved_tensors
        gradient = gradient.movedim(3, 0)
        mean = (share * gradient).contiguous()
        for place in range(1, mean.shape[0]):
            mean[place].addcmul_(kept[place - 1], mean[place - 1])
        of_energy = result * gradient - share * _summed_from_the_end(alignment * mean, kept)
        return mean.movedim(0, 3), of_energy.movedim(0, 3)


def _summed_from_the_end(x: Tensor, kept: Tensor) -> Tensor:
    """y_j = x_j + kept_j y_{j+1} along the first dimension, in place. x: [S, …], kept: [S − 1, …]."""
    for place in range(x.shape[0] - 2, -1, -1):
        x[place].addcmul_(kept[place], x[place + 1])
    return x


def _skewed(x: Tensor) -> Tensor:
    """[B, H, T, S] → [T + S − 1, T, B·H]: the cell (i, j), from 0, goes to place i of diagonal i + j."""
    rows, columns = x.shape[2:]
    flat = functional.pad(x, (0, rows)).flatten(2)[..., : rows * (rows + columns - 1)]
    return flat.unflatten(2, (rows, rows + columns - 1)).flatten(0, 1).permute(2, 1, 0).contiguous()


def _straight(x: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `_skewed`."""
    batch, heads, rows, columns = shape
    flat = functional.pad(x.permute(2, 1, 0).flatten(1), (0, rows))
    return flat.unflatten(1, (rows, rows + columns))[..., :columns].unflatten(0, (batch, heads))
