"""Seeded random cases against the float64 reference, within the tolerance of the contract. None is excluded."""

import dataclasses

import pytest
import torch

import gma_kernels
from gma_kernels.triton import launch
from tests.support.numerics import PRIORS, Case, allowed, error, simple_inputs, yardstick
from tests.support.random_cases import checked, weights_failures

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
CASES_PER_CHUNK = 15
# 30 cases; 390 more by `make test-all`
CHUNKS = [pytest.param(chunk, marks=pytest.mark.slow if chunk >= 2 else ()) for chunk in range(28)]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_forward_gradients_and_weights_of_random_cases(chunk):
    seeds = range(chunk * CASES_PER_CHUNK, (chunk + 1) * CASES_PER_CHUNK)
    found = [line for seed in seeds for line in checked(Case.draw(seed, DTYPES[seed % 3]), "triton")]
    assert not found, "\n".join(found)


def sized(seed: int, size: int, **changes) -> Case:
    """Several source tiles, ragged, with a head of this size."""
    sizes = {
        "batch": 1,
        "heads": 2,
        "rows": 19,
        "keys": 100,
        "size": size,
        "value_size": size,
        "visible_kind": "ragged",
    }
    shared = {"center_heads": 1, "width_heads": 1, "visible_heads": 1}
    return dataclasses.replace(Case.draw(seed, DTYPES[seed % 3]), **(sizes | shared | changes))


@pytest.mark.parametrize("size", [8, 33, 64, 100, 128, 256])
@pytest.mark.parametrize("dtype", range(3), ids=[str(x) for x in DTYPES])
@pytest.mark.slow
def test_every_head_size(size, dtype):
    found = checked(sized(3000 + 30 * size + dtype, size), "triton")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("prior", PRIORS)
def test_every_prior_with_dropout(prior):
    found = checked(sized(50 + PRIORS.index(prior), 33, prior=prior, dropout_p=0.3), "triton")
    assert not found, "\n".join(found)


@pytest.mark.usefixtures("real_tiles")
@pytest.mark.parametrize("size", [pytest.param(s, marks=pytest.mark.slow if s > 64 else ()) for s in (64, 128, 256)])
def test_the_tiles_a_gpu_would_use(size):
    seed = 70 + size
    found = checked(sized(seed, size, rows=150, keys=140), "triton")
    found += checked(sized(seed + 1, size, rows=40, keys=140, visible_kind="diagonal"), "triton")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("keys", [1, 63, 300, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decoding_one_row_with_and_without_a_split_source(keys, dtype):
    """Also that the split happens where it should: 1,500 keys and two heads are shared by several programs."""
    index = DTYPES.index(dtype)
    changes = {"rows": 1, "keys": keys, "batch": 2, "dropout_p": 0.0, "visible_kind": "ragged", "prior": "gaussian"}
    found = checked(dataclasses.replace(sized(90 + index, 40), **changes), "triton")
    assert not found, "\n".join(found)
    parts, part = launch.parts_of_source(2, 2, keys)
    assert parts * part >= keys
    assert (parts > 1) == (keys > 2 * launch.SHORTEST_PART)


@pytest.mark.parametrize("prior", PRIORS)
def test_decoding_equals_the_row_of_a_longer_call(prior):
    inputs = simple_inputs(2, 2, 3, 700, 24, 24, dtype=torch.float32)
    visible = torch.tensor([[[3, 700, 0]], [[512, 1, 257]]], dtype=torch.int32)
    inputs = inputs._replace(visible=visible)
    together = gma_kernels.gaussian_attention(*inputs, prior=prior, backend="triton")
    for row in range(3):
        rows = slice(row, row + 1)
        alone = [inputs.query[:, :, rows], *inputs[1:3], *(x[..., rows] for x in inputs[3:])]
        step = gma_kernels.gaussian_attention(*alone, prior=prior, backend="triton")
        torch.testing.assert_close(step, together[:, :, rows], rtol=1e-5, atol=1e-6)


def test_logsumexp_means_what_it_means_in_the_reference():
    for rows in (5, 1):
        inputs = simple_inputs(rows=rows, dtype=torch.float32)
        visible = torch.arange(rows, dtype=torch.int32).expand(2, 1, rows) + (rows == 1)
        arguments = (*inputs._replace(visible=visible), None, 0, 0.5, 0.0)
        _, expected = torch.ops.gma_kernels.reference_forward(*arguments)
        _, got = torch.ops.gma_kernels.triton_forward(*arguments)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_dropout_drops_the_weights_the_reference_drops():
    """Values are the identity, so the context is the dropped weights themselves."""
    inputs = simple_inputs(2, 3, 20, 33, 8, 33, dtype=torch.float32)
    inputs = inputs._replace(value=torch.eye(33).expand(2, 3, 33, 33))
    for seed, dropout_p in ((0, 0.5), (-(2**62) + 12345, 0.1), (2**40 + 7, 0.9)):
        settings = {"seed": seed, "dropout_p": dropout_p, "prior": "none"}
        got = gma_kernels.gaussian_attention(*inputs, **settings, backend="triton")
        expected = gma_kernels.gaussian_attention(*inputs, **settings, backend="reference")
        assert torch.equal(got == 0, expected == 0)
        assert 0 < (got == 0).float().mean() < 1


@pytest.mark.parametrize("prior", ["gaussian", "laplace"])
def test_a_narrow_prior_far_away_spoils_nothing_where_another_row_sees_on(prior):
    """At positions one row does not see, on the far side of its peak, its logarithm of the prior overflows."""
    inputs = simple_inputs(1, 1, 2, 300, 16, 16, dtype=torch.float32)
    visible = torch.tensor([[[5, 300]]], dtype=torch.int32)
    center = torch.tensor([[[2.0**42, 150.0]]])
    width = torch.tensor([[[2.0**-41, 40.0]]])
    inputs = inputs._replace(center=center, width=width, visible=visible)
    results = []
    for backend, given in (("triton", inputs), ("reference", inputs.to(torch.float64))):
        leaves = given.leaves()
        context = gma_kernels.gaussian_attention(*leaves, prior=prior, backend=backend)
        results.append([context, *torch.autograd.grad(context.square().sum(), leaves[:5])])
    for got, expected in zip(*results):
        torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)


def test_gradients_through_the_weights():
    cases = [sized(seed, 17, dropout_p=0.0) for seed in range(10_000, 10_004)]
    found = [line for case in cases for line in weights_failures(case, "triton")]
    assert not found, "\n".join(found)


def test_the_oracle_of_these_tests_can_fail():
    """A forward that reads one position too far is out of tolerance."""
    case = sized(7, 16, prior="gaussian", dropout_p=0.0, visible_kind="ragged")
    inputs, _ = case.build()
    one_more = inputs._replace(visible=inputs.visible + (inputs.visible > 0).int())
    got = gma_kernels.gaussian_attention(*one_more, **case.settings(), backend="triton")
    exact = gma_kernels.gaussian_attention(*inputs.to(torch.float64), **case.settings(), backend="reference")
    plain, _ = yardstick(inputs, case.prior, case.scale, None)
    assert error(got, exact) > allowed(error(plain, exact), case.dtype)
