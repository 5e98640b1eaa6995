"""Everything here runs in the repaired interpreter, with tiles so small that a short source has several."""

import pytest

from gma_kernels.triton import tiles
from tests.gma_kernels.triton import interpreter

SMALL = tiles.Tile(rows=16, keys=32, warps=4, stages=1)


@pytest.fixture(autouse=True)
def repaired():
    interpreter.repair()


@pytest.fixture
def real_tiles():
    """Asked for by tests that want the tiles a GPU would get."""


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch, request):
    if "real_tiles" not in request.fixturenames:
        monkeypatch.setattr(tiles, "candidates", lambda *_: (SMALL,))
