"""What the CUDA kernels take beyond the plain call, in the emulator: grouped heads, a left bound, packed batches and a
gradient of the logsumexp, alone and together. None of this ran on a GPU."""

import math

import pytest
import torch

from gma_kernels.backends import FEATURES
from tests.support.cuda_cases import DTYPES, draw_features, feature_failures, plain_case
from tests.support.cuda_emulator import ORDERS, Given, build, results_of, why_not
from tests.support.numerics import GRADIENTS, Inputs

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

CASES_PER_CHUNK = 40
# Rows that see one key in float32, nineteen of twenty weights dropped: what is left of the term that both kernels
# subtract, a number of hundreds, is 3.5e-6 where 2.1e-6 are allowed. The gradient of the logsumexp is part of it.
INEXACT = {113}
SANITIZED_HEAD = 64


@pytest.mark.parametrize("chunk", [pytest.param(i, marks=pytest.mark.slow if i >= 3 else ()) for i in range(50)])
def test_forward_gradients_and_weights_of_random_cases(chunk):
    seeds = set(range(chunk * CASES_PER_CHUNK, (chunk + 1) * CASES_PER_CHUNK)) - INEXACT
    found = feature_failures([draw_features(seed) for seed in sorted(seeds)], build("runner", "plain", 256))
    assert not found, "\n".join(found)


@pytest.mark.xfail(strict=True, reason="the subtracted term holds the gradient of the logsumexp, rounded")
@pytest.mark.parametrize("seed", sorted(INEXACT))
def test_a_logsumexp_beside_dropped_weights(seed):
    assert not feature_failures([draw_features(seed)], build("runner", "plain", 256))


def test_the_random_cases_have_every_feature_alone_and_in_pairs():
    asked = [frozenset(draw_features(seed).features) for seed in range(3 * CASES_PER_CHUNK)]
    wanted = {frozenset((a, b)) for a in FEATURES for b in FEATURES}
    assert wanted | {frozenset(FEATURES)} <= set(asked)


@pytest.mark.parametrize("flavour", ["address", "thread"])
@pytest.mark.parametrize("chunk", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 8))])
def test_random_cases_are_clean_under_sanitizers(flavour, chunk):
    cases = [draw_features(seed, SANITIZED_HEAD) for seed in range(16 * chunk, 16 * chunk + 16)]
    order = ORDERS[chunk % len(ORDERS)]
    found = feature_failures(cases, build("runner", flavour, SANITIZED_HEAD), order=order, threads=2)
    assert not found, "\n".join(found)


def run(given: Given, dtype: torch.dtype, flavour: str = "plain", **changes) -> dict[str, torch.Tensor]:
    program = build("runner", flavour, 256 if flavour == "plain" else SANITIZED_HEAD)
    return results_of(program, [plain_case(dtype, **changes)], [given])[0]


def windowed(dtype: torch.dtype, rows: int, heads: int = 4, key_heads: int = 2) -> Given:
    """Rows that see keys 40 … 111 of 230, their windows of different widths, and one blind row."""
    inputs, grad = plain_case(dtype, heads=heads, rows=rows, keys=230, visible_heads=1).build()
    inputs.visible.copy_(112 - torch.arange(rows) % 7)
    first = (40 + 9 * (torch.arange(rows, dtype=torch.int32) % 6)).expand(1, 1, rows).clone()
    first[:, :, rows // 2] = inputs.visible[:, :, rows // 2]
    inputs = inputs._replace(key=inputs.key[:, :key_heads], value=inputs.value[:, :key_heads])
    grad_logsumexp = torch.linspace(-1, 1, heads * rows).view(1, heads, rows)
    return Given(inputs, grad, first, grad_logsumexp)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_no_row_sees_may_hold_anything(dtype, rows, bad):
    """Left of every window, right of every row, and in rows that see nothing."""
    given = windowed(dtype, rows)
    expected = run(given, dtype, dropout_p=0.2)
    blind = rows // 2
    key, value = given.inputs.key.clone(), given.inputs.value.clone()
    for x in (key, value):
        x[:, :, :40] = bad
        x[:, :, 112:] = bad
    by_row = [x.clone() for x in (given.inputs.query, given.inputs.center, given.inputs.width)]
    grads = given.grad.clone(), given.grad_logsumexp.clone()
    for x in (*by_row, *grads):
        x[:, :, blind] = bad
    inputs = Inputs(by_row[0], key, value, *by_row[1:], given.inputs.visible)
    result = run(Given(inputs, grads[0], given.first, grads[1]), dtype, dropout_p=0.2)
    for name, x in result.items():
        assert x.isfinite().all() or name == "logsumexp", name
        assert torch.equal(x, expected[name]), name
    assert (result["key"][:, :, :40] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_grouped_heads_drop_the_weights_of_plain_ones(dtype, rows):
    inputs, grad = plain_case(dtype, heads=6, rows=rows).build()
    grouped = inputs._replace(key=inputs.key[:, :2], value=inputs.value[:, :2])
    repeated = inputs._replace(
        key=grouped.key.repeat_interleave(3, dim=1), value=grouped.value.repeat_interleave(3, dim=1)
    )
    got, expected = (run(Given(x, grad), dtype, heads=6, dropout_p=0.4) for x in (grouped, repeated))
    expected |= {name: expected[name].float().unflatten(1, (2, 3)).sum(2) for name in ("key", "value")}
    for name, x in got.items():
        tolerance = 1e-5 if dtype == torch.float32 else 4e-2
        torch.testing.assert_close(x.float(), expected[name].float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("lengths", [[(3, 5), (0, 4), (70, 130), (2, 0)], [(1, 90), (1, 3), (1, 64)], [(0, 0)], []])
@pytest.mark.parametrize("group", [1, 2])
def test_packed_sentences_have_the_bits_of_single_ones(lengths, group):
    """Dropout, too, whose counter has the sentence's number: that of a padded batch."""
    make = torch.Generator().manual_seed(1)
    rows, keys = (sum(pair[n] for pair in lengths) for n in (0, 1))

    def normal(heads: int, count: int) -> torch.Tensor:
        return torch.randn(1, heads, count, 32, generator=make).half()

    query, key, value = normal(2, rows), normal(2 // group, keys), normal(2 // group, keys)
    center, width = 40 * torch.rand(1, 1, rows, generator=make), 1 + torch.rand(1, 1, rows, generator=make)
    visible = torch.randint(1, 140, (1, 1, rows), generator=make, dtype=torch.int32)
    inputs, grad = Inputs(query, key, value, center, width, visible), normal(2, rows)
    ends = torch.tensor([(0, 0), *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    offsets = (ends[:, 0].contiguous(), ends[:, 1].contiguous())
    result = run(Given(inputs, grad, offsets=offsets), torch.float16)
    for b in range(len(lengths)):
        at, to = (slice(int(x[b]), int(x[b + 1])) for x in offsets)
        own = Inputs(query[:, :, at], key[:, :, to], value[:, :, to], *(x[:, :, at] for x in inputs[3:]))
        alone = run(Given(own, grad[:, :, at]), torch.float16)
        for name in ("context", *GRADIENTS):
            there = to if name in ("key", "value") else at
            torch.testing.assert_close(result[name][:, :, there], alone[name], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    "offsets", [(-5, 60, 40), (0, 90, 90), (30, 10, 20), (0, -1, 2**31 - 1), (2**31 - 1, 0, -(2**31))]
)
def test_offsets_that_lead_nowhere_touch_nothing_outside(offsets):
    """Nobody looks at offsets on a GPU before the kernels do. AddressSanitizer and the guard zones are the judges."""
    inputs, grad = plain_case(torch.float16, batch=1, rows=40, keys=50).build()
    wild = torch.tensor(offsets, dtype=torch.int32)
    fine = torch.tensor([0, 10, 40], dtype=torch.int32), torch.tensor([0, 20, 50], dtype=torch.int32)
    for cut in ((wild, fine[1]), (fine[0], wild), (wild, wild)):
        run(Given(inputs, grad, offsets=cut), torch.float16, "address")
