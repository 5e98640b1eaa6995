"""Our operator against what a user would otherwise write: forward, backward, decoding. float32, H = 8, D = 64."""

import pytest
import torch

from benchmarks.suites.contenders import (
    CONTENDERS,
    FORWARD_CONTENDERS,
    SAME_RESULT,
    decoding_problem,
    problem,
    refuse_if_wrong,
    with_gradients,
)
from benchmarks.suites.interleave import interleaved

# batch, T = S, rounds
SIZES = [(32, 32, 60), (8, 128, 40), (4, 512, 15), (1, 2048, 9)]


@pytest.mark.parametrize(("batch", "length", "rounds"), SIZES)
def test_forward(benchmark, batch, length, rounds):
    p = problem(batch, length, length)
    refuse_if_wrong(p, gradients=False, names=(*SAME_RESULT, "FlexAttention"))
    benchmark.extra_info.update(suite="forward", size=f"B={batch} T=S={length}")
    with torch.no_grad():
        interleaved(benchmark, {name: lambda f=f: f(p) for name, f in FORWARD_CONTENDERS.items()}, rounds)


@pytest.mark.parametrize(("batch", "length", "rounds"), SIZES)
def test_forward_and_backward(benchmark, batch, length, rounds):
    p = problem(batch, length, length)
    refuse_if_wrong(p, gradients=True)
    benchmark.extra_info.update(suite="forward+backward", size=f"B={batch} T=S={length}")
    interleaved(benchmark, {name: with_gradients(f, p) for name, f in CONTENDERS.items()}, rounds)


@pytest.mark.parametrize(("streams", "keys", "rounds"), [(64, 256, 60), (1, 32, 500)])
def test_decoding(benchmark, streams, keys, rounds):
    p = decoding_problem(streams, keys, capacity=2 * keys)
    refuse_if_wrong(p, gradients=False)
    benchmark.extra_info.update(suite="decoding", size=f"{streams} stream{'s' * (streams > 1)}, S={keys}")
    with torch.no_grad():
        interleaved(benchmark, {name: lambda f=f: f(p) for name, f in CONTENDERS.items()}, rounds)
