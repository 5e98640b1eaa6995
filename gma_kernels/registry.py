"""Every backend's operators, and the kernels they run. The only file that knows all the backends.

`reference` is registered here, and `triton` by kernels that import it when they are called. `native` and `cuda` are in
the compiled extension, which brings kernels for the schemas defined here.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from gma_kernels import native, ops, packed_reference, reference
from gma_kernels.contract import PRIORS, check_offsets, check_values


def operators_of(backend: str) -> ops.Operators:
    """The functions to call. The dispatcher would find the same ones, but its search slows short calls down."""
    if is_compiling():
        return OPERATORS[backend]
    return TRANSFORMED_ROUTES[backend] if torch._C._are_functorch_transforms_active() else GRADIENT_ROUTES[backend]


def _reference_forward(query: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    key, value, center, width, visible, seed, prior, scale, dropout_p = arguments
    return _reference_general_forward(
        query, key, value, center, width, visible, None, None, None, seed, prior, scale, dropout_p
    )


def _reference_general_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    first: Tensor | None,
    cu_query: Tensor | None,
    cu_key: Tensor | None,
    seed: Tensor | None,
    prior: int,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    check_values(center, width, visible, first)
    inputs = (query, key, value, center, width, visible, first)
    if cu_query is None or cu_key is None:
        return reference.forward(*inputs, seed, PRIORS[prior], scale, dropout_p)
    check_offsets("cu_query", cu_query, query.shape[2], "query")
    check_offsets("cu_key", cu_key, key.shape[2], "key")
    return packed_reference.forward(*inputs, cu_query, cu_key, seed, PRIORS[prior], scale, dropout_p)


def _reference_backward(grad_context: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    query, key, value, center, width, visible, seed, *rest = arguments
    return _reference_general_backward(
        grad_context, None, query, key, value, center, width, visible, None, None, None, seed, *rest
    )


def _reference_general_backward(
    grad_context: Tensor,
    grad_logsumexp: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    first: Tensor | None,
    cu_query: Tensor | None,
    cu_key: Tensor | None,
    seed: Tensor | None,
    context: Tensor,
    logsumexp: Tensor,
    prior: int,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, ...]:
    for name, grad, like in (("grad_context", grad_context, context), ("grad_logsumexp", grad_logsumexp, logsumexp)):
        if grad is not None and grad.shape != like.shape:
            raise ValueError(f"{name} has shape {tuple(grad.shape)}; expected {tuple(like.shape)}")
    inputs = (grad_context, grad_logsumexp, query, key, value, center, width, visible, first)
    if cu_query is None or cu_key is None:
        return reference.backward(*inputs, seed, PRIORS[prior], scale, dropout_p)
    return packed_reference.backward(*inputs, cu_query, cu_key, seed, PRIORS[prior], scale, dropout_p)


def _reference_weights(
    query: Tensor, key: Tensor, center: Tensor, width: Tensor, visible: Tensor, prior: int, scale: float
) -> Tensor:
    return _reference_general_weights(query, key, center, width, visible, None, prior, scale)


def _reference_general_weights(
    query: Tensor,
    key: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    first: Tensor | None,
    prior: int,
    scale: float,
) -> Tensor:
    check_values(center, width, visible, first)
    return reference.weights(query, key, center, width, visible, first, PRIORS[prior], scale).contiguous()


def _weights_backward(
    grad_weights: Tensor,
    weights: Tensor,
    query: Tensor,
    key: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    first: Tensor | None,
    prior: int,
    scale: float,
) -> tuple[Tensor, ...]:
    inputs = (query, key, center, width, visible, first)
    return reference.weights_backward(grad_weights, weights, *inputs, PRIORS[prior], scale)


def _triton_kernel(role: str) -> Callable:
    def kernel(*arguments: Any) -> Any:
        # at the first call, not before: importing triton takes seconds, and many machines have none
        from gma_kernels import triton

        return getattr(triton, role)(*arguments)

    return kernel


REFERENCE_KERNELS = ops.Operators(
    _reference_forward,
    _reference_backward,
    _reference_weights,
    _reference_general_forward,
    _reference_general_backward,
    _reference_general_weights,
)

# by backend: the operators, and what the dispatcher would run for each of them at the Autograd key
OPERATORS: dict[str, ops.Operators] = {}
GRADIENT_ROUTES: dict[str, ops.Operators] = {}
for name, derivatives in {
    "reference": ops.Derivatives(_weights_backward, REFERENCE_KERNELS),
    **dict.fromkeys(("native", "triton", "cuda"), ops.Derivatives(_weights_backward)),
}.items():
    OPERATORS[name], GRADIENT_ROUTES[name] = ops.define(name, derivatives)

# inside the transforms of torch.func: autograd in Python, for they do not see through one in C++
TRANSFORMED_ROUTES = dict(GRADIENT_ROUTES)
if native.has_autograd:
    # the dispatcher finds these before what is defined in ops
    forward, backward = OPERATORS["native"][:2]
    GRADIENT_ROUTES["native"] = GRADIENT_ROUTES["native"]._replace(forward=forward, backward=backward)
for role, operator in OPERATORS["triton"]._asdict().items():
    for device in ("CUDA", "CPU"):
        ops.library.impl(operator, _triton_kernel(role), device)
for operator, kernel in zip(OPERATORS["reference"], REFERENCE_KERNELS):
    ops.library.impl(operator, kernel, "CompositeExplicitAutograd")
