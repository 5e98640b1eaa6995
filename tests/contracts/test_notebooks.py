"""The notebooks run from top to bottom, and show what they give."""

from pathlib import Path

import pytest

from tests.support.pages import ROOT

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
# bytes, pictures included: a code host must show it at once
LARGEST = 100_000


def said(notebook) -> list[str]:
    """What its cells print."""
    return [output.text for cell in notebook.cells for output in cell.get("outputs", ()) if "text" in output]


def pictures(notebook) -> int:
    return sum("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ()))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_gives_what_it_shows(path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shown = nbformat.read(path, as_version=4)
    run = nbformat.read(path, as_version=4)
    # raises where a cell does
    nbclient.NotebookClient(run, timeout=300, resources={"metadata": {"path": str(ROOT)}}).execute()
    assert said(run) == said(shown)
    assert pictures(run) == pictures(shown) >= 3
    assert path.stat().st_size < LARGEST


def test_there_are_two():
    assert [Path(path).stem for path in NOTEBOOKS] == ["module", "streaming"]
