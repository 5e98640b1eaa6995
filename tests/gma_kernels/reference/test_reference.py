"""The reference backend against calculus, the paper's literal three steps, exact arithmetic and the golden examples."""

import math
from fractions import Fraction

import pytest
import torch

import gma_kernels
from tests.support.numerics import (
    GRADIENTS,
    LINEAR_FLOOR,
    PRIORS,
    SMALLEST_WIDTH,
    Inputs,
    literal_three_steps,
    simple_inputs,
)

ROWS, KEYS = 4, 3
VISIBLE = {
    "0_1_S_and_ragged": [[[0, 1, KEYS, 2]]],
    "ragged_batch": [[[2, 3, 3, 1]], [[0, 0, 3, 2]]],
    "per_head": [[[0, 1, 3, 2], [3, 0, 2, 3]]],
    "past_the_end": [[[4, 9, 3, 2**31 - 1]]],
}
SHARED_AND_PER_HEAD = [
    ("0_1_S_and_ragged", 1),
    ("0_1_S_and_ragged", 2),
    ("ragged_batch", 1),
    ("per_head", 2),
    ("past_the_end", 1),
]


def attend(*inputs, **settings):
    return gma_kernels.gaussian_attention(*inputs, backend="reference", **settings)


def small_inputs(visible_name: str, center_heads: int) -> Inputs:
    visible = torch.tensor(VISIBLE[visible_name], dtype=torch.int32)
    batch = visible.shape[0]
    return simple_inputs(batch, 2, ROWS, KEYS, 2, 1, seed=batch, center_heads=center_heads, visible=visible)


@pytest.mark.parametrize(("visible_name", "center_heads"), SHARED_AND_PER_HEAD)
@pytest.mark.parametrize("prior", PRIORS)
def test_first_derivatives(prior, visible_name, center_heads):
    *inputs, visible = small_inputs(visible_name, center_heads).leaves()
    fast = visible_name in ("ragged_batch", "past_the_end")
    assert torch.autograd.gradcheck(lambda *x: attend(*x, visible, prior=prior), inputs, fast_mode=fast)


@pytest.mark.parametrize(("visible_name", "center_heads"), [("0_1_S_and_ragged", 1), ("per_head", 2)])
@pytest.mark.parametrize("prior", PRIORS)
def test_second_derivatives(prior, visible_name, center_heads):
    *inputs, visible = small_inputs(visible_name, center_heads).leaves()
    fast = visible_name == "per_head"
    assert torch.autograd.gradgradcheck(lambda *x: attend(*x, visible, prior=prior), inputs, fast_mode=fast)


def test_derivatives_with_center_per_head_and_width_shared():
    query, key, value, center, width, visible = small_inputs("per_head", 2)
    *inputs, visible = Inputs(query, key, value, center, width[:, :1], visible).leaves()
    assert torch.autograd.gradcheck(lambda *x: attend(*x, visible), inputs)
    assert torch.autograd.gradgradcheck(lambda *x: attend(*x, visible), inputs, fast_mode=True)


def test_derivatives_under_dropout():
    *inputs, visible = small_inputs("0_1_S_and_ragged", 1).leaves()
    assert torch.autograd.gradcheck(lambda *x: attend(*x, visible, dropout_p=0.4, seed=3), inputs)
    assert torch.autograd.gradgradcheck(lambda *x: attend(*x, visible, dropout_p=0.4, seed=3), inputs, fast_mode=True)


@pytest.mark.parametrize("scale", [None, 0.3, -1.0])
@pytest.mark.parametrize("prior", PRIORS)
def test_equals_the_literal_three_steps(prior, scale):
    visible = torch.tensor([[[1, 2, 7, 4, 6]], [[7, 7, 3, 1, 20]]], dtype=torch.int32)
    ours = simple_inputs(visible=visible, center_heads=3).leaves()
    theirs = ours.leaves()
    context = attend(*ours, prior=prior, scale=scale)
    literal = literal_three_steps(theirs, prior, scale) @ theirs.value
    torch.testing.assert_close(context, literal, rtol=0, atol=1e-12)
    grad = torch.randn(context.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for name, got, expected in zip(
        GRADIENTS,
        torch.autograd.grad(context, ours[:5], grad),
        torch.autograd.grad(literal, theirs[:5], grad, allow_unused=True),
    ):
        expected = torch.zeros_like(got) if expected is None else expected
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")


def test_weights_equal_the_literal_three_steps():
    inputs = simple_inputs(center_heads=3)
    weights = gma_kernels.attention_weights(*inputs.without_value(), backend="reference")
    torch.testing.assert_close(weights, literal_three_steps(inputs, "gaussian"), rtol=0, atol=1e-12)


STEPS = [0.7, 1.25, 0.5, 6.3]
PAPER_WEIGHTS = [
    [0.274888, 0.725112, 0, 0, 0, 0],
    [0.082787, 0.322432, 0.594781, 0, 0, 0],
    [0.043056, 0.165833, 0.342307, 0.448804, 0, 0],
    [0.017392, 0.049220, 0.100165, 0.173727, 0.270842, 0.388654],
]
AUTHORS_WEIGHTS = [
    [0.064861, 0.935139, 0, 0, 0, 0],
    [0.039321, 0.536411, 0.424268, 0, 0, 0],
    [0.030755, 0.314769, 0.654476, 0, 0, 0],
    [0.012447, 0.039671, 0.089157, 0.167446, 0.277178, 0.414100],
]


def golden_weights(center: torch.Tensor, width: torch.Tensor, visible: torch.Tensor, backend: str) -> torch.Tensor:
    query = torch.ones(1, 1, 4, 1, dtype=torch.float64)
    key = torch.arange(1.0, 7.0, dtype=torch.float64).log().reshape(1, 1, 6, 1)
    rows = (x.reshape(1, 1, 4) for x in (center, width, visible.int()))
    return gma_kernels.attention_weights(query, key, *rows, scale=1.0, backend=backend)[0, 0]


def test_golden_example_in_the_papers_convention(backend):
    center = 1 + torch.tensor(STEPS, dtype=torch.float64).cumsum(0)
    visible = (center + 1).floor().clamp(max=6)
    assert visible.tolist() == [2, 3, 4, 6]
    weights = golden_weights(center, center / 2, visible, backend)
    torch.testing.assert_close(weights, torch.tensor(PAPER_WEIGHTS, dtype=torch.float64), rtol=0, atol=1e-6)


def test_golden_example_in_the_authors_convention(backend):
    center = (1 + torch.tensor([0.0, *STEPS[1:]], dtype=torch.float64).cumsum(0)).clamp(1.9, 1101)
    visible = (center - 1 + 1).ceil().clamp(max=6)
    assert visible.tolist() == [2, 3, 3, 6]
    weights = golden_weights(center, (center - 1) / 2, visible, backend)
    torch.testing.assert_close(weights, torch.tensor(AUTHORS_WEIGHTS, dtype=torch.float64), rtol=0, atol=1e-6)


def exact_prior_weights(prior: str, keys: int, center: float, width: float, visible: int) -> list[float]:
    """The normalised prior in rational arithmetic, rounded once; logits relative to the best visible position."""
    c, w = Fraction(center), max(Fraction(width), Fraction(SMALLEST_WIDTH))
    positions = range(1, min(visible, keys) + 1)
    if prior == "linear":
        heights = [float(max(Fraction(LINEAR_FLOOR), 1 - abs(j - c) / (2 * w))) for j in positions]
    else:
        logs = {
            "gaussian": lambda j: -Fraction(1, 2) * ((j - c) / w) ** 2,
            "laplace": lambda j: -Fraction(math.sqrt(2)) * abs(j - c) / w,
            "none": lambda j: Fraction(0),
        }[prior]
        best = max(map(logs, positions))
        heights = [math.exp(max(-1e4, logs(j) - best)) for j in positions]
    total = math.fsum(heights)
    return [h / total for h in heights] + [0.0] * (keys - len(heights))


# c, w, and for float32 also values whose naive square or ratio overflows
EXTREMES = [
    (1e30, 1.0), (-1e30, 1.0), (1e30, 1e-30), (3e38, 1e-38), (-3e38, 1e38), (1e30, 1e-11), (-1e35, 2.0**-39),
    (1e8, 1e4), (1e6, 5e5), (16777217.0, 3000.0), (123456.7, 400.0), (3.5, 1e-3), (3.5, 1e-30), (3.0, 1e-45),
    (3.4999, 1e-2), (1e-38, 1e-5), (2.0, 1e38), (-5.0, 3.0), (5.25, 0.125), (0.0, 2.0**-40), (6.5, 2.0**-41),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("prior", PRIORS)
def test_prior_keeps_its_digits_for_huge_and_tiny_values(backend, prior, dtype):
    keys = 8
    center, width = torch.tensor(EXTREMES, dtype=torch.float64).to(dtype).T.reshape(2, 1, 1, -1)
    visible = torch.full(center.shape, 6, dtype=torch.int32)
    zeros = torch.zeros(1, 1, len(EXTREMES), 2, dtype=dtype), torch.zeros(1, 1, keys, 2, dtype=dtype)
    weights = gma_kernels.attention_weights(*zeros, center, width, visible, prior=prior, backend=backend)[0, 0]
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    for row, c, w in zip(weights.tolist(), center.flatten().tolist(), width.flatten().tolist()):
        assert row == pytest.approx(exact_prior_weights(prior, keys, c, w, 6), abs=tolerance), (c, w)


@pytest.mark.parametrize(("center", "width"), [(1e52, 1e26), (-1e52, 1e26), (1e200, 1e100)])
def test_float64_centers_beyond_float32_keep_their_slope(backend, center, width):
    """A prior far away is exponential in j with slope (c − S)/w² per position: here exactly 1."""
    rows = [torch.full((1, 1, 1), x, dtype=torch.float64) for x in (center, width)]
    visible = torch.full((1, 1, 1), 6, dtype=torch.int32)
    zeros = torch.zeros(1, 1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, 6, 1, dtype=torch.float64)
    weights = gma_kernels.attention_weights(*zeros, *rows, visible, backend=backend).flatten()
    assert weights.tolist() == pytest.approx(exact_prior_weights("gaussian", 6, center, width, 6), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("prior", PRIORS)
def test_gradients_of_huge_and_tiny_values_are_finite(backend, prior, dtype):
    center, width = torch.tensor(EXTREMES, dtype=torch.float64).to(dtype).T.reshape(2, 1, 1, -1)
    visible = torch.full(center.shape, 6, dtype=torch.int32)
    query, key, value, *_ = simple_inputs(1, 1, len(EXTREMES), 8, dtype=dtype)
    inputs = Inputs(query, key, value, center, width, visible).leaves()
    context = gma_kernels.gaussian_attention(*inputs, prior=prior, backend=backend)
    assert context.isfinite().all()
    for name, grad in zip(GRADIENTS, torch.autograd.grad(context.square().sum(), inputs[:5])):
        bad = ~grad.isfinite().flatten(3).all(-1) if grad.dim() == 4 else ~grad.isfinite()
        assert not bad.any(), f"{name}: {[EXTREMES[i] for i in bad[0, 0].nonzero().flatten() if name != 'key']}"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("prior", ["gaussian", "laplace"])
def test_a_tiny_width_is_one_hot_at_the_visible_position_nearest_the_center(backend, prior, dtype):
    query, key, value, center, width, visible = simple_inputs(dtype=dtype, rows=7)
    center = torch.tensor([1.2, 4.4, 3.0, 6.6, 1e20, -1e20, 5.0], dtype=center.dtype).expand(2, 1, 7)
    visible = torch.tensor([7, 7, 7, 4, 5, 7, 1], dtype=torch.int32).expand(2, 1, 7)
    width = torch.full_like(center, 1e-12)
    context = gma_kernels.gaussian_attention(query, key, value, center, width, visible, prior=prior, backend=backend)
    nearest = torch.tensor([1, 4, 3, 4, 5, 1, 1]) - 1
    torch.testing.assert_close(context, value[:, :, nearest], rtol=0, atol=0)


@pytest.mark.parametrize("prior", PRIORS)
def test_a_huge_width_is_plain_attention(backend, prior):
    inputs = simple_inputs()._replace(width=torch.full((2, 1, 5), 1e30, dtype=torch.float64))
    plain = torch.nn.functional.scaled_dot_product_attention(*inputs[:3])
    context = gma_kernels.gaussian_attention(*inputs, prior=prior, backend=backend)
    torch.testing.assert_close(context, plain, rtol=0, atol=1e-12)


def test_linear_rows_wholly_outside_are_plain_attention_with_zero_slopes(backend):
    inputs = simple_inputs()
    inputs = inputs._replace(center=torch.full_like(inputs.center, 100.0)).leaves()
    context = gma_kernels.gaussian_attention(*inputs, prior="linear", backend=backend)
    plain = torch.nn.functional.scaled_dot_product_attention(*inputs[:3])
    torch.testing.assert_close(context, plain, rtol=0, atol=1e-12)
    for grad in torch.autograd.grad(context.square().sum(), (inputs.center, inputs.width)):
        assert not grad.any()


@pytest.mark.parametrize("prior", ["gaussian", "laplace", "linear"])
def test_weights_move_with_the_center(backend, prior):
    """With equal scores the weights are the prior alone, so moving the center moves them."""
    *_, center, width, visible = simple_inputs(keys=40, rows=5)
    narrow = torch.full_like(width, 0.4)
    zeros = torch.zeros(2, 3, 5, 2, dtype=torch.float64), torch.zeros(2, 3, 40, 2, dtype=torch.float64)
    options = {"prior": prior, "backend": backend}
    near = gma_kernels.attention_weights(*zeros, center.frac() + 15, narrow, visible, **options)
    far = gma_kernels.attention_weights(*zeros, center.frac() + 20, narrow, visible, **options)
    torch.testing.assert_close(far[..., 10:30], near[..., 5:25], rtol=0, atol=1e-12)


@pytest.mark.parametrize("prior", PRIORS)
def test_a_score_shared_by_all_keys_changes_nothing(backend, prior):
    query, key, *rest = simple_inputs()
    shifted = torch.cat((key, torch.ones_like(key[..., :1])), dim=-1)
    more = torch.cat((query, torch.full_like(query[..., :1], 30.0)), dim=-1)
    plain = gma_kernels.gaussian_attention(query, key, *rest, prior=prior, scale=0.5, backend=backend)
    same = gma_kernels.gaussian_attention(more, shifted, *rest, prior=prior, scale=0.5, backend=backend)
    torch.testing.assert_close(same, plain, rtol=0, atol=1e-12)
