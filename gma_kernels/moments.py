"""Where a row looks: expected position and variance of its weights, made of the operator itself."""

from typing import NamedTuple

import torch
from torch import Tensor

from gma_kernels.api import gaussian_attention
from gma_kernels.arguments import check_tensors
from gma_kernels.contract import accumulation_dtype

# positions are counted from the nearest of so many, spread over the source
ORIGINS = 8


class PositionMoments(NamedTuple):
    """Mean and variance of the position under a row's weights, [B, H, T] each, of center's dtype."""

    mean: Tensor
    variance: Tensor


def position_moments(
    query: Tensor,
    key: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    *,
    first: Tensor | None = None,
    prior: str = "gaussian",
    scale: float | None = None,
    backend: str = "auto",
) -> PositionMoments:
    """Σ_j β_ij j and Σ_j β_ij (j − mean_i)² of the weights that `gaussian_attention` uses before dropout, from 1.

    Differentiable in query, key, center and width: for losses on latency and alignments of long sources, where
    `attention_weights` would take T×S memory. Both are 0 for rows that see nothing. 16-bit queries and keys are
    computed in float32. Arguments as there.
    """
    check_tensors(query, key, center, width, visible, first=first)
    keys, dtype = key.shape[2], accumulation_dtype(query.dtype)
    # The variance is a difference of two moments. Around one origin for the whole source it would drown in their
    # rounding, so there are several: positions and their squares from each are the columns of the values.
    origins = (torch.arange(ORIGINS, dtype=dtype, device=key.device) + 0.5) * (keys / ORIGINS)
    distance = torch.arange(1, keys + 1, dtype=dtype, device=key.device)[:, None] - origins
    value = torch.cat((distance, distance.square()), dim=1).expand(*key.shape[:2], -1, -1)
    found = gaussian_attention(
        query.to(dtype), key.to(dtype), value, center, width, visible,
        first=first, prior=prior, scale=scale, backend=backend,
    )  # fmt: skip
    from_origins, squares = found.unflatten(3, (2, ORIGINS)).unbind(3)
    nearest = from_origins.detach().abs().argmin(dim=3, keepdim=True)
    shift = from_origins.gather(3, nearest)[..., 0]
    variance = (squares.gather(3, nearest)[..., 0] - shift.square()).clamp(min=0)
    blind = visible.clamp(max=keys) <= (0 if first is None else first.clamp(min=0))
    return PositionMoments((origins[nearest[..., 0]] + shift).masked_fill(blind, 0.0), variance)
