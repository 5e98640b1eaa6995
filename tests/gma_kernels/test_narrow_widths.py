"""Long sources and narrow widths: what a prior hides is left out, and nothing that can be seen changes."""

import dataclasses
import math

import pytest
import torch

import gma_kernels
from tests.support.feature_cases import FeatureCase, feature_failures
from tests.support.numerics import Case, dtype_to_draw, simple_inputs
from tests.support.random_cases import checked

KEYS, ROWS = 700, 50


def long_case(seed: int) -> Case:
    """Widths of at most 7.4 positions, so that a row can see a few hundred of the keys, and sometimes scores so large
    that it can see them all."""
    case = Case.draw(seed, dtype_to_draw())
    changes = {
        "batch": 1,
        "heads": min(case.heads, 2),
        "rows": ROWS,
        "keys": KEYS,
        "prior": ("gaussian", "laplace")[seed % 2],
        "dropout_p": 0.0,
        "width_kind": "ordinary" if seed % 3 else "mixed",
        "visible_kind": case.visible_kind if case.visible_kind in ("ragged", "diagonal") else "all",
    }
    shared = {name: min(getattr(case, name), changes["heads"]) for name in ("center_heads", "width_heads")}
    return dataclasses.replace(case, **changes, **shared, visible_heads=min(case.visible_heads, changes["heads"]))


def test_random_cases(backend):
    seeds = range(10 if backend == "reference" else 30)
    found = [line for seed in seeds for line in checked(long_case(seed), backend)]
    assert not found, "\n".join(found)


def test_random_cases_with_every_feature(backend):
    found = []
    for seed in range(6 if backend == "reference" else 20):
        drawn = FeatureCase.draw(seed, dtype=dtype_to_draw(), ordinary=backend == "reference")
        long = long_case(seed)
        case = dataclasses.replace(drawn.case, batch=1, rows=ROWS, keys=KEYS, prior=long.prior, dropout_p=0.0)
        lengths = tuple((ROWS, KEYS) if n == 0 else pair for n, pair in enumerate(drawn.lengths))
        found += feature_failures(dataclasses.replace(drawn, case=case, lengths=lengths), backend)
    assert not found, "\n".join(found)


def test_dropout_drops_the_same_weights_and_any_number_of_threads_gives_the_same_bits(backend):
    rows = torch.linspace(1, 1000, 300, dtype=torch.float64).expand(1, 1, 300)
    inputs = simple_inputs(1, 2, 300, 1000, 16, 16)._replace(
        center=rows, width=torch.full_like(rows, 2.5), visible=torch.full((1, 1, 300), 1000, dtype=torch.int32)
    )

    def run(backend: str, threads: int) -> tuple[torch.Tensor, ...]:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            leaves = inputs.leaves()
            context = gma_kernels.gaussian_attention(*leaves, dropout_p=0.3, seed=5, backend=backend)
            return context.detach(), *torch.autograd.grad(context.sin().sum(), leaves[:5])
        finally:
            torch.set_num_threads(before)

    found = run(backend, 1)
    assert all(map(torch.equal, found, run(backend, 2)))
    for got, exact in zip(found, run("reference", 1)):
        torch.testing.assert_close(got, exact, rtol=0, atol=1e-11)


def spoiled_far_away(backend: str, width: float, prior: str, dtype: torch.dtype) -> torch.Tensor:
    """The context where a value far from all centers is NaN, which only one who does not look at it can survive."""
    inputs = simple_inputs(1, 2, 64, 1024, 16, 16, dtype=dtype)
    rows = torch.linspace(100, 300, 64, dtype=inputs.center.dtype).expand(1, 1, 64)
    inputs.value[:, :, 900:] = math.nan
    inputs = inputs._replace(center=rows, width=torch.full_like(rows, width))
    return gma_kernels.gaussian_attention(*inputs, prior=prior, backend=backend)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("prior", ["gaussian", "laplace"])
def test_native_does_not_touch_what_the_prior_hides(backend, prior, dtype):
    if backend != "native":
        pytest.skip("the others compute weights of 0")
    assert spoiled_far_away(backend, 3.0, prior, dtype).isfinite().all()
    assert not spoiled_far_away(backend, 300.0, prior, dtype).isfinite().all()


@pytest.mark.parametrize("prior", ["linear", "none"])
def test_a_prior_with_a_floor_hides_nothing(backend, prior):
    assert not spoiled_far_away(backend, 3.0, prior, torch.float32).isfinite().all()
