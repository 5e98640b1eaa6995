"""What is compared: our operator, and what a user would otherwise write. All take the same `Problem`."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import gma_kernels
from gma_kernels import reference

HEADS, HEAD_SIZE = 8, 64

# one compilation for every size and grad mode of the suite; past the default limit torch falls back to eager
torch._dynamo.config.recompile_limit = 64


class Problem(NamedTuple):
    """Inputs of one attention, float32: centers along the diagonal, σ = p/2, δ = 1 (or everything visible)."""

    query: Tensor  # [B, H, T, D]
    key: Tensor  # [B, H, S, D]
    value: Tensor  # [B, H, S, D]
    center: Tensor  # [B, 1, T]
    width: Tensor  # [B, 1, T]
    visible: Tensor  # [B, 1, T]

    @property
    def cells(self) -> int:
        """How many (row, key) pairs are visible, over all heads."""
        return int(self.visible.sum()) * self.query.shape[1]


def problem(batch: int, rows: int, keys: int, everything_visible: bool = False, seed: int = 0) -> Problem:
    """Projections as a model makes them: views of [B, T, H, D] memory."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(batch, n, HEADS, HEAD_SIZE, generator=generator).transpose(1, 2) for n in (rows, keys, keys)
    )
    center = (torch.arange(1, rows + 1) * (keys / rows)).expand(batch, 1, rows).contiguous()
    visible = torch.full_like(center, keys) if everything_visible else (center + 1).floor().clamp(max=keys)
    return Problem(query, key, value, center, center / 2, visible.int())


def decoding_problem(streams: int, keys: int, capacity: int) -> Problem:
    """One row per stream, the streams spread along the diagonal; keys and values are views into longer caches."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(streams, HEADS, 1, HEAD_SIZE, generator=generator)
    key, value = torch.randn(2, streams, HEADS, capacity, HEAD_SIZE, generator=generator)[..., :keys, :]
    center = (torch.arange(1, streams + 1) * (keys / streams)).reshape(streams, 1, 1)
    return Problem(query, key, value, center, center / 2, (center + 1).floor().clamp(max=keys).int())


def native(p: Problem) -> Tensor:
    return gma_kernels.gaussian_attention(*p, backend="native")


def literal(p: Problem) -> Tensor:
    """The paper's three steps: softmax, times the normalised truncated Gaussian, renormalise."""
    soft = torch.softmax(p.query @ p.key.mT * HEAD_SIZE**-0.5, dim=-1)
    position = torch.arange(1, p.key.shape[2] + 1)
    width = p.width[..., None]
    gaussian = torch.exp(-((position - p.center[..., None]) ** 2) / (2 * width**2)) / (math.sqrt(2 * math.pi) * width)
    gaussian = torch.where(position <= p.visible[..., None], gaussian, 0.0)
    gaussian = gaussian / gaussian.sum(dim=-1, keepdim=True)
    posterior = soft * gaussian
    posterior = posterior / posterior.sum(dim=-1, keepdim=True)
    return posterior @ p.value


def reference_backend(p: Problem) -> Tensor:
    return gma_kernels.gaussian_attention(*p, backend="reference")


@functools.partial(torch.compile, dynamic=False)  # every size is compiled for itself, the best it can do
def compiled_reference(p: Problem) -> Tensor:
    """The reference's formulas without the operator around them, so that the compiler can fuse them."""
    return reference.forward(*p, None, None, "gaussian", HEAD_SIZE**-0.5, 0.0)[0]


def sdpa_with_bias(p: Problem) -> Tensor:
    """torch's fused attention with the prior as a materialised bias, which is built here as a model would have to."""
    position = torch.arange(1, p.key.shape[2] + 1)
    bias = -0.5 * ((position - p.center[..., None]) / p.width[..., None]) ** 2
    bias = bias.masked_fill(position > p.visible[..., None], -math.inf)
    return scaled_dot_product_attention(p.query, p.key, p.value, attn_mask=bias)


@functools.partial(torch.compile, dynamic=False)
def flex(p: Problem) -> Tensor:
    """torch's FlexAttention, which makes a kernel of prior and mask; the blocks of the mask are built here, too."""

    def prior(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score - 0.5 * ((j + 1 - p.center[b, 0, i]) / p.width[b, 0, i]) ** 2

    def may_see(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j < p.visible[b, 0, i]

    batch, _, rows, _ = p.query.shape
    blocks = create_block_mask(may_see, batch, None, rows, p.key.shape[2], device=p.query.device)
    return flex_attention(p.query, p.key, p.value, score_mod=prior, block_mask=blocks)


def plain_sdpa(p: Problem) -> Tensor:
    """torch's fused attention with no prior and no truncation: less work asked for, and another result."""
    return scaled_dot_product_attention(p.query, p.key, p.value)


def with_gradients(attention: Callable[[Problem], Tensor], p: Problem) -> Callable[[], tuple[Tensor, ...]]:
    """Forward, then backward to every floating-point input the contender uses."""
    inputs = [x.detach().requires_grad_() for x in p[:5]]
    tracked = Problem(*inputs, p.visible)
    grad = torch.ones(p.query.transpose(1, 2).shape, dtype=p.query.dtype).transpose(1, 2)

    def run() -> tuple[Tensor, ...]:
        context = attention(tracked)
        return context, *torch.autograd.grad(context, inputs, grad, allow_unused=True)

    return run


CONTENDERS: dict[str, Callable[[Problem], Tensor]] = {
    "native": native,
    "literal": literal,
    "reference": reference_backend,
    "compiled reference": compiled_reference,
    "SDPA with bias": sdpa_with_bias,
    "plain SDPA": plain_sdpa,
}
# on a CPU it refuses inputs that want gradients, and what is made of it for a single row does not compile (torch 2.13)
FORWARD_CONTENDERS = {**CONTENDERS, "FlexAttention": flex}

# plain SDPA computes something else
SAME_RESULT = tuple(name for name in CONTENDERS if name != "plain SDPA")
TOLERANCE = 2e-5


def refuse_if_wrong(p: Problem, gradients: bool, names: tuple[str, ...] = SAME_RESULT) -> None:
    """Compare with the float64 reference: max |x − x₆₄| / max(1, max |x₆₄|), of the output and every gradient."""
    exact = Problem(*(x.double() for x in p[:5]), p.visible)
    expected = _results(reference_backend, exact, gradients)
    for name in names:
        for x, x64 in zip(_results(FORWARD_CONTENDERS[name], p, gradients), expected):
            error = ((x - x64).abs().max() / x64.abs().max().clamp(min=1)).item()
            assert error <= TOLERANCE, f"{name} is wrong (error {error:.1e}): no speed is reported for this case"


def _results(attention: Callable[[Problem], Tensor], p: Problem, gradients: bool) -> tuple[Tensor, ...]:
    return with_gradients(attention, p)() if gradients else (attention(p),)
