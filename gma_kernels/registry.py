"""Every backend's operators, and the kernels they run. The only file that knows all the backends.

`reference` is registered here, and `triton` by kernels that import it when they are called. `native` and `cuda` are in
the compiled extension, which brings kernels for the schemas defined here.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from gma_kernels import native, ops, reference
from gma_kernels.contract import PRIORS, check_values


def operators_of(backend: str) -> ops.Operators:
    """The functions to call. The dispatcher would find the same ones, but its search slows short calls down."""
    return OPERATORS[backend] if is_compiling() else GRADIENT_ROUTES[backend]


def _reference_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    seed: Tensor | None,
    prior: int,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    check_values(center, width, visible)
    return reference.forward(query, key, value, center, width, visible, seed, PRIORS[prior], scale, dropout_p)


def _reference_backward(
    grad_context: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    seed: Tensor | None,
    context: Tensor,
    logsumexp: Tensor,
    prior: int,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if grad_context.shape != context.shape:
        raise ValueError(f"grad_context has shape {tuple(grad_context.shape)}; expected {tuple(context.shape)}")
    inputs = (query, key, value, center, width, visible)
    return reference.backward(grad_context, *inputs, seed, PRIORS[prior], scale, dropout_p)


def _reference_weights(
    query: Tensor, key: Tensor, center: Tensor, width: Tensor, visible: Tensor, prior: int, scale: float
) -> Tensor:
    check_values(center, width, visible)
    return reference.weights(query, key, center, width, visible, PRIORS[prior], scale).contiguous()


def _weights_backward(
    grad_weights: Tensor,
    weights: Tensor,
    query: Tensor,
    key: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    prior: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return reference.weights_backward(grad_weights, weights, query, key, center, width, visible, PRIORS[prior], scale)


def _triton_kernel(role: str) -> Callable:
    def kernel(*arguments: Any) -> Any:
        # at the first call, not before: importing triton takes seconds, and many machines have none
        from gma_kernels import triton

        return getattr(triton, role)(*arguments)

    return kernel


# by backend: the operators, and what the dispatcher would run for each of them at the Autograd key
OPERATORS: dict[str, ops.Operators] = {}
GRADIENT_ROUTES: dict[str, ops.Operators] = {}
OPERATORS["reference"], GRADIENT_ROUTES["reference"] = ops.define("reference", _weights_backward, _reference_backward)
for fused in ("native", "triton", "cuda"):
    OPERATORS[fused], GRADIENT_ROUTES[fused] = ops.define(fused, _weights_backward)

if native.has_autograd:
    # the dispatcher finds these before what is defined in ops
    GRADIENT_ROUTES["native"] = OPERATORS["native"]._replace(weights=GRADIENT_ROUTES["native"].weights)
for role, operator in OPERATORS["triton"]._asdict().items():
    for device in ("CUDA", "CPU"):
        ops.library.impl(operator, _triton_kernel(role), device)
for operator, kernel in zip(OPERATORS["reference"], (_reference_forward, _reference_backward, _reference_weights)):
    ops.library.impl(operator, kernel, "CompositeExplicitAutograd")
