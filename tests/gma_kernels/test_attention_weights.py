"""`attention_weights`: rows are distributions, agree with the context and can be differentiated."""

import pytest
import torch

import gma_kernels
from tests.support.numerics import DTYPES, FLOOR, PRIORS, simple_inputs

RAGGED = torch.tensor([[[0, 1, 7, 3, 9]], [[7, 0, 2, 0, 5]]], dtype=torch.int32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("prior", PRIORS)
def test_rows_sum_to_one_or_to_zero_and_hidden_weights_are_zero(backend, prior, dtype):
    inputs = simple_inputs(dtype=dtype, visible=RAGGED)
    weights = gma_kernels.attention_weights(*inputs.without_value(), prior=prior, backend=backend)
    assert weights.dtype == dtype
    assert weights.shape == (2, 3, 5, 7)
    assert weights.is_contiguous()
    total = (RAGGED > 0).double().expand(2, 3, 5)
    torch.testing.assert_close(weights.double().sum(dim=-1), total, rtol=0, atol=7 * FLOOR[dtype])
    hidden = torch.arange(7) >= RAGGED[..., None]
    assert not weights.masked_select(hidden).any()
    assert (weights >= 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("prior", PRIORS)
def test_equal_the_context_of_identity_values(backend, prior, dtype):
    inputs = simple_inputs(dtype=dtype, visible=RAGGED, center_heads=3)
    identity = torch.eye(7, dtype=dtype).expand(2, 3, 7, 7)
    context = gma_kernels.gaussian_attention(*inputs._replace(value=identity), prior=prior, backend=backend)
    weights = gma_kernels.attention_weights(*inputs.without_value(), prior=prior, backend=backend)
    torch.testing.assert_close(weights, context, rtol=0, atol=FLOOR[dtype])


@pytest.mark.parametrize("center_heads", [1, 2])
@pytest.mark.parametrize("prior", PRIORS)
def test_gradcheck(backend, prior, center_heads):
    visible = torch.tensor([[[0, 1, 4, 3]]], dtype=torch.int32)
    inputs = simple_inputs(1, 2, 4, 4, 2, center_heads=center_heads, visible=visible).leaves()
    query, key, center, width, visible = inputs.without_value()
    assert torch.autograd.gradcheck(
        lambda *x: gma_kernels.attention_weights(*x, visible, prior=prior, backend=backend),
        (query, key, center, width),
        fast_mode=center_heads == 1,
    )


def test_two_runs_give_the_same_bits(backend):
    inputs = simple_inputs(2, 3, 33, 65, 16, dtype=torch.float32).without_value()
    first, second = (gma_kernels.attention_weights(*inputs, backend=backend) for _ in range(2))
    assert torch.equal(first, second)


def test_scale_is_the_inverse_root_of_the_head_size_unless_given(backend):
    inputs = simple_inputs(size=9).without_value()
    default = gma_kernels.attention_weights(*inputs, backend=backend)
    torch.testing.assert_close(gma_kernels.attention_weights(*inputs, scale=1 / 3, backend=backend), default)
    assert not torch.allclose(gma_kernels.attention_weights(*inputs, scale=1.0, backend=backend), default)
