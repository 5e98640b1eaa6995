"""The logarithm of a row's normaliser, and what it is good for: joining attention to parts of a source."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gma_kernels.contract import LARGEST_LOGSUMEXP_OFFSET, SMALLEST_WIDTH, peak_position


class ContextAndLogsumexp(NamedTuple):
    """What a row found, and log Σ_j exp(logit_j) of what it looked at: [B, H, T, Dv] and [B, H, T], or packed."""

    context: Tensor
    logsumexp: Tensor


def whole_logsumexp(
    relative: Tensor,
    prior: str,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    first: Tensor | None,
    keys: Tensor | int,
) -> Tensor:
    """The logsumexp from one whose log-prior is relative to its peak, as operators return it. [B, H, T]

    keys: how many there are, which limits `visible`: S, or of packed sentences for each row.
    """
    lowest: Tensor | int = 0 if first is None else first.clamp(min=0)
    if prior in ("gaussian", "laplace"):
        last = torch.minimum(visible, torch.as_tensor(keys, dtype=visible.dtype, device=visible.device))
        blind = last <= lowest
        center, width = torch.where(blind, 1.0, center), torch.where(blind, 1.0, width).clamp(min=SMALLEST_WIDTH)
        distance = peak_position(center.detach(), lowest, last) - center
        # a quotient that is not used must not overflow either: its gradient would be 0 times infinity
        far = blind | (distance.abs() > width * LARGEST_LOGSUMEXP_OFFSET)
        farthest = torch.where(blind, 0.0, LARGEST_LOGSUMEXP_OFFSET)
        offset = torch.where(far, farthest, torch.where(far, 0.0, distance) / width)
        peak = -0.5 * offset.square() if prior == "gaussian" else -math.sqrt(2) * offset.abs()
        return relative + peak
    return relative


def merge(contexts: Sequence[Tensor], logsumexps: Sequence[Tensor]) -> ContextAndLogsumexp:
    """Join what the same rows found in parts of a source, as if they had looked at all of it at once.

    A part is a call of its own, on another device or over another cache, with `return_logsumexp=True`. Positions count
    from 1 in each: a part that begins behind position o is given center − o, (visible − o).clamp(min=0) and so for
    `first`. Differentiable in both arguments. Parts drop weights by their own positions, so with dropout the result is
    one that might have been, not that of a single call.

    Args:
        contexts: [..., Dv] of each part.
        logsumexps: [...] of each part, in the same order.

    Returns:
        The context in the dtype of the parts, and the logsumexp, with which it can be merged again.
    """
    _check_parts(contexts, logsumexps)
    stacked = torch.stack(tuple(logsumexps))
    # a row that sees nothing in any part keeps a finite softmax, so that its gradients are 0 and not NaN
    blind = (stacked == -math.inf).all(dim=0)
    stacked = stacked.masked_fill(blind, 0.0)
    shares = torch.softmax(stacked, dim=0).to(stacked.dtype)
    context = torch.stack([share[..., None] * part for share, part in zip(shares, contexts)]).sum(dim=0)
    logsumexp = torch.logsumexp(stacked, dim=0).masked_fill(blind, -math.inf)
    return ContextAndLogsumexp(context.to(contexts[0].dtype), logsumexp)


def _check_parts(contexts: Sequence[Tensor], logsumexps: Sequence[Tensor]) -> None:
    for name, parts in (("contexts", contexts), ("logsumexps", logsumexps)):
        if isinstance(parts, Tensor):
            raise TypeError(f"{name} is a torch.Tensor; expected a list of them, one for each part of the source")
        for n, part in enumerate(parts):
            if not isinstance(part, Tensor):
                raise TypeError(f"{name}[{n}] is a {type(part).__name__}; expected a torch.Tensor")
    if not contexts or len(contexts) != len(logsumexps):
        raise ValueError(
            f"contexts has {len(contexts)} parts and logsumexps {len(logsumexps)}; expected as many, 1 or more"
        )
    for n, (context, logsumexp) in enumerate(zip(contexts, logsumexps)):
        if context.shape != contexts[0].shape or context.dtype != contexts[0].dtype:
            given, expected = (f"{x.dtype} {list(x.shape)}" for x in (context, contexts[0]))
            raise ValueError(f"contexts[{n}] is {given}; expected {expected} like contexts[0]")
        if logsumexp.shape != context.shape[:-1]:
            shape, fitting = tuple(logsumexp.shape), list(context.shape[:-1])
            raise ValueError(f"logsumexps[{n}] has shape {shape}; expected {fitting} to fit its context")
        if not logsumexp.is_floating_point() or logsumexp.dtype != logsumexps[0].dtype:
            expected = "a floating-point one" if n == 0 else f"{logsumexps[0].dtype} like logsumexps[0]"
            raise TypeError(f"logsumexps[{n}] has dtype {logsumexp.dtype}; expected {expected}")
