"""The torch operators without their kernels: schemas, fakes and autograd. One set per backend, all alike.

    {backend}_forward(query, key, value, center, width, visible, seed, prior, scale, dropout_p) -> context, logsumexp
    {backend}_backward(grad_context, …the inputs…, context, logsumexp, prior, scale, dropout_p) -> five gradients
    {backend}_weights(query, key, center, width, visible, prior, scale) -> weights

`prior` is an index into PRIORS. `seed` is None exactly when there is no dropout. `registry` says which backends
there are and where their kernels come from. Autograd is written here for all of them; `native` has the same in C++,
for the sake of short calls.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gma_kernels.contract import accumulation_dtype

library = torch.library.Library("gma_kernels", "DEF")

ATTENTION_INPUTS = "Tensor query, Tensor key, Tensor value, Tensor center, Tensor width, Tensor visible, Tensor? seed"
SETTINGS = "int prior, float scale, float dropout_p"
FORWARD = f"({ATTENTION_INPUTS}, {SETTINGS}) -> (Tensor context, Tensor logsumexp)"
BACKWARD = (
    f"(Tensor grad_context, {ATTENTION_INPUTS}, Tensor context, Tensor logsumexp, {SETTINGS})"
    " -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_center, Tensor grad_width)"
)
WEIGHTS = "(Tensor query, Tensor key, Tensor center, Tensor width, Tensor visible, int prior, float scale) -> Tensor"


class Operators(NamedTuple):
    """The three operators of one backend, or what runs for each of them at the Autograd key."""

    forward: Callable
    backward: Callable
    weights: Callable


def define(
    backend: str, weights_backward: Callable, differentiable_backward: Callable | None = None
) -> tuple[Operators, Operators]:
    """Define the three operators of a backend, with fakes and autograd. Kernels are registered separately.

    Args:
        backend: its name, which begins the operators' names.
        weights_backward: (grad_weights, weights, query, key, center, width, visible, prior, scale) -> gradients of
            query, key, center and width. It is no operator but made of PyTorch's: the weights are T×S by nature, so
            their gradient may be too, and one plain formula serves every backend.
        differentiable_backward: the backward operator made of PyTorch's operators, which autograd can differentiate
            again. Without it double backward is refused.

    Returns:
        The operators, and what the dispatcher would run for each of them at the Autograd key.
    """
    library.define(f"{backend}_forward{FORWARD}")
    library.define(f"{backend}_backward{BACKWARD}")
    library.define(f"{backend}_weights{WEIGHTS}")
    torch.library.register_fake(f"gma_kernels::{backend}_forward", _fake_forward, lib=library)
    torch.library.register_fake(f"gma_kernels::{backend}_backward", _fake_backward, lib=library)
    torch.library.register_fake(f"gma_kernels::{backend}_weights", _fake_weights, lib=library)
    namespace = torch.ops.gma_kernels
    operators = Operators(*(getattr(namespace, f"{backend}_{role}").default for role in Operators._fields))
    return operators, _register_autograd(backend, operators, weights_backward, differentiable_backward)


def _below_autograd(operator: Callable, *arguments: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*arguments)


def _empty_rows_before_heads(like: Tensor, batch: int, heads: int, rows: int, width: int) -> Tensor:
    return like.new_empty(batch, rows, heads, width).transpose(1, 2)


def _fake_forward(
    query: Tensor, key: Tensor, value: Tensor, center: Tensor, width: Tensor, visible: Tensor, *_: Any
) -> tuple[Tensor, Tensor]:
    # a call with one meta tensor among real ones comes here, too, and would get memory that nobody has written
    if any(x.device != query.device for x in (key, value, center, width, visible)):
        raise ValueError("query, key, value, center, width and visible are not on one device")
    batch, heads, rows = query.shape[:3]
    context = _empty_rows_before_heads(query, batch, heads, rows, value.shape[3])
    return context, query.new_empty(batch, heads, rows, dtype=accumulation_dtype(query.dtype))


def _fake_backward(
    grad_context: Tensor, query: Tensor, key: Tensor, value: Tensor, center: Tensor, width: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    by_row = (_empty_rows_before_heads(x, *x.shape) for x in (query, key, value))
    return *by_row, center.new_empty(center.shape), width.new_empty(width.shape)


def _fake_weights(query: Tensor, key: Tensor, *_: Any) -> Tensor:
    return query.new_empty(*query.shape[:3], key.shape[2])


def _register_autograd(
    backend: str, operators: Operators, weights_backward: Callable, differentiable_backward: Callable | None
) -> Operators:
    forward, backward, weights = operators

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            context, logsumexp = _below_autograd(forward, *arguments)
            ctx.save_for_backward(*arguments[:7], context, logsumexp)
            ctx.settings = arguments[7:]
            ctx.mark_non_differentiable(logsumexp)
            return context, logsumexp

        @staticmethod
        def backward(ctx: Any, grad_context: Tensor, _: None) -> Any:
            *inputs, context, logsumexp = ctx.saved_tensors
            grads = routes.backward(grad_context, *inputs, context, logsumexp, *ctx.settings)
            return *grads, None, None, None, None, None

    class AttentionBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            return _below_autograd(backward, *arguments)

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:
            raise RuntimeError(
                f"gma_kernels: backend '{backend}' has no double backward; "
                "pass backend='reference', which can be differentiated any number of times"
            )

    class Weights(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            *inputs, prior, scale = arguments
            posterior = _below_autograd(weights, *inputs, prior, scale)
            ctx.save_for_backward(posterior, *inputs)
            ctx.settings = (prior, scale)
            return posterior

        @staticmethod
        def backward(ctx: Any, grad_weights: Tensor) -> Any:
            grads = weights_backward(grad_weights, *ctx.saved_tensors, *ctx.settings)
            return *grads, None, None, None

    routes = Operators(
        _route_gradients(forward, Attention.apply),
        _route_gradients(backward, differentiable_backward or AttentionBackward.apply),
        _route_gradients(weights, Weights.apply),
    )
    return routes


def _route_gradients(operator: Callable, with_gradients: Callable) -> Callable:
    """Registers and returns what calls `with_gradients` if a derivative is wanted, and the operator's kernel if not."""

    def dispatch(*arguments: Any) -> Any:
        if torch.is_grad_enabled():
            for x in arguments:
                if isinstance(x, Tensor) and x.requires_grad:
                    return with_gradients(*arguments)
        if forward_ad._current_level >= 0:
            # forward-mode derivatives: refused there, while past autograd they would vanish silently
            return with_gradients(*arguments)
        return _below_autograd(operator, *arguments)

    library.impl(operator, dispatch, "Autograd")
    return dispatch
