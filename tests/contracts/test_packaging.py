"""A source distribution and a wheel install into an empty environment and work there."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest
import torch

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DATA = ("gma/config/recipes/*", "gma/pretrained/*/*")
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


def unpacked_wheel(folder: Path, **environment) -> Path:
    """A wheel built under these conditions, unpacked."""
    run(
        sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, ROOT,
        **environment,
    )  # fmt: skip
    unpacked = folder / "unpacked"
    zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(unpacked)
    return unpacked


def test_one_version_is_written_everywhere():
    """In pyproject.toml; what else has to name it says the same."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1] == version
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert newest == version


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


def in_the_tree(*patterns: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}


def test_source_distribution_holds_the_kernels(distributions):
    with tarfile.open(distributions[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = in_the_tree(
        "csrc/**/*",
        "gma/**/*.py",
        "gma_kernels/**/*.py",
        "*/py.typed",
        *DATA,
        "LICENSE",
    )
    assert "csrc/cuda/launch.h" in expected
    assert expected <= names, expected - names
    assert not any(name.endswith((".so", "_missing.txt")) for name in names)


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is a CUDA build: the wheel may have the CUDA part")
def test_a_wheel_built_with_a_torch_without_cuda_says_so(distributions):
    wheel = zipfile.ZipFile(distributions[1])
    assert wheel.read("gma_kernels/_cuda_missing.txt") == b"torch was a build without CUDA at installation\n"


def test_wheel_runs_the_example_in_an_empty_environment(distributions, tmp_path):
    wheel = distributions[1]
    names = zipfile.ZipFile(wheel).namelist()
    expected = in_the_tree("gma/**/*.py", "gma_kernels/**/*.py", "*/py.typed", *DATA)
    assert "gma_kernels/triton/launch.py" in expected
    assert expected <= set(names), expected - set(names)
    assert "gma_kernels/_kernels.so" in names
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    version = torch.__version__.split("+")[0]
    run(python, "-m", "pip", "install", "--quiet", f"torch=={version}")
    run(python, "-m", "pip", "install", "--quiet", wheel)
    assert run(python, "-W", "error", "-c", EXAMPLE).count("tensor(") == 2
    assert "native" in run(tmp_path / "env" / "bin" / "gma", "info")


def test_the_kernels_need_nothing_but_torch():
    """Neither installed nor importable: all that the toolkit requires."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    of_torch = {re.match(r"[\w-]+", line)[0].lower() for line in requires("torch")} | {"torch"}
    toolkit = {re.match(r"[\w-]+", line)[0].lower() for line in required} - of_torch
    assert {"numpy", "typer", "tokenizers", "pydantic", "matplotlib"} <= toolkit
    program = f"""
import sys
for name in {sorted(toolkit)}:
    sys.modules[name] = None
import torch, gma_kernels, gma_kernels.engine
query, key = torch.randn(2, 1, 4, 8), torch.randn(2, 1, 6, 8)
center = torch.arange(1.0, 5).expand(2, 1, 4).contiguous().requires_grad_()
visible = torch.full((2, 1, 4), 6, dtype=torch.int32)
gma_kernels.gaussian_attention(query, key, key, center, center / 2, visible).sum().backward()
assert center.grad.abs().sum() > 0
print("gma" in sys.modules)
"""
    assert run(sys.executable, "-c", program) == "False\n"


def test_installing_without_a_compiler(tmp_path):
    empty = tmp_path / "bin"
    empty.mkdir()
    unpacked = unpacked_wheel(tmp_path, PATH=str(empty), CXX="")
    assert "no C++ compiler was found" in native_reason(unpacked)


def test_installing_with_no_torch_and_no_care(tmp_path):
    """An isolated build downloads no torch, makes a wheel for every machine, and says what to install first."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    wheel = next(tmp_path.glob("*.whl"))
    assert wheel.name.endswith("-py3-none-any.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "unpacked")
    reason = native_reason(tmp_path / "unpacked")
    assert "No module named 'torch'" in reason
    assert "pip install --force-reinstall --no-deps ." in reason


def test_leaving_the_extension_out(tmp_path):
    reason = native_reason(unpacked_wheel(tmp_path, GMA_BUILD_NATIVE="0"))
    assert "GMA_BUILD_NATIVE=0" in reason
    assert "pip install --force-reinstall --no-deps ." in reason


def test_an_editable_installation_leaves_its_reasons_in_the_sources(tmp_path):
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    for name in ("build_support", "gma", "gma_kernels"):
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("*_missing.txt", "__pycache__"))
    code = f"from setuptools.build_meta import build_editable; build_editable({str(tmp_path)!r})"
    run(sys.executable, "-c", code, cwd=sources, GMA_BUILD_NATIVE="0")
    assert list(tmp_path.glob("*.whl"))
    assert not list(sources.glob("gma_kernels/*.so"))
    assert "GMA_BUILD_NATIVE=0" in native_reason(sources)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc, of the CUDA toolkit, is not on the PATH")
def test_a_wheel_with_the_cuda_part_runs_the_cpu_path_where_torch_has_no_cuda(tmp_path):
    unpacked = unpacked_wheel(tmp_path, GMA_CUDA="1", TORCH_CUDA_ARCH_LIST="8.0")
    assert not (unpacked / "gma_kernels" / "_cuda_missing.txt").exists()
    output = run(sys.executable, ROOT / "tests" / "support" / "cuda_installation.py", PYTHONPATH=str(unpacked))
    assert output.startswith(str(unpacked))
    assert "forward, backward, weights registered; built for compute capability 8.0" in output
    assert "agree with the reference" in output
