"""The CUDA kernels, run on the CPU by the emulator, against the float64 reference. None of this ran on a GPU."""

import dataclasses
import math

import pytest
import torch

from tests.support.cuda_cases import DTYPES, draw, failures, plain_case, wrong
from tests.support.cuda_emulator import ORDERS, build, results_of, why_not
from tests.support.numerics import PRIORS, Case, Inputs

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

CASES_PER_CHUNK = 40
# the sanitizers' builds leave out the larger heads, which are the same source
SANITIZED_HEAD = 64


def bits(x: torch.Tensor) -> torch.Tensor:
    """A tensor's bits, of which NaN equals itself."""
    return x.contiguous().view(torch.int16 if x.element_size() == 2 else torch.int32)


def run_one(case: Case, inputs: Inputs, grad: torch.Tensor, **settings) -> dict[str, torch.Tensor]:
    return results_of(build("runner", "plain", 256), [case], [(inputs, grad)], **settings)[0]


@pytest.mark.parametrize("chunk", [pytest.param(i, marks=pytest.mark.slow if i >= 6 else ()) for i in range(50)])
def test_forward_gradients_decoding_and_weights_of_random_cases(chunk):
    cases = [draw(seed) for seed in range(chunk * CASES_PER_CHUNK, (chunk + 1) * CASES_PER_CHUNK)]
    found = failures(cases, build("runner", "plain", 256))
    assert not found, "\n".join(found)


def test_the_random_cases_are_the_ones_that_matter():
    cases = [draw(seed) for seed in range(6 * CASES_PER_CHUNK)]
    assert {case.dtype for case in cases} == set(DTYPES)
    assert {case.prior for case in cases} == set(PRIORS)
    assert {32, 64, 128, 256, 33} <= {case.size for case in cases} & {case.value_size for case in cases}
    assert sum(case.keys >= 131 for case in cases) > len(cases) / 2
    assert sum(case.rows == 1 for case in cases) >= 40
    assert sum(case.dropout_p > 0 for case in cases) >= 40
    assert sum((case.build()[0].visible == 0).any().item() for case in cases) >= 30


def test_every_order_of_threads_gives_the_same_bits():
    cases = [draw(seed) for seed in range(30)]
    built = [case.build() for case in cases]
    first, *others = (results_of(build("runner", "plain", 256), cases, built, order=order) for order in ORDERS)
    for other in others:
        for case, expected, result in zip(cases, first, other):
            for name in expected:
                assert torch.equal(bits(result[name]), bits(expected[name])), f"{name} in {case}"


@pytest.mark.parametrize("flavour", ["address", "thread"])
@pytest.mark.parametrize("chunk", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 14))])
def test_random_cases_are_clean_under_sanitizers(flavour, chunk):
    cases = [draw(seed, SANITIZED_HEAD) for seed in range(16 * chunk, 16 * chunk + 16)]
    order = ORDERS[chunk % len(ORDERS)]
    found = failures(cases, build("runner", flavour, SANITIZED_HEAD), order=order, threads=2)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3])
def test_long_sources(dtype, rows):
    """With one row the source is split among blocks of threads, and some parts see nothing."""
    case = plain_case(dtype, rows=rows, keys=1500, heads=3, visible_kind="ragged", dropout_p=0.1)
    inputs, grad = case.build()
    assert not wrong(case, inputs, grad, run_one(case, inputs, grad))
    inputs.visible.fill_(700)
    assert not wrong(case, inputs, grad, run_one(case, inputs, grad))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 40])
def test_what_no_row_sees_may_hold_anything(dtype, rows):
    case = plain_case(dtype, rows=rows)
    inputs, grad = case.build()
    inputs.visible.fill_(70)
    inputs.visible[0, 0, rows // 2] = 0
    expected = run_one(case, inputs, grad)
    for x in (inputs.key, inputs.value):
        x[:, :, 70:] = math.nan
    for x in (inputs.query, grad):
        x[0, 0, rows // 2] = math.nan
    for x in (inputs.center, inputs.width):
        x[0, 0, rows // 2] = math.nan
    result = run_one(case, inputs, grad)
    for name, x in result.items():
        assert torch.equal(bits(x), bits(expected[name])), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("rows", [1, 40])
def test_impossible_widths_show_in_their_row_only(dtype, prior, rows):
    case = plain_case(dtype, rows=rows, prior=prior)
    inputs, grad = case.build()
    inputs.visible.fill_(70)
    expected = run_one(case, inputs, grad)
    for head, bad in ((0, -1.0), (1, math.nan)):
        inputs.width[0, head, rows - 1] = bad
    result = run_one(case, inputs, grad)
    by_row = ("context", "logsumexp", "query", "center", "width")
    for name in by_row:
        assert torch.equal(bits(result[name][:, :, :-1]), bits(expected[name][:, :, :-1])), name
        # without a prior there is no width to be wrong
        assert result[name][:, :, -1].isnan().all() == (prior != "none"), name
    assert torch.equal(bits(result["weights"][:, :, :-1]), bits(expected["weights"][:, :, :-1]))
    assert result["weights"][:, :, -1, :70].isnan().all() == (prior != "none")
    assert (result["key"][:, :, 70:] == 0).all()
    assert (result["value"][:, :, 70:] == 0).all()


def test_negative_visible_is_0():
    case = plain_case(torch.float16)
    inputs, grad = case.build()
    inputs.visible[:, :, 1::2] = 0
    expected = run_one(case, inputs, grad)
    inputs.visible[:, :, 1::2] = -(2**31)
    result = run_one(case, inputs, grad)
    assert all(torch.equal(bits(result[name]), bits(expected[name])) for name in expected)
    assert (result["context"][:, :, 1::2] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_misaligned_rows_give_the_same_bits(dtype):
    """Rows at multiples of 16 bytes are copied asynchronously in chunks, others element by element."""
    case = plain_case(dtype, rows=17)
    for rows in (1, 17):
        case = dataclasses.replace(case, rows=rows)
        inputs, grad = case.build()
        expected = run_one(case, inputs, grad)
        gapped = dataclasses.replace(case, layouts=("packed", "packed", "packed", *case.layouts[3:]))
        moved, _ = gapped.build()
        assert all(torch.equal(x, y) for x, y in zip(inputs, moved))
        result = run_one(gapped, moved, grad)
        assert all(torch.equal(bits(result[name]), bits(expected[name])) for name in expected)


def test_what_there_is_no_kernel_for_is_refused_by_name():
    case = plain_case(torch.float16, size=65)
    program = build("runner", "address", SANITIZED_HEAD)
    with pytest.raises(RuntimeError, match="head size 65 has no CUDA kernel; expected at most 64"):
        results_of(program, [case], [case.build()])
