"""The torch operators: schemas, fakes, value checks and autograd. One set per backend, all with the same contract.

    {backend}_forward(query, key, value, center, width, visible, seed, prior, scale, dropout_p) -> context, logsumexp
    {backend}_backward(grad_context, …the inputs…, context, logsumexp, prior, scale, dropout_p) -> five gradients
    {backend}_weights(query, key, center, width, visible, prior, scale) -> weights

`prior` is an index into PRIORS. `seed` is None exactly when there is no dropout. `reference` is registered here, and
`triton` by kernels that import it when they are called; the other backends bring kernels for schemas defined here.
Autograd is written here for all of them; `native` has the same in C++, for the sake of short calls.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from gma_kernels import native, reference
from gma_kernels.reference import PRIORS, accumulation_dtype

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


OPERATORS: dict[str, Operators] = {}
GRADIENT_ROUTES: dict[str, Operators] = {}


def define(backend: str) -> None:
    """Define the three operators of a backend, with fakes and autograd. Kernels are registered separately."""
    library.define(f"{backend}_forward{FORWARD}")
    library.define(f"{backend}_backward{BACKWARD}")
    library.define(f"{backend}_weights{WEIGHTS}")
    torch.library.register_fake(f"gma_kernels::{backend}_forward", _fake_forward, lib=library)
    torch.library.register_fake(f"gma_kernels::{backend}_backward", _fake_backward, lib=library)
    torch.library.register_fake(f"gma_kernels::{backend}_weights", _fake_weights, lib=library)
    namespace = torch.ops.gma_kernels
    OPERATORS[backend] = Operators(*(getattr(namespace, f"{backend}_{role}").default for role in Operators._fields))
    GRADIENT_ROUTES[backend] = _register_autograd(backend, *OPERATORS[backend])


def operators_of(backend: str) -> Operators:
    """What to call. The dispatcher would come to the same functions; short calls feel the way round by it."""
    return OPERATORS[backend] if is_compiling() else GRADIENT_ROUTES[backend]


def _below_autograd(operator: torch._ops.OpOverload, *arguments):
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*arguments)


def _empty_rows_before_heads(like: Tensor, batch: int, heads: int, rows: int, width: int) -> Tensor:
    return like.new_empty(batch, rows, heads, width).transpose(1, 2)


def _fake_forward(query, key, value, center, width, visible, seed, prior, scale, dropout_p):
    # one meta tensor among real ones brings a call here, where memory nobody wrote would be its result
    if any(x.device != query.device for x in (key, value, center, width, visible)):
        raise ValueError("query, key, value, center, width and visible are not on one device")
    batch, heads, rows, _ = query.shape
    context = _empty_rows_before_heads(query, batch, heads, rows, value.shape[3])
    return context, query.new_empty(batch, heads, rows, dtype=accumulation_dtype(query.dtype))


def _fake_backward(grad_context, query, key, value, center, width, *_):
    by_row = (_empty_rows_before_heads(x, *x.shape) for x in (query, key, value))
    return *by_row, center.new_empty(center.shape), width.new_empty(width.shape)


def _fake_weights(query, key, center, width, visible, prior, scale):
    return query.new_empty(*query.shape[:3], key.shape[2])


def _register_autograd(backend: str, forward: Callable, backward: Callable, weights: Callable) -> Operators:
    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arguments):
            context, logsumexp = _below_autograd(forward, *arguments)
            ctx.save_for_backward(*arguments[:7], context, logsumexp)
            ctx.settings = arguments[7:]
            ctx.mark_non_differentiable(logsumexp)
            return context, logsumexp

        @staticmethod
        def backward(ctx, grad_context, _):
            *inputs, context, logsumexp = ctx.saved_tensors
            if torch.is_grad_enabled() and backend == "reference":
                # create_graph=True: plain PyTorch, so that autograd can differentiate it again
                prior, scale, dropout_p = ctx.settings
                grads = reference.backward(grad_context, *inputs, PRIORS[prior], scale, dropout_p)
            else:
                grads = routes.backward(grad_context, *inputs, context, logsumexp, *ctx.settings)
            return *grads, None, None, None, None, None

    class AttentionBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arguments):
            return _below_autograd(backward, *arguments)

        @staticmethod
        def backward(ctx, *_):
            raise RuntimeError(
                f"gma_kernels: backend '{backend}' has no double backward; "
                "pass backend='reference', which can be differentiated any number of times"
            )

    class Weights(torch.autograd.Function):
        @staticmethod
        def forward(ctx, query, key, center, width, visible, prior, scale):
            inputs = (query, key, center, width, visible)
            posterior = _below_autograd(weights, *inputs, prior, scale)
            ctx.save_for_backward(posterior, *inputs)
            ctx.settings = (PRIORS[prior], scale)
            return posterior

        @staticmethod
        def backward(ctx, grad_weights):
            # the weights are T×S by nature, so their gradient may be too: one plain formula serves every backend
            grads = reference.weights_backward(grad_weights, *ctx.saved_tensors, *ctx.settings)
            return *grads, None, None, None

    routes = Operators(
        _route_gradients(forward, Attention),
        _route_gradients(backward, AttentionBackward),
        _route_gradients(weights, Weights),
    )
    return routes


def _route_gradients(operator: Callable, function: type[torch.autograd.Function]) -> Callable:
    """Run `operator` through `function` when a derivative is wanted, straight to its kernel otherwise."""

    def dispatch(*arguments):
        if torch.is_grad_enabled():
            for x in arguments:
                if isinstance(x, Tensor) and x.requires_grad:
                    return function.apply(*arguments)
        if forward_ad._current_level >= 0:
            # only to be refused: past autograd its tangents would vanish silently
            return function.apply(*arguments)
        return _below_autograd(operator, *arguments)

    library.impl(operator, dispatch, "Autograd")
    return dispatch


def check_values(center: Tensor, width: Tensor, visible: Tensor) -> None:
    """Refuse impossible values on the CPU. Tensors on other devices are never looked at: that would synchronise."""
    if visible.device.type != "cpu" or visible.numel() == 0:
        return
    _refuse("visible", visible, visible < 0, "0 or more")
    sees = visible > 0
    _refuse("center", center, sees & ~center.isfinite(), "a finite number where visible > 0")
    _refuse("width", width, sees & ~(width.isfinite() & (width > 0)), "a finite positive number where visible > 0")


def _refuse(name: str, values: Tensor, bad: Tensor, expected: str) -> None:
    if bad.any():
        b, h, i = bad.nonzero()[0].tolist()
        given = values.expand(bad.shape)[b, h, i].item()
        raise ValueError(f"{name}[b={b}, h={h}, i={i}] is {given}; expected {expected}")


def _reference_forward(query, key, value, center, width, visible, seed, prior, scale, dropout_p):
    check_values(center, width, visible)
    return reference.forward(query, key, value, center, width, visible, seed, PRIORS[prior], scale, dropout_p)


def _reference_backward(grad_context, *arguments):
    *inputs, _context, _logsumexp, prior, scale, dropout_p = arguments
    return reference.backward(grad_context, *inputs, PRIORS[prior], scale, dropout_p)


def _reference_weights(query, key, center, width, visible, prior, scale):
    check_values(center, width, visible)
    return reference.weights(query, key, center, width, visible, PRIORS[prior], scale).contiguous()


def _triton_kernel(role: str) -> Callable:
    def kernel(*arguments):
        # at the first call, not before: importing triton takes seconds, and many machines have none
        from gma_kernels import triton

        return getattr(triton, role)(*arguments)

    return kernel


define("reference")
define("native")
if native.has_autograd:
    # the dispatcher finds these before what is defined here
    GRADIENT_ROUTES["native"] = OPERATORS["native"]._replace(weights=GRADIENT_ROUTES["native"].weights)
define("triton")
for role, operator in OPERATORS["triton"]._asdict().items():
    for device in ("CUDA", "CPU"):
        library.impl(operator, _triton_kernel(role), device)
define("cuda")
for operator, kernel in zip(OPERATORS["reference"], (_reference_forward, _reference_backward, _reference_weights)):
    library.impl(operator, kernel, "CompositeExplicitAutograd")
