"""Expected position and variance of the weights, against plain sums over the weights themselves."""

import pytest
import torch

import gma_kernels
from tests.support.numerics import PRIORS, Inputs, simple_inputs

VISIBLE = torch.tensor([[[40, 0, 13, 55, 2]], [[1, 39, 7, 0, 40]]], dtype=torch.int32)


def plain_moments(inputs: Inputs, **settings) -> tuple[torch.Tensor, torch.Tensor]:
    weights = gma_kernels.attention_weights(*inputs.without_value(), **settings, backend="reference")
    position = torch.arange(1, weights.shape[3] + 1, dtype=weights.dtype)
    mean = weights @ position
    return mean, (weights * (position - mean[..., None]).square()).sum(dim=3)


@pytest.mark.parametrize("prior", PRIORS)
def test_moments_and_their_gradients(backend, prior):
    inputs = simple_inputs(keys=40, visible=VISIBLE, center_heads=3).leaves()
    inputs = inputs._replace(key=inputs.key[:, :1])  # grouped
    settings = {"first": torch.tensor([3, 0, 12, 20, 1], dtype=torch.int32).expand(2, 1, 5), "prior": prior}
    found = gma_kernels.position_moments(*inputs.without_value(), **settings, backend=backend)
    expected = plain_moments(inputs, **settings)
    wanted = (inputs.query, inputs.key, inputs.center, inputs.width)
    for got, exact in zip(found, expected):
        torch.testing.assert_close(got, exact, rtol=0, atol=1e-10)
        grads = [
            torch.autograd.grad(x.sin().sum(), wanted, retain_graph=True, allow_unused=True, materialize_grads=True)
            for x in (got, exact)
        ]
        for x, y in zip(*grads):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_narrow_row_of_a_long_source_keeps_the_digits_of_its_variance(backend, dtype):
    """Around position 0 the squares would be 16 million, and their rounding larger than the variance."""
    inputs = simple_inputs(1, 2, 6, 4096, dtype=dtype)
    inputs = inputs._replace(center=torch.tensor([1.0, 100.3, 2047.5, 2048.5, 4000.2, 4096.0]).expand(1, 1, 6))
    found = gma_kernels.position_moments(*inputs.without_value(), backend=backend)
    for got, exact in zip(found, plain_moments(inputs.to(torch.float64))):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=0.02)


def test_rows_that_see_nothing_have_moments_and_gradients_zero(backend):
    inputs = simple_inputs(visible=torch.tensor([[[0, 3, 0, 7, 0]]] * 2, dtype=torch.int32)).leaves()
    found = gma_kernels.position_moments(*inputs.without_value(), backend=backend)
    blind = (inputs.visible == 0).expand(2, 3, 5)
    for x in found:
        assert (x[blind] == 0).all()
        assert (x[~blind] > 0).all()
        (grad,) = torch.autograd.grad(x.sum(), inputs.center, retain_graph=True)
        assert (grad[inputs.visible == 0] == 0).all()


def test_wrong_arguments_are_named():
    inputs = simple_inputs()
    with pytest.raises(ValueError, match="center has shape"):
        gma_kernels.position_moments(inputs.query, inputs.key, inputs.center[..., :2], *inputs[4:])
    with pytest.raises(TypeError, match="first has dtype"):
        gma_kernels.position_moments(*inputs.without_value(), first=inputs.center)
    with pytest.raises(ValueError, match="prior is"):
        gma_kernels.position_moments(*inputs.without_value(), prior="normal")
