"""The SIMD levels of the native backend: which one runs, and who chooses it."""

import pytest

import gma_kernels
from gma_kernels.native import extension
from tests.support.numerics import using
from tests.support.processes import run_python

pytestmark = pytest.mark.skipif(extension is None, reason="the native backend was not built")


def test_the_native_backend_names_the_level_in_use():
    for level in extension.simd_levels():
        with using(f"native {level}") as backend:
            status = gma_kernels.backends()[backend]
            assert status.available
            assert level in status.reason


@pytest.mark.parametrize("level", ["sse9", "", "AVX2"])
def test_an_unknown_level_is_refused_with_the_choices(level):
    with pytest.raises(ValueError, match="baseline"):
        extension.use_simd(level)


def test_the_environment_chooses_the_level():
    code = "import gma_kernels; print(gma_kernels.backends()['native'].reason)"
    for level in extension.simd_levels():
        assert level in run_python("-c", code, GMA_SIMD=level)
    reason = run_python("-c", code, GMA_SIMD="mmx")
    assert "'mmx' is not available" in reason
    assert "GMA_SIMD" in reason
