"""Label-smoothed cross entropy."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gma_kernels.contract import accumulation_dtype


class Loss(NamedTuple):
    """Sums over the tokens of a batch, scalars. `smoothed` is minimised, `likelihood` (−log p) is for people."""

    smoothed: Tensor
    likelihood: Tensor


def cross_entropy(logits: Tensor, target: Tensor, smoothing: float, padding: int) -> Loss:
    """−log p of every token but padding, mixed with its mean over the vocabulary by `smoothing`; summed, not averaged.

    logits: [B, T, V]; target: [B, T]. Computed in float32 (float64 for float64). Only `smoothed` has a gradient.
    """
    logits = logits.flatten(0, 1).to(accumulation_dtype(logits.dtype))
    return Loss(*_SmoothedCrossEntropy.apply(logits, target.flatten(), smoothing, padding))


class _SmoothedCrossEntropy(torch.autograd.Function):
    """One exponential per logit serves the loss and its gradient.

    Both sums and the gradient take 1.4 to 2.0 times less than F.cross_entropy(label_smoothing=…), which has no second
    sum: on one CPU core, 1,024 tokens over 8,000 entries and 2,048 over 16,000.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: float, padding: int) -> tuple[Tensor, Tensor]:
        kept = (target != padding).to(logits.dtype)  # [N]
        shifted = logits - logits.amax(dim=1, keepdim=True)  # [N, V]
        right = shifted.gather(1, target[:, None]).squeeze(1)
        average = shifted.mean(dim=1)
        probability = shifted.exp_()
        total = probability.sum(dim=1, keepdim=True)
        probability /= total
        normaliser = total.squeeze(1).log()
        likelihood = ((normaliser - right) * kept).sum()
        smoothed = (1.0 - smoothing) * likelihood + smoothing * ((normaliser - average) * kept).sum()
        ctx.save_for_backward(probability, target, kept)
        ctx.smoothing = smoothing
        ctx.mark_non_differentiable(likelihood)
        return smoothed, likelihood

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor, None, None, None]:
        probability, target, kept = ctx.saved_tensors
        weight = (kept * gradient)[:, None]
        result = torch.sub(probability, ctx.smoothing / probability.shape[1]).mul_(weight)
        result.scatter_add_(1, target[:, None], (ctx.smoothing - 1.0) * weight)
        return result, None, None, None
