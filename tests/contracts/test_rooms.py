"""The architecture that docs/architecture.md describes, as far as linters do not check it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GMA = ROOT / "gma"
CODE = sorted(
    path
    for folder in ("gma", "gma_kernels", "csrc", "benchmarks", "tests")
    for pattern in ("*.py", "*.h", "*.cpp", "*.cu")
    for path in (ROOT / folder).rglob(pattern)
)
LONGEST_FILE, MOST_FILES, MOST_IGNORED_TYPES = 500, 6, 10
POLICY_NAMES = ("gaussian", "wait_k", "monotonic", "offline", "gain", "itst", "meaning_units")
# only there is it asked which policy runs
KNOWS_POLICIES = ("policies", "config", "cli")


def rooms() -> set[str]:
    return {path.name for path in GMA.iterdir() if path.is_dir() and path.name != "__pycache__"}


def test_a_newcomer_sees_rooms():
    assert len([path for path in GMA.iterdir() if path.is_file()]) <= MOST_FILES
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == rooms()


def test_no_file_says_too_much():
    lengths = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in CODE}
    assert len(lengths) > 200
    assert not {name: length for name, length in lengths.items() if length > LONGEST_FILE}


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_policies_keep_to_themselves(name):
    compared = re.compile(rf"""(==|!=|\bis|\bin)\s*\(?["']{name}["']|["']{name}["']\s*(==|!=)""")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in GMA.rglob("*.py")
        if path.relative_to(GMA).parts[0] not in KNOWS_POLICIES
        for line in path.read_text(encoding="utf-8").splitlines()
        if compared.search(line)
    ]
    assert not found


def test_types_are_ignored_seldom_and_with_a_reason():
    ignored = [
        line.strip()
        for folder in (GMA, ROOT / "gma_kernels")
        for path in folder.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "type: ignore" in line
    ]
    assert len(ignored) <= MOST_IGNORED_TYPES
    assert all(re.search(r"# type: ignore\[[\w, -]+\]  # \S+", line) for line in ignored), ignored
