"""A source distribution and a wheel install into an empty environment and work there."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
EXAMPLE = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]


def run(*command, **environment) -> str:
    """Standard output of a command run outside the source tree, or its whole output as the failure."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=environment.pop("cwd", "/"),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> tuple[Path, Path]:
    """A source distribution, and a wheel built from it and not from the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def wheel_without_native(folder: Path, **environment) -> Path:
    """A wheel built under conditions in which the extension cannot be, unpacked."""
    run(
        sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, ROOT,
        **environment,
    )  # fmt: skip
    unpacked = folder / "unpacked"
    zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(unpacked)
    return unpacked


def native_reason(unpacked: Path) -> str:
    code = f"""
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
sys.path.insert(0, {str(unpacked)!r})
import gma_kernels
status = gma_kernels.backends()["native"]
assert not status.available
print(status.reason)
"""
    return run(sys.executable, "-c", code)


def test_source_distribution_holds_the_kernels(distributions):
    with tarfile.open(distributions[0]) as archive:
        names = archive.getnames()
    for suffix in ("csrc/prior.h", "csrc/binding.cpp", "gma_kernels/py.typed", "gma/py.typed", "LICENSE"):
        assert any(name.endswith(suffix) for name in names), suffix
    assert not any(name.endswith((".so", "_native_missing.txt")) for name in names)


def test_wheel_runs_the_example_in_an_empty_environment(distributions, tmp_path):
    wheel = distributions[1]
    names = zipfile.ZipFile(wheel).namelist()
    assert {"gma/py.typed", "gma_kernels/py.typed"} <= set(names)
    assert f"gma_kernels/_C{sysconfig.get_config_var('EXT_SUFFIX')}" in names
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    version = torch.__version__.split("+")[0]
    run(python, "-m", "pip", "install", "--quiet", f"torch=={version}")
    run(python, "-m", "pip", "install", "--quiet", wheel)
    assert run(python, "-W", "error", "-c", EXAMPLE).count("tensor(") == 2
    assert "native" in run(tmp_path / "env" / "bin" / "gma", "info")


def test_installing_without_a_compiler(tmp_path):
    empty = tmp_path / "bin"
    empty.mkdir()
    unpacked = wheel_without_native(tmp_path, PATH=str(empty), CXX="")
    assert "no C++ compiler was found" in native_reason(unpacked)


def test_leaving_the_extension_out(tmp_path):
    reason = native_reason(wheel_without_native(tmp_path, GMA_BUILD_NATIVE="0"))
    assert "GMA_BUILD_NATIVE=0" in reason
    assert "--no-build-isolation" in reason
