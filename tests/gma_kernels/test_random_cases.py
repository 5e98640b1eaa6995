"""Seeded random cases against the float64 reference, within the tolerance of the contract. None is excluded."""

import pytest

from tests.support.numerics import CPU_BACKENDS, Case, dtype_to_draw
from tests.support.random_cases import checked, weights_failures

CASES_PER_CHUNK = 100
# 200 cases for the reference and 2,000 for each SIMD level (500 where only bfloat16 is new); 8,000 more for each level
# by `make test-all`
CHUNKS = [
    pytest.param(name, chunk, marks=pytest.mark.slow if chunk >= (5 if name.endswith("bf16") else 20) else ())
    for name in CPU_BACKENDS
    for chunk in range(2 if name == "reference" else 100)
]


@pytest.mark.parametrize(("backend", "chunk"), CHUNKS, indirect=["backend"])
def test_forward_gradients_and_weights_of_random_cases(backend, chunk):
    seeds = range(chunk * CASES_PER_CHUNK, (chunk + 1) * CASES_PER_CHUNK)
    found = [line for seed in seeds for line in checked(Case.draw(seed, dtype_to_draw()), backend)]
    assert not found, "\n".join(found)


def test_gradients_through_the_weights_of_random_cases(backend):
    found = [line for seed in range(10_000, 10_100) for line in weights_failures(Case.draw(seed), backend)]
    assert not found, "\n".join(found)
