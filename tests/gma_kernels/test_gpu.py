"""The numeric matrix and a benchmark on a real GPU: `pytest -m gpu`. None of this has run yet where it was written."""

import dataclasses

import pytest
import torch

import gma_kernels
from tests.support.feature_cases import FeatureCase, feature_failures
from tests.support.numerics import GRADIENTS, Case, Inputs, simple_inputs
from tests.support.random_cases import failures

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU; these tests need one"),
]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SIZES = (33, 64, 128)  # every one is compiled anew for every prior, dtype and kernel
CASES = 120


@pytest.fixture(params=["cuda", "triton"])
def backend(request) -> str:
    status = gma_kernels.backends()[request.param]
    if not status.available:
        pytest.skip(f"{request.param}: {status.reason}")
    return request.param


def on_gpu(x: torch.Tensor) -> torch.Tensor:
    """The same values and strides on the GPU."""
    storage = x.new_empty(0).set_(x.untyped_storage()).cuda()
    return storage.as_strided(x.shape, x.stride(), x.storage_offset())


def test_forward_gradients_and_weights_of_random_cases(backend):
    found = []
    for seed in range(CASES):
        case = Case.draw(seed, DTYPES[seed % 3])
        size = SIZES[seed // 3 % 3]
        found += failures(dataclasses.replace(case, scale=None, size=size, value_size=size), backend, on_gpu)
    assert not found, "\n".join(found)


def test_random_cases_of_what_goes_beyond_the_plain_call(backend):
    found = []
    for seed in range(CASES):
        drawn = FeatureCase.draw(seed, dtype=DTYPES[seed % 3])
        size = SIZES[seed // 3 % 3]
        case = dataclasses.replace(drawn.case, scale=None, size=size, value_size=size)
        found += feature_failures(dataclasses.replace(drawn, case=case), backend, on_gpu)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("size", [8, 33, 64, 100, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_long_sequences(backend, dtype, size):
    case = dataclasses.replace(
        Case.draw(size, dtype), batch=2, heads=4, rows=300, keys=500, size=size, value_size=size,
        center_heads=1, width_heads=4, visible_heads=1, visible_kind="ragged",
    )  # fmt: skip
    found = failures(case, backend, on_gpu)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("keys", [1, 63, 300, 5000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decoding(backend, dtype, keys):
    case = dataclasses.replace(
        Case.draw(keys, dtype), batch=2, heads=4, rows=1, keys=keys, size=64, value_size=64,
        center_heads=1, width_heads=1, visible_heads=1, visible_kind="ragged", dropout_p=0.0,
    )  # fmt: skip
    found = failures(case, backend, on_gpu)
    assert not found, "\n".join(found)


def test_two_runs_give_the_same_bits(backend):
    inputs = Inputs(*(x.cuda() for x in simple_inputs(4, 8, 200, 300, 64, 64, dtype=torch.float16)))
    results = []
    for _ in range(2):
        leaves = inputs.leaves()
        context = gma_kernels.gaussian_attention(*leaves, dropout_p=0.1, seed=7, backend=backend)
        results.append([context, *torch.autograd.grad(context, leaves[:5], torch.ones_like(context))])
    for name, x, y in zip(("context", *GRADIENTS), *results):
        assert torch.equal(x, y), name


def test_a_captured_graph_replays(backend):
    inputs = Inputs(*(x.cuda() for x in simple_inputs(4, 8, 1, 300, 64, 64, dtype=torch.float16)))
    expected = gma_kernels.gaussian_attention(*inputs, backend=backend)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gma_kernels.gaussian_attention(*inputs, backend=backend)
    captured.zero_()
    graph.replay()
    assert torch.equal(captured, expected)


@pytest.mark.parametrize(("batch", "length"), [(32, 32), (8, 128), (4, 512), (1, 2048)])
def test_speed_of_a_training_step(backend, benchmark, batch, length):
    """Forward and backward in float16, H = 8, D = 64, centers on the diagonal, δ = 1."""
    make = {"device": "cuda", "dtype": torch.float16, "requires_grad": True}
    query, key, value = (torch.randn(batch, length, 8, 64, **make).transpose(1, 2) for _ in range(3))
    center = torch.arange(1.0, length + 1, device="cuda").expand(batch, 1, length).contiguous().requires_grad_()
    visible = (center.detach() + 1).clamp(max=length).int()

    def step() -> None:
        context = gma_kernels.gaussian_attention(query, key, value, center, center / 2, visible, backend=backend)
        context.sum().backward()
        torch.cuda.synchronize()

    benchmark(step)
