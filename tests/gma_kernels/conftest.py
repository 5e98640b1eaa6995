"""The CPU backends every backend-independent test runs on: the reference, and native at every SIMD level there is."""

from collections.abc import Iterator

import pytest

import gma_kernels
from tests.support.numerics import CPU_BACKENDS, using


@pytest.fixture(params=CPU_BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name to pass to the operator."""
    with using(request.param) as name:
        status = gma_kernels.backends()[name]
        if not status.available:
            pytest.skip(f"{name}: {status.reason}")
        yield name
