"""Random cases on a backend against the float64 reference, within the tolerance of the operator's contract."""

from collections.abc import Callable

import torch
from torch import Tensor

import gma_kernels
from tests.support.numerics import Case, Inputs, allowed, error, run, run_yardstick, yardstick


def kept_weights(case: Case) -> Tensor | None:
    """What dropout multiplies the weights with, recovered from the float64 reference by identity values."""
    if case.dropout_p == 0 or 0 in (case.batch, case.rows, case.keys):
        return None
    shape = (case.batch, case.heads, case.rows, case.keys)
    ones = torch.ones(case.batch, 1, case.rows, dtype=torch.float64)
    everything = torch.full(ones.shape, case.keys, dtype=torch.int32)
    zeros = torch.zeros(case.batch, case.heads, case.rows + case.keys, 1, dtype=torch.float64)
    query, key = zeros[:, :, : case.rows], zeros[:, :, case.rows :]
    identity = torch.eye(case.keys, dtype=torch.float64).expand(*shape[:2], -1, -1)
    dropped = gma_kernels.gaussian_attention(
        query, key, identity, ones, ones, everything, prior="none", **case.dropout(), backend="reference"
    )
    return (dropped > 0).double() / (1 - case.dropout_p)


def out_of_tolerance(
    case: Case, got: dict[str, Tensor], exact: dict[str, Tensor], plain: dict[str, Tensor]
) -> list[str]:
    """A line for every result that is not. plain: the yardstick's results, in the dtype of `got`."""
    found = []
    for name, x in got.items():
        limit = allowed(error(plain[name], exact[name]), case.dtype)
        seen = error(x, exact[name])
        if not seen <= limit:
            found.append(f"{name}: error {seen:.3g} > {limit:.3g} in {case}")
    return found


def failures(case: Case, backend: str, place: Callable[[Tensor], Tensor] = lambda x: x) -> list[str]:
    """What is out of tolerance: context, weights and gradients. place: moves the inputs to the backend's device."""
    inputs, grad = case.build()
    exact = run(case, inputs.to(torch.float64), grad.double(), "reference")
    plain = run_yardstick(case, inputs, grad, kept_weights(case))
    got = run(case, Inputs(*map(place, inputs)), place(grad), backend)
    return out_of_tolerance(case, {name: x.cpu() for name, x in got.items()}, exact, plain)


def checked(case: Case, backend: str) -> list[str]:
    """The same, with an exception as a failure."""
    try:
        return failures(case, backend)
    except Exception as exception:
        return [f"{type(exception).__name__}: {exception} in {case}"]


def weights_failures(case: Case, backend: str) -> list[str]:
    """What is out of tolerance: gradients through the weights."""
    inputs, _ = case.build()
    make = torch.Generator().manual_seed(case.seed)
    grad = torch.randn(case.batch, case.heads, case.rows, case.keys, generator=make).to(case.dtype)
    exact = _weights_gradients(case, inputs.to(torch.float64), grad.double(), "reference")
    plain = _weights_gradients(case, inputs, grad, "yardstick")
    return out_of_tolerance(case, _weights_gradients(case, inputs, grad, backend), exact, plain)


def _weights_gradients(case: Case, inputs: Inputs, grad: Tensor, backend: str) -> dict[str, Tensor]:
    leaves = inputs.leaves()
    if backend == "yardstick":
        weights = yardstick(leaves, case.prior, case.scale, None)[1]
    else:
        weights = gma_kernels.attention_weights(*leaves.without_value(), **case.settings(), backend=backend)
    names = ("query", "key", "center", "width")
    grads = torch.autograd.grad(weights, [getattr(leaves, name) for name in names], grad, allow_unused=True)
    return {name: torch.zeros_like(getattr(leaves, name)) if g is None else g for name, g in zip(names, grads)}
