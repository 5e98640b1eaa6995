"""Impossible values in rows that see something are refused on the CPU, eagerly and under torch.compile."""

import math
import re

import pytest
import torch

import gma_kernels
from tests.support.numerics import Inputs, simple_inputs

IMPOSSIBLE = [
    ("visible", -1, "0 or more"),
    ("visible", -(2**31), "0 or more"),
    ("center", math.nan, "finite"),
    ("center", math.inf, "finite"),
    ("center", -math.inf, "finite"),
    ("width", math.nan, "positive"),
    ("width", math.inf, "finite"),
    ("width", -math.inf, "finite"),
    ("width", 0.0, "positive"),
    ("width", -0.0, "positive"),
    ("width", -2.5, "positive"),
]


def impossible_inputs(name: str, bad: float, dtype: torch.dtype = torch.float32, heads: int = 3) -> Inputs:
    """One impossible value, in the last sentence, head and row."""
    inputs = simple_inputs(dtype=dtype, center_heads=heads)
    inputs = inputs._replace(visible=inputs.visible.repeat(1, heads, 1))
    getattr(inputs, name)[-1, -1, -1] = bad
    return inputs


def assert_refused(call, name: str, bad: float, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        call()
    message = str(refusal.value)
    assert name in message
    given = re.search(r"\bis (\S+);", message)
    assert given, f"{message!r} does not say what was given"
    assert float(given[1]) == pytest.approx(bad, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("name", "bad", "words"), IMPOSSIBLE)
def test_impossible_value_in_a_row_that_sees_something(backend, name, bad, words, dtype):
    inputs = impossible_inputs(name, bad, dtype)
    assert_refused(lambda: gma_kernels.gaussian_attention(*inputs, backend=backend), name, bad, words)
    assert_refused(lambda: gma_kernels.attention_weights(*inputs.without_value(), backend=backend), name, bad, words)


@pytest.mark.parametrize(("name", "bad", "words"), IMPOSSIBLE)
def test_impossible_value_when_a_gradient_is_wanted(backend, name, bad, words):
    inputs = impossible_inputs(name, bad).leaves()
    assert_refused(lambda: gma_kernels.gaussian_attention(*inputs, backend=backend), name, bad, words)


@pytest.mark.parametrize("prior", ["laplace", "linear", "none"])
def test_every_prior_checks(backend, prior):
    inputs = impossible_inputs("width", -1.0)
    with pytest.raises(ValueError, match="width"):
        gma_kernels.gaussian_attention(*inputs, prior=prior, backend=backend)


def test_an_impossible_value_shared_by_the_heads_counts_if_one_head_sees_something(backend):
    inputs = simple_inputs(center_heads=1)
    visible = torch.zeros(2, 3, 5, dtype=torch.int32)
    inputs.width[0, 0, 2] = math.nan
    gma_kernels.gaussian_attention(*inputs._replace(visible=visible), backend=backend)
    visible[0, 1, 2] = 1
    with pytest.raises(ValueError, match="width"):
        gma_kernels.gaussian_attention(*inputs._replace(visible=visible), backend=backend)


def test_values_are_checked_when_a_single_row_is_decoded(backend):
    inputs = simple_inputs(rows=1)
    inputs.width[1, 0, 0] = 0.0
    with pytest.raises(ValueError, match="width"):
        gma_kernels.gaussian_attention(*inputs, backend=backend)


def test_the_smallest_positive_width_is_legal(backend):
    inputs = simple_inputs(dtype=torch.float32)
    inputs.width.fill_(1e-45)
    assert gma_kernels.gaussian_attention(*inputs, backend=backend).isfinite().all()


def test_values_are_checked_under_compile(backend):
    """One graph, compiled for good values, refuses each kind of bad one and goes on working."""
    torch.compiler.reset()
    compiled = torch.compile(
        lambda *x: gma_kernels.gaussian_attention(*x, backend=backend) * 2, fullgraph=True, backend="aot_eager"
    )
    good = simple_inputs(dtype=torch.float32, center_heads=3)
    good = good._replace(visible=good.visible.repeat(1, 3, 1))
    expected = compiled(*good)
    for name, bad, words in IMPOSSIBLE:
        inputs = impossible_inputs(name, bad)
        assert_refused(lambda inputs=inputs: compiled(*inputs), name, bad, words)
    assert torch.equal(compiled(*good), expected)
