"""The mathematics in plain PyTorch: the oracle every other backend is compared with.

Nothing here is fused and everything of size T×S is materialised. Forward and backward are written out as in
gma_kernels/README.md and consist of differentiable PyTorch operations only, which is what makes double backward work.
Low-precision inputs are computed in float32, float64 in float64.
"""

import functools
import math
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from gma_kernels.contract import (
    LARGEST_OFFSET,
    LINEAR_FLOOR,
    SMALLEST_WIDTH,
    accumulation_dtype,
    full_precision,
    peak_position,
)
from gma_kernels.philox import dropout_scale

Rest = ParamSpec("Rest")
Result = TypeVar("Result")


def without_autocast(
    function: Callable[Concatenate[Tensor, Rest], Result],
) -> Callable[Concatenate[Tensor, Rest], Result]:
    """`function`, untouched by an autocast region around it, which would round its products to 16 bits."""

    @functools.wraps(function)
    def precise(first: Tensor, /, *rest: Rest.args, **named: Rest.kwargs) -> Result:
        with full_precision(first.device.type):
            return function(first, *rest, **named)

    return precise


class Prior:
    """The log-prior of every (row, position) and its derivatives, relative to the row's peak.

    The peak is the visible position nearest the center. Softmax ignores a shift of the row, and taking the shift out
    by algebra instead of subtraction keeps every digit when a center is huge or a width tiny.

    position: [S], 1-based. center, width, first, visible: [B, 1 or H, T]; rows that see nothing must hold harmless
    values, and every row must see something.
    """

    def __init__(self, name: str, position: Tensor, center: Tensor, width: Tensor, first: Tensor, visible: Tensor):
        self.name = name
        peak = peak_position(center.detach(), first, visible)
        self.narrow = (width < SMALLEST_WIDTH)[..., None]
        width = width.clamp(min=SMALLEST_WIDTH)
        limit = width.detach() * LARGEST_OFFSET[width.dtype]
        self.steps = position - peak[..., None]  # j − peak, exact small integers
        self.offset = (peak - center).clamp(-limit, limit)[..., None]  # peak − center
        self.inverse = 1.0 / width[..., None]

    def log(self) -> Tensor:
        """[B, 1 or H, T, S]"""
        if self.name == "gaussian":
            return -(self.steps * self.inverse) * ((0.5 * self.steps + self.offset) * self.inverse)
        if self.name == "laplace":
            return -math.sqrt(2) * self.inverse * self._excess_distance()
        if self.name == "linear":
            return torch.log(self._linear_height().clamp(min=LINEAR_FLOOR))
        return torch.zeros_like(self.steps)

    def by_center(self) -> Tensor:
        """∂ log-prior / ∂ center, up to a constant in j. [B, 1 or H, T, S]"""
        if self.name == "gaussian":
            return self.steps * self.inverse * self.inverse
        if self.name == "laplace":
            sign = torch.sign(self.steps + self.offset) - torch.sign(self.offset)
            return math.sqrt(2) * self.inverse * sign
        if self.name == "linear":
            height = self._linear_height()
            slope = torch.sign(self.steps + self.offset) * (0.5 * self.inverse) / height.clamp(min=LINEAR_FLOOR)
            return torch.where(height > LINEAR_FLOOR, slope, 0.0)
        return torch.zeros_like(self.steps)

    def by_width(self) -> Tensor:
        """∂ log-prior / ∂ width, up to a constant in j. [B, 1 or H, T, S]"""
        if self.name == "gaussian":
            slope = -2.0 * self._finite_log() * self.inverse
        elif self.name == "laplace":
            slope = -1.0 * self._finite_log() * self.inverse
        elif self.name == "linear":
            height = self._linear_height()
            distance = torch.abs(self.steps + self.offset)
            slope = distance * self.inverse * (0.5 * self.inverse) / height.clamp(min=LINEAR_FLOOR)
            slope = torch.where(height > LINEAR_FLOOR, slope, 0.0)
        else:
            return torch.zeros_like(self.steps)
        return torch.where(self.narrow, 0.0, slope)

    def _finite_log(self) -> Tensor:
        # it overflows to ±∞ only where the weight is 0, and 0·∞ would be NaN
        return self.log().clamp(-1e20, 1e20)

    def _excess_distance(self) -> Tensor:
        """|j − center| − |peak − center| without cancellation."""
        sign = torch.where(self.offset < 0, -1.0, 1.0)
        return torch.maximum(sign * self.steps, -sign * self.steps - 2.0 * self.offset.abs())

    def _linear_height(self) -> Tensor:
        return 1.0 - 0.5 * torch.abs(self.steps + self.offset) * self.inverse


class Rows(NamedTuple):
    """What the query rows know of the source, [B, 1 or H, T] each. first: 0 for all where None was given."""

    center: Tensor
    width: Tensor
    first: Tensor
    visible: Tensor

    @classmethod
    def of(cls, center: Tensor, width: Tensor, visible: Tensor, first: Tensor | None, keys: int) -> "Rows":
        first = torch.zeros_like(visible) if first is None else first.clamp(min=0)
        return cls(center, width, first, visible.clamp(max=keys))

    def blind(self) -> Tensor:
        """Which see nothing."""
        return self.visible <= self.first

    def harmless(self) -> "Rows":
        """The same, with rows that see nothing, whose values may be anything, as ones that see position 1."""
        blind = self.blind()
        # a source with no positions needs none
        return Rows(*(torch.where(blind, x, y) for x, y in zip((1.0, 1.0, 0, 1), self)))


@without_autocast
def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    first: Tensor | None,
    seed: Tensor | None,
    prior: str,
    scale: float,
    dropout_p: float,
    sentence: int = 0,
) -> tuple[Tensor, Tensor]:
    """Context [B, H, T, Dv], and the log of each row's normaliser [B, H, T], −∞ where nothing is visible.

    sentence: the number of the first one, which dropout depends on.
    """
    rows = Rows.of(center, width, visible, first, key.shape[2])
    posterior, normaliser = _posterior(query, key, rows, prior, scale)
    if seed is not None:
        posterior = posterior * dropout_scale(seed, posterior.shape, dropout_p, posterior.dtype, sentence)
    context = posterior @ _heard(value, query, rows).to(posterior.dtype)
    return rows_before_heads(context.to(query.dtype)), normaliser


@without_autocast
def weights(
    query: Tensor,
    key: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    first: Tensor | None,
    prior: str,
    scale: float,
) -> Tensor:
    """The posterior β. [B, H, T, S]"""
    rows = Rows.of(center, width, visible, first, key.shape[2])
    return _posterior(query, key, rows, prior, scale)[0].to(query.dtype)


@without_autocast
def backward(
    grad_context: Tensor,
    grad_logsumexp: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    first: Tensor | None,
    seed: Tensor | None,
    prior: str,
    scale: float,
    dropout_p: float,
    sentence: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, center and width, each in its own shape."""
    rows = Rows.of(center, width, visible, first, key.shape[2])
    posterior, _ = _posterior(query, key, rows, prior, scale)
    grad_context = _of_seeing_rows(grad_context, rows).to(posterior.dtype)
    grad_posterior = grad_context @ _heard(value, query, rows).to(posterior.dtype).mT
    dropped = posterior
    if seed is not None:
        keep = dropout_scale(seed, posterior.shape, dropout_p, posterior.dtype, sentence)
        grad_posterior = grad_posterior * keep
        dropped = posterior * keep
    grad_value = rows_before_heads(_sum_groups(dropped.mT @ grad_context, value).to(value.dtype))
    by_input = _backward_posterior(grad_posterior, grad_logsumexp, posterior, query, key, rows, prior, scale)
    grad_query, grad_key, grad_center, grad_width = by_input
    return grad_query, grad_key, grad_value, grad_center, grad_width


@without_autocast
def weights_backward(
    grad_weights: Tensor,
    posterior: Tensor,
    query: Tensor,
    key: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    first: Tensor | None,
    prior: str,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, center and width through the posterior itself."""
    dtype = accumulation_dtype(query.dtype)
    rows = Rows.of(center, width, visible, first, key.shape[2])
    grad_posterior = _of_seeing_rows(grad_weights, rows).to(dtype)
    return _backward_posterior(grad_posterior, None, posterior.to(dtype), query, key, rows, prior, scale)


def rows_before_heads(x: Tensor) -> Tensor:
    """The same [B, H, N, D] values, dense in [B, N, H, D] memory: the layout of every output of the operators."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _posterior(query: Tensor, key: Tensor, rows: Rows, prior: str, scale: float) -> tuple[Tensor, Tensor]:
    """β in the accumulation dtype [B, H, T, S], and the log of its normaliser [B, H, T]."""
    dtype = accumulation_dtype(query.dtype)
    position = _positions(key, dtype)
    blind, known = rows.blind(), rows.harmless()
    log_prior = Prior(prior, position, *known).log()
    logits = (_of_seeing_rows(query, rows).to(dtype) * scale) @ _heard(key, query, rows).to(dtype).mT + log_prior
    # a row that sees nothing keeps position 1, so that its softmax and gradients are finite, and is zeroed afterwards
    hidden = (position > known.visible[..., None]) | (position <= known.first[..., None])
    logits = logits.masked_fill(hidden, -math.inf)
    posterior = torch.softmax(logits, dim=-1).masked_fill(blind[..., None], 0.0)
    normaliser = torch.logsumexp(logits, dim=-1).masked_fill(blind, -math.inf)
    return posterior, normaliser


def _backward_posterior(
    grad_posterior: Tensor,
    grad_logsumexp: Tensor | None,
    posterior: Tensor,
    query: Tensor,
    key: Tensor,
    rows: Rows,
    prior: str,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype = posterior.dtype
    seeing = _of_seeing_rows(query, rows).to(dtype)
    delta = (posterior * grad_posterior).sum(dim=-1, keepdim=True)
    if grad_logsumexp is not None:
        delta = delta - torch.where(rows.blind(), 0.0, grad_logsumexp)[..., None]
    grad_logits = posterior * (grad_posterior - delta)
    grad_query = rows_before_heads((scale * (grad_logits @ _heard(key, query, rows).to(dtype))).to(query.dtype))
    grad_key = rows_before_heads(_sum_groups(scale * (grad_logits.mT @ seeing), key).to(key.dtype))
    slopes = Prior(prior, _positions(key, dtype), *rows.harmless())
    grad_center = (grad_logits * slopes.by_center()).sum(dim=-1)
    grad_width = (grad_logits * slopes.by_width()).sum(dim=-1)
    return grad_query, grad_key, _sum_shared_heads(grad_center, rows.center), _sum_shared_heads(grad_width, rows.width)


def _positions(key: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.arange(1, key.shape[2] + 1, dtype=dtype, device=key.device)


def _heard(x: Tensor, query: Tensor, rows: Rows) -> Tensor:
    """Keys or values, [B, H, S, D] for all heads of the query, with what lies left or right of all that the rows of a
    head see set to 0: a view into a cache may hold anything there, NaN included."""
    x = x.repeat_interleave(query.shape[1] // x.shape[1], dim=1)
    if query.shape[2] == 0:
        return x
    blind = rows.blind()
    begin = torch.where(blind, x.shape[2], rows.first).amin(dim=2, keepdim=True)
    end = torch.where(blind, 0, rows.visible).amax(dim=2, keepdim=True)
    position = torch.arange(x.shape[2], device=x.device)
    return torch.where(((position >= begin) & (position < end))[..., None], x, 0.0)


def _of_seeing_rows(x: Tensor, rows: Rows) -> Tensor:
    """[B, H, T, …] with rows that see nothing set to 0: padding may hold anything, NaN included."""
    return torch.where(rows.blind()[..., None], 0.0, x)


def _sum_groups(grad: Tensor, like: Tensor) -> Tensor:
    """[B, H, S, D] summed over the heads that share a head of keys: [B, H_kv, S, D]"""
    heads = like.shape[1]
    return grad if grad.shape[1] == heads else grad.unflatten(1, (heads, -1)).sum(dim=2)


def _sum_shared_heads(grad: Tensor, like: Tensor) -> Tensor:
    """[B, H, T] summed over heads if the heads share one value."""
    return grad.sum(dim=1, keepdim=True) if like.shape[1] == 1 and grad.shape[1] > 1 else grad.contiguous()
