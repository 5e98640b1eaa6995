"""The CPU backends every backend-independent test runs on."""

import pytest

import gma_kernels


@pytest.fixture(params=["reference", "native"])
def backend(request: pytest.FixtureRequest) -> str:
    status = gma_kernels.backends()[request.param]
    if not status.available:
        pytest.skip(f"{request.param}: {status.reason}")
    return request.param
