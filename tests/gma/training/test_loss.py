"""The loss against torch's own, value and gradient, and the schedule's shape."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from gma.training.loss import cross_entropy

PADDING = 0


def draw(seed: int, batch: int = 3, length: int = 5, vocabulary: int = 11, scale: float = 3.0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(batch, length, vocabulary, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), torch.randint(0, vocabulary, (batch, length), generator=generator)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), smoothing=st.floats(0.0, 0.9), scale=st.floats(0.1, 50.0))
def test_equals_torchs_cross_entropy(seed, smoothing, scale):
    logits, target = draw(seed, scale=scale)
    ours = cross_entropy(logits, target, smoothing, PADDING)
    (gradient,) = torch.autograd.grad(3.0 * ours.smoothed, logits)

    flat, labels = logits.flatten(0, 1), target.flatten()
    options = {"ignore_index": PADDING, "reduction": "sum"}
    expected = functional.cross_entropy(flat, labels, label_smoothing=smoothing, **options)
    (expected_gradient,) = torch.autograd.grad(3.0 * expected, logits)
    torch.testing.assert_close(ours.smoothed, expected)
    torch.testing.assert_close(ours.likelihood, functional.cross_entropy(flat, labels, **options))
    torch.testing.assert_close(gradient, expected_gradient)


def test_gradient_by_finite_differences():
    logits, target = draw(1, 2, 3, 5)
    assert torch.autograd.gradcheck(lambda x: cross_entropy(x, target, 0.1, PADDING).smoothed, (logits,))


def test_padding_adds_nothing():
    logits, target = draw(2)
    longer = torch.cat([logits, torch.full_like(logits, 1e4)], dim=1)
    padded = torch.cat([target, torch.full_like(target, PADDING)], dim=1)
    torch.testing.assert_close(cross_entropy(longer, padded, 0.1, PADDING), cross_entropy(logits, target, 0.1, PADDING))


def test_nothing_but_padding_is_zero_with_zero_gradient():
    logits, target = draw(3)
    loss = cross_entropy(logits, torch.zeros_like(target), 0.1, PADDING)
    loss.smoothed.backward()
    assert loss.smoothed == loss.likelihood == 0.0
    assert not logits.grad.any()


def test_half_precision_logits_are_summed_in_float32():
    logits, target = draw(4, 20, 50, 100)
    exact = cross_entropy(logits.bfloat16().double(), target, 0.1, PADDING)
    loss = cross_entropy(logits.bfloat16(), target, 0.1, PADDING)
    assert loss.smoothed.dtype == torch.float32
    torch.testing.assert_close(loss.smoothed.double(), exact.smoothed, rtol=1e-5, atol=0.0)


def test_huge_logits_stay_finite():
    logits = torch.tensor([[[1e30, -1e30, 0.0]]], requires_grad=True)
    loss = cross_entropy(logits, torch.tensor([[1]]), 0.0, PADDING)
    loss.smoothed.backward()
    assert math.isfinite(loss.likelihood)
    assert logits.grad.isfinite().all()
