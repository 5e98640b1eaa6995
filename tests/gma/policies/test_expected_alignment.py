"""Expected alignment against the recursion that defines it, written out: values, gradients, and nothing overflows."""

import pytest
import torch

from gma.policies.expected_alignment import expected_alignment, infinite_lookback


def by_recursion(stop, lengths):
    """α by the definition, cell by cell in float64, the missing mass of each row put on the last position."""
    stop = stop.double()
    batch, heads, rows, columns = stop.shape
    before = torch.zeros(batch, heads, columns, dtype=torch.float64)
    before[:, :, 0] = 1.0
    result = torch.zeros_like(stop)
    for row in range(rows):
        looked = torch.zeros(batch, heads, dtype=torch.float64)
        skipped = torch.ones_like(looked)
        for column in range(columns):
            looked = skipped * looked + before[:, :, column]
            result[:, :, row, column] = stop[:, :, row, column] * looked
            skipped = 1.0 - stop[:, :, row, column]
        before = result[:, :, row].clone()
    for sentence, length in enumerate(lengths.tolist()):
        result[sentence, :, :, length:] = 0.0
        result[sentence, :, :, length - 1] = 1.0 - result[sentence, :, :, : length - 1].sum(dim=-1)
    return result


def lookback_by_definition(alignment, energy):
    """β_ij = Σ_{k≥j} α_ik e^{u_ij} / Σ_{l≤k} e^{u_il}, cell by cell in float64."""
    alignment, energy = alignment.double(), energy.double()
    result = torch.zeros_like(alignment)
    for last in range(energy.shape[3]):
        result[..., : last + 1] += alignment[..., last, None] * energy[..., : last + 1].softmax(dim=-1)
    return result


def probabilities(kind, shape, seed=0):
    """Where products underflow, sums cancel, and a division by a running product has nothing to divide by."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(shape, generator=generator)
    columns = torch.arange(shape[-1])
    return {
        "uniform": lambda: uniform,
        "nearly never": lambda: uniform * 2e-3,
        "rounding of 1 - p": lambda: torch.full(shape, 2.98e-8 + 5.96e-8 * 1000),
        "nearly always": lambda: 1.0 - uniform * 1e-6,
        "never": lambda: torch.zeros(shape),
        "always": lambda: torch.ones(shape),
        "sure or not at all": lambda: (uniform > 0.7).float(),
        "saturated": lambda: (200.0 * (uniform - 0.5)).sigmoid(),
        "stairs": lambda: (columns % 10 == 9).float().expand(shape) * 0.999 + uniform * 1e-3,
        "half": lambda: torch.full(shape, 0.5),
    }[kind]()


KINDS = (
    "uniform",
    "nearly never",
    "rounding of 1 - p",
    "nearly always",
    "never",
    "always",
    "sure or not at all",
    "saturated",
    "stairs",
    "half",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 100), (7, 1), (3, 5), (40, 40), (100, 100), (30, 100)])
def test_float32_equals_the_recursion_in_float64(kind, rows, columns):
    stop = probabilities(kind, (3, 2, rows, columns))
    lengths = torch.tensor([columns, max(1, columns // 2), 1])
    expected = by_recursion(stop, lengths)
    found = expected_alignment(stop, lengths)
    assert found.dtype == torch.float32
    assert (found.double() - expected).abs().max() <= 1e-6
    assert (expected_alignment(stop.double(), lengths) - expected).abs().max() <= 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_a_distribution_over_its_source(kind):
    lengths = torch.tensor([60, 23, 1])
    found = expected_alignment(probabilities(kind, (3, 2, 30, 60)), lengths)
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(3, 2, 30), rtol=0, atol=1e-6)
    for sentence, length in enumerate(lengths.tolist()):
        assert not found[sentence, :, :, length:].any()
    # a row never stops before the row above it, so that its distribution function lies below
    assert (found.cumsum(dim=-1).diff(dim=2) <= 1e-6).all()


def test_gradients_by_finite_differences():
    stop = torch.rand(2, 2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(expected_alignment, (stop, torch.tensor([5, 3])))


@pytest.mark.parametrize("kind", ["uniform", "nearly never", "sure or not at all", "never", "always", "saturated"])
def test_gradients_are_those_of_the_recursion(kind):
    lengths, generator = torch.tensor([20, 20]), torch.Generator().manual_seed(1)
    weight = torch.randn(2, 2, 12, 20, generator=generator, dtype=torch.float64)
    gradients = []
    for function, dtype in ((expected_alignment, torch.float32), (_differentiable_recursion, torch.float64)):
        stop = probabilities(kind, (2, 2, 12, 20)).to(dtype).requires_grad_()
        (gradient,) = torch.autograd.grad((function(stop, lengths) * weight).sum(), stop)
        gradients.append(gradient.double())
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


def _differentiable_recursion(stop, lengths):
    """As `by_recursion`, for sources of full length, by operations that autograd knows."""
    assert (lengths == stop.shape[3]).all()
    columns, result = stop.shape[3], []
    before = [torch.ones_like(stop[:, :, 0, 0])] + [torch.zeros_like(stop[:, :, 0, 0])] * (columns - 1)
    for row in range(stop.shape[2]):
        looked, stops = 0.0, []
        for column in range(columns):
            skipped = 1.0 - stop[:, :, row, column - 1] if column else 0.0
            looked = skipped * looked + before[column]
            stops.append(stop[:, :, row, column] * looked)
        before = stops
        rest = torch.stack(stops[:-1], dim=-1)
        result.append(torch.cat([rest, 1.0 - rest.sum(dim=-1, keepdim=True)], dim=-1))
    return torch.stack(result, dim=2)


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1000.0])
@pytest.mark.parametrize("kind", ["uniform", "nearly never", "sure or not at all", "stairs"])
def test_infinite_lookback_is_its_definition(kind, scale):
    """Energies far too large for exp(): early positions may be e²⁰⁰⁰ times less likely than late ones."""
    alignment = expected_alignment(probabilities(kind, (2, 3, 8, 100)), torch.tensor([100, 41]))
    energy = scale * torch.randn(2, 3, 8, 100, generator=torch.Generator().manual_seed(2))
    found = infinite_lookback(alignment, energy)
    # L, near the largest energy, is rounded to one part in 2²⁴, and twice so
    tolerance = 1e-6 + scale * 4 * 2.0**-23
    assert (found.double() - lookback_by_definition(alignment, energy)).abs().max() <= tolerance
    exact = infinite_lookback(alignment.double(), energy.double())
    assert (exact - lookback_by_definition(alignment, energy)).abs().max() <= 1e-11
    torch.testing.assert_close(exact.sum(dim=-1), torch.ones(2, 3, 8, dtype=torch.float64), rtol=0, atol=1e-6)
    assert not exact[1, :, :, 41:].any()


def test_gradients_of_infinite_lookback_by_finite_differences():
    generator = torch.Generator().manual_seed(0)
    alignment, energy = (torch.randn(2, 2, 3, 5, dtype=torch.float64, generator=generator) for _ in range(2))
    inputs = alignment.softmax(dim=-1).requires_grad_(), energy.requires_grad_()
    assert torch.autograd.gradcheck(infinite_lookback, inputs)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_gradients_of_infinite_lookback_stay_finite(scale):
    generator = torch.Generator().manual_seed(0)
    energy = (scale * torch.randn(2, 2, 10, 60, generator=generator)).requires_grad_()
    stop = torch.randn(2, 2, 10, 60, generator=generator).requires_grad_()
    alignment = expected_alignment((scale * stop).sigmoid(), torch.tensor([60, 30]))
    weight = torch.randn(2, 2, 10, 60, generator=generator)
    (infinite_lookback(alignment, energy) * weight).sum().backward()
    assert energy.grad.isfinite().all()
    assert stop.grad.isfinite().all()
    assert energy.grad.any()
    assert stop.grad.any()
