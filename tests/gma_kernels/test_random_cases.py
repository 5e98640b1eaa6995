"""Seeded random cases against the float64 reference, within the tolerance of the contract. None is excluded."""

import pytest
import torch

import gma_kernels
from tests.support.numerics import CPU_BACKENDS, Case, Inputs, allowed, error, run, run_yardstick, yardstick

CASES_PER_CHUNK = 100
# 200 cases for the reference and 2,000 for each SIMD level; 8,000 more for each level by `make test-all`
CHUNKS = [
    pytest.param(name, chunk, marks=pytest.mark.slow if chunk >= 20 else ())
    for name in CPU_BACKENDS
    for chunk in range(2 if name == "reference" else 100)
]


def kept_weights(case: Case) -> torch.Tensor | None:
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


def failures(case: Case, backend: str) -> list[str]:
    inputs, grad = case.build()
    exact = run(case, inputs.to(torch.float64), grad.double(), "reference")
    plain = run_yardstick(case, inputs, grad, kept_weights(case))
    found = []
    for name, x in run(case, inputs, grad, backend).items():
        limit = allowed(error(plain[name], exact[name]), case.dtype)
        seen = error(x, exact[name])
        if not seen <= limit:
            found.append(f"{name}: error {seen:.3g} > {limit:.3g} in {case}")
    return found


def checked(case: Case, backend: str) -> list[str]:
    try:
        return failures(case, backend)
    except Exception as exception:
        return [f"{type(exception).__name__}: {exception} in {case}"]


@pytest.mark.parametrize(("backend", "chunk"), CHUNKS, indirect=["backend"])
def test_forward_gradients_and_weights_of_random_cases(backend, chunk):
    seeds = range(chunk * CASES_PER_CHUNK, (chunk + 1) * CASES_PER_CHUNK)
    found = [line for seed in seeds for line in checked(Case.draw(seed), backend)]
    assert not found, "\n".join(found)


def test_gradients_through_the_weights_of_random_cases(backend):
    found = []
    for seed in range(10_000, 10_100):
        case = Case.draw(seed)
        inputs, _ = case.build()
        make = torch.Generator().manual_seed(seed)
        grad = torch.randn(case.batch, case.heads, case.rows, case.keys, generator=make).to(case.dtype)
        exact = weights_gradients(case, inputs.to(torch.float64), grad.double(), "reference")
        plain = weights_gradients(case, inputs, grad, "yardstick")
        for name, x in weights_gradients(case, inputs, grad, backend).items():
            limit = allowed(error(plain[name], exact[name]), case.dtype)
            if not error(x, exact[name]) <= limit:
                found.append(f"{name}: error {error(x, exact[name]):.3g} > {limit:.3g} in {case}")
    assert not found, "\n".join(found)


def weights_gradients(case: Case, inputs: Inputs, grad: torch.Tensor, backend: str) -> dict[str, torch.Tensor]:
    leaves = inputs.leaves()
    if backend == "yardstick":
        weights = yardstick(leaves, case.prior, case.scale, None)[1]
    else:
        weights = gma_kernels.attention_weights(*leaves.without_value(), **case.settings(), backend=backend)
    names = ("query", "key", "center", "width")
    grads = torch.autograd.grad(weights, [getattr(leaves, name) for name in names], grad, allow_unused=True)
    return {name: torch.zeros_like(getattr(leaves, name)) if g is None else g for name, g in zip(names, grads)}
