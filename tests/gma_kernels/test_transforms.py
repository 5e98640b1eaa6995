"""The operators under the transforms of torch.func, and in forward mode."""

import pytest
import torch
from torch.autograd import forward_ad

import gma_kernels
from tests.support.numerics import Inputs, simple_inputs

RAGGED = torch.tensor([[[0, 1, 7, 3, 9]], [[7, 0, 2, 0, 5]]], dtype=torch.int32)
INPUTS = simple_inputs(visible=RAGGED)
FIRST = torch.tensor([0, 0, 3, 1, 2], dtype=torch.int32).expand(2, 1, 5)
# what every kind of operator is called by: plain, general, the weights
CALLS = {
    "plain": lambda *x, **settings: gma_kernels.gaussian_attention(*x, **settings),
    "bound": lambda *x, **settings: gma_kernels.gaussian_attention(*x, first=FIRST, **settings),
    "logsumexp": lambda *x, **settings: gma_kernels.gaussian_attention(*x, return_logsumexp=True, **settings)[1],
    "grouped": lambda q, k, v, *x, **settings: gma_kernels.gaussian_attention(q, k[:, :1], v[:, :1], *x, **settings),
    "weights": lambda q, k, v, *x, **settings: gma_kernels.attention_weights(q, k, *x, **settings),
}
each_call = pytest.mark.parametrize("call", CALLS)


def loss_of(call: str, backend: str, inputs: Inputs = INPUTS):
    def loss(*differentiable: torch.Tensor) -> torch.Tensor:
        found = CALLS[call](*differentiable, inputs.visible, backend=backend)
        return found.masked_fill(found.isinf(), 0.0).sin().sum()

    return loss


def gradients(call: str, backend: str, inputs: Inputs = INPUTS) -> tuple[torch.Tensor, ...]:
    leaves = inputs.leaves()[:5]
    return torch.autograd.grad(
        loss_of(call, backend, inputs)(*leaves), leaves, allow_unused=True, materialize_grads=True
    )


def assert_all_close(got, expected) -> None:
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)


@each_call
def test_functional_gradient(backend, call):
    got = torch.func.grad(loss_of(call, backend), argnums=tuple(range(5)))(*INPUTS[:5])
    assert_all_close(got, gradients(call, backend))


def several() -> tuple[torch.Tensor, ...]:
    """Three problems, the first three inputs mapped over in dimensions 0, 2 and 1."""
    return tuple(torch.stack([x * n for n in (1.0, 0.5, -1.0)], dim) for x, dim in zip(INPUTS[:3], (0, 2, 1)))


def one_of(stacked: tuple[torch.Tensor, ...], n: int) -> Inputs:
    return Inputs(*(x.select(dim, n) for x, dim in zip(stacked, (0, 2, 1))), *INPUTS[3:])


@each_call
def test_vmap_and_gradients_within_and_around_it(backend, call):
    stacked, dims = several(), (0, 2, 1, None, None)
    loss, alone = loss_of(call, backend), [one_of(several(), n) for n in range(3)]
    mapped = torch.func.vmap(loss, in_dims=dims)
    torch.testing.assert_close(mapped(*stacked, *INPUTS[3:5]), torch.stack([loss(*x[:5]) for x in alone]))
    of_each = torch.func.vmap(torch.func.grad(loss, argnums=tuple(range(5))), in_dims=dims)(*stacked, *INPUTS[3:5])
    expected = [torch.stack(x) for x in zip(*(gradients(call, backend, x) for x in alone))]
    assert_all_close(of_each, expected)
    around = torch.func.grad(lambda *x: mapped(*x).sum(), argnums=tuple(range(5)))(*stacked, *INPUTS[3:5])
    moved = [x.movedim(dim, 0) for x, dim in zip(around, dims[:3])]
    assert_all_close([*moved, *around[3:]], [*expected[:3], *(x.sum(dim=0) for x in expected[3:])])


def test_vmap_drops_in_each_call_what_it_drops_alone(backend):
    def attend(query: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
        return gma_kernels.gaussian_attention(query, *INPUTS[1:], dropout_p=0.5, seed=seed, backend=backend)

    seeds = torch.tensor([4, 9])
    queries = torch.stack([INPUTS.query, INPUTS.query])
    for got, query, seed in zip(torch.func.vmap(attend)(queries, seeds), queries, seeds):
        assert torch.equal(got, attend(query, seed))


def test_jacobian_by_rows(backend):
    def attend(center: torch.Tensor) -> torch.Tensor:
        return gma_kernels.gaussian_attention(*INPUTS[:3], center, *INPUTS[4:], backend=backend).sum(dim=(0, 1, 3))

    got = torch.func.jacrev(attend)(INPUTS.center)
    expected = torch.autograd.functional.jacobian(attend, INPUTS.center)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@each_call
@pytest.mark.parametrize("enabled", [True, False])
def test_forward_mode_is_right_in_the_reference_and_refused_elsewhere(backend, call, enabled):
    """Never silently 0."""
    tangents = [torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape(x.shape) for x in INPUTS[:5]]
    with forward_ad.dual_level(), torch.set_grad_enabled(enabled):
        duals = [forward_ad.make_dual(x, tangent) for x, tangent in zip(INPUTS[:5], tangents)]
        if backend != "reference":
            with pytest.raises((RuntimeError, NotImplementedError)):
                loss_of(call, backend)(*duals)
            return
        got = forward_ad.unpack_dual(loss_of(call, backend)(*duals)).tangent
    expected = sum((x * y).sum() for x, y in zip(gradients(call, backend), tangents))
    torch.testing.assert_close(got, expected)


def test_the_refusal_names_the_backend_that_has_forward_mode(backend):
    if backend == "reference":
        pytest.skip("it has")
    with pytest.raises(RuntimeError, match=r"forward mode.*reference"):
        torch.func.jvp(loss_of("plain", backend), tuple(INPUTS[:5]), tuple(INPUTS[:5]))


@each_call
def test_second_derivatives_of_the_reference(call):
    def loss(center: torch.Tensor) -> torch.Tensor:
        return loss_of(call, "reference")(*INPUTS[:3], center, INPUTS.width)

    got = torch.func.hessian(loss)(INPUTS.center)  # forward mode over gradients
    torch.testing.assert_close(got, torch.autograd.functional.hessian(loss, INPUTS.center), rtol=0, atol=1e-11)
