"""Everything here runs in the repaired interpreter, with tiles so small that a short source has several."""

import pytest

from gma_kernels.triton import tile_sizes
from tests.support import triton_interpreter

SMALL = tile_sizes.Tile(rows=16, keys=32, warps=4, stages=1)


@pytest.fixture(autouse=True)
def repaired():
    triton_interpreter.repair()


@pytest.fixture
def real_tiles():
    """Asked for by tests that want the tiles a GPU would get."""


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch, request):
    if "real_tiles" not in request.fixturenames:
        monkeypatch.setattr(tile_sizes, "candidates", lambda *_: (SMALL,))
