"""The torch operators without their kernels: schemas, fakes and autograd. One set per backend, all alike.

    {backend}_forward(query, key, value, center, width, visible, seed, prior, scale, dropout_p) -> context, logsumexp
    {backend}_backward(grad_context, …the inputs…, context, logsumexp, prior, scale, dropout_p) -> five gradients
    {backend}_weights(query, key, center, width, visible, prior, scale) -> weights

and the same with what not every call needs, `GENERAL_INPUTS`: a left bound, offsets of packed sentences (then the
tensors are those of one long sentence), a logsumexp with a gradient:

    {backend}_general_forward, {backend}_general_backward(grad_context, grad_logsumexp, …), {backend}_general_weights

They are operators of their own because every argument costs a short call time. Grouped heads are a matter of shapes and
served by both kinds.

`prior` is an index into PRIORS. `seed` is None exactly when there is no dropout. `registry` says which backends
there are and where their kernels come from. Autograd is written here for all of them; `native` has the same in C++ for
the first kind, for the sake of short calls.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gma_kernels import vmap
from gma_kernels.contract import accumulation_dtype

library = torch.library.Library("gma_kernels", "DEF")

ATTENTION_INPUTS = "Tensor query, Tensor key, Tensor value, Tensor center, Tensor width, Tensor visible, Tensor? seed"
GENERAL_INPUTS = ATTENTION_INPUTS.replace(
    "Tensor? seed", "Tensor? first, Tensor? cu_query, Tensor? cu_key, Tensor? seed"
)
SETTINGS = "int prior, float scale, float dropout_p"
RESULTS = "(Tensor context, Tensor logsumexp)"
GRADIENTS = "(Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_center, Tensor grad_width)"
WEIGHTS_INPUTS = "Tensor query, Tensor key, Tensor center, Tensor width, Tensor visible"
OF_RESULTS = "Tensor context, Tensor logsumexp"


class Operators(NamedTuple):
    """The operators of one backend, or what runs for each of them at the Autograd key."""

    forward: Callable
    backward: Callable
    weights: Callable
    general_forward: Callable
    general_backward: Callable
    general_weights: Callable


SCHEMAS = (
    f"({ATTENTION_INPUTS}, {SETTINGS}) -> {RESULTS}",
    f"(Tensor grad_context, {ATTENTION_INPUTS}, {OF_RESULTS}, {SETTINGS}) -> {GRADIENTS}",
    f"({WEIGHTS_INPUTS}, int prior, float scale) -> Tensor",
    f"({GENERAL_INPUTS}, {SETTINGS}) -> {RESULTS}",
    f"(Tensor grad_context, Tensor? grad_logsumexp, {GENERAL_INPUTS}, {OF_RESULTS}, {SETTINGS}) -> {GRADIENTS}",
    f"({WEIGHTS_INPUTS}, Tensor? first, int prior, float scale) -> Tensor",
)


class Derivatives(NamedTuple):
    """What autograd calls in place of operators, made of PyTorch's own, which it can differentiate again.

    Of the weights (grad_weights, weights, query, key, center, width, visible, first, prior, scale) -> gradients of
    query, key, center and width: they are T×S by nature, so their gradient may be too, and one plain formula serves
    every backend. plain: the operators themselves, for double backward and forward mode; where it is None both are
    refused.
    """

    weights: Callable
    plain: "Operators | None" = None


def define(backend: str, derivatives: Derivatives) -> tuple[Operators, Operators]:
    """Define the operators of a backend, with fakes and autograd. Kernels are registered separately.

    Args:
        backend: its name, which begins the operators' names.
        derivatives: of its operators, where they are not operators themselves.

    Returns:
        The operators, and what the dispatcher would run for each of them at the Autograd key.
    """
    fakes = Operators(*2 * (_fake_forward, _fake_backward, _fake_weights))
    fakes = fakes._replace(general_backward=lambda grad_context, _, *rest: _fake_backward(grad_context, *rest))
    for role, schema, fake in zip(Operators._fields, SCHEMAS, fakes):
        library.define(f"{backend}_{role}{schema}")
        torch.library.register_fake(f"gma_kernels::{backend}_{role}", fake, lib=library)
    namespace = torch.ops.gma_kernels
    operators = Operators(*(getattr(namespace, f"{backend}_{role}").default for role in Operators._fields))
    for operator in operators:
        vmap.register(operator, library)
    return operators, _register_autograd(backend, operators, derivatives)


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


def _register_autograd(backend: str, operators: Operators, derivatives: Derivatives) -> Operators:
    class Attention(Transformable):
        @staticmethod
        def forward(*arguments: Any) -> Any:
            return _below_autograd(operators.forward, *arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
            ctx.save_for_backward(*inputs[:7], *output)
            ctx.settings = inputs[7:]
            ctx.mark_non_differentiable(output[1])

        @staticmethod
        def backward(ctx: Any, grad_context: Tensor, _: None) -> Any:
            *inputs, context, logsumexp = ctx.saved_tensors
            grads = routes.backward(grad_context, *inputs, context, logsumexp, *ctx.settings)
            return *grads, None, None, None, None, None

    class GeneralAttention(Transformable):
        @staticmethod
        def forward(*arguments: Any) -> Any:
            return _below_autograd(operators.general_forward, *arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
            ctx.save_for_backward(*inputs[:10], *output)
            ctx.settings = inputs[10:]
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx: Any, grad_context: Tensor | None, grad_logsumexp: Tensor | None) -> Any:
            *inputs, context, logsumexp = ctx.saved_tensors
            if grad_context is None:
                grad_context = torch.zeros_like(context)
            grads = routes.general_backward(grad_context, grad_logsumexp, *inputs, context, logsumexp, *ctx.settings)
            return *grads, *[None] * 8

    class Weights(Transformable):
        @staticmethod
        def forward(*arguments: Any) -> Any:
            return _below_autograd(operators.weights, *arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
            ctx.save_for_backward(output, *inputs[:5], None)
            ctx.settings = inputs[5:]

        @staticmethod
        def backward(ctx: Any, grad_weights: Tensor) -> Any:
            grads = derivatives.weights(grad_weights, *ctx.saved_tensors, *ctx.settings)
            return *grads, None, None, None

    class GeneralWeights(Transformable):
        @staticmethod
        def forward(*arguments: Any) -> Any:
            return _below_autograd(operators.general_weights, *arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
            ctx.save_for_backward(output, *inputs[:6])
            ctx.settings = inputs[6:]

        @staticmethod
        def backward(ctx: Any, grad_weights: Tensor) -> Any:
            grads = derivatives.weights(grad_weights, *ctx.saved_tensors, *ctx.settings)
            return *grads, None, None, None, None

    plain = derivatives.plain
    differentiable = Operators(
        Attention.apply,
        plain.backward if plain else _undifferentiable(backend, operators.backward),
        Weights.apply,
        GeneralAttention.apply,
        plain.general_backward if plain else _undifferentiable(backend, operators.general_backward),
        GeneralWeights.apply,
    )
    routes = Operators(*map(_route_gradients, operators, differentiable, plain or differentiable))
    return routes


class Transformable(torch.autograd.Function):
    """One that goes through torch.func: `vmap` of it is made of those of the operators in it."""

    generate_vmap_rule = True

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise RuntimeError("gma_kernels: forward mode is only in backend='reference'; pass that")


def _undifferentiable(backend: str, operator: Callable) -> Callable:
    """A backward operator as autograd calls it where a derivative of its own is wanted, too."""

    class Backward(Transformable):
        @staticmethod
        def forward(*arguments: Any) -> Any:
            return _below_autograd(operator, *arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:
            raise RuntimeError(
                f"gma_kernels: backend '{backend}' has no double backward; "
                "pass backend='reference', which can be differentiated any number of times"
            )

    return Backward.apply


def _route_gradients(operator: Callable, with_gradients: Callable, in_forward_mode: Callable) -> Callable:
    """Registers what calls `with_gradients` if a derivative is wanted, and the operator's kernel if not; returns what
    does the same when it is called by itself, within transforms of torch.func, too."""

    def dispatch(*arguments: Any) -> Any:
        if forward_ad._current_level >= 0:
            # past autograd these derivatives would vanish silently
            return in_forward_mode(*arguments)
        if torch.is_grad_enabled():
            for x in arguments:
                if isinstance(x, Tensor) and x.requires_grad:
                    return with_gradients(*arguments)
        return _below_autograd(operator, *arguments)

    def route(*arguments: Any) -> Any:
        if torch._C._are_functorch_transforms_active() and forward_ad._current_level < 0:
            # which of the transforms want gradients only they know
            return with_gradients(*arguments)
        return dispatch(*arguments)

    library.impl(operator, dispatch, "Autograd")
    return route
