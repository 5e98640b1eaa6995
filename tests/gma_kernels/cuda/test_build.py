"""What setup.py decides about CUDA, how it fails, and that nvcc compiles and links what it should."""

import subprocess
from pathlib import Path

import pytest
import torch
from setuptools import Distribution, Extension

import setup

ROOT = Path(__file__).parents[3]
KNOWN = "compute_75\\ncompute_80\\ncompute_86\\ncompute_90\\ncompute_100\\ncompute_120\\n"


@pytest.fixture(autouse=True)
def _nothing_said_of_cuda(monkeypatch):
    for name in ("GMA_CUDA", "GMA_BUILD_NATIVE", "TORCH_CUDA_ARCH_LIST", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)


@pytest.fixture
def toolkit(monkeypatch, tmp_path):
    """CUDA_HOME of a toolkit whose nvcc is a shell script; its body can be given."""

    def make(body=f"printf '{KNOWN}'"):
        nvcc = tmp_path / "toolkit" / "bin" / "nvcc"
        nvcc.parent.mkdir(parents=True)
        nvcc.write_text(f"#!/bin/sh\n{body}\n")
        nvcc.chmod(0o755)
        monkeypatch.setenv("CUDA_HOME", str(nvcc.parents[1]))
        return str(nvcc)

    return make


@pytest.fixture
def real_nvcc():
    try:
        return setup.find_nvcc()
    except setup.CudaUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8.0;9.0+PTX", ["8.0", "9.0+PTX"]),
        ("8.0 9.0+PTX", ["8.0", "9.0+PTX"]),
        (" 8.0 ;  9.0; ", ["8.0", "9.0"]),
        ("10.0;12.0+PTX;10.0", ["10.0", "12.0+PTX"]),
        ("9.0a 10.0f", ["9.0a", "10.0f"]),
        ("7.0 7.5+PTX 8.0 8.6+PTX", ["8.0", "8.6+PTX"]),
    ],
)
def test_capabilities_are_read_as_torch_writes_them_and_old_ones_left_out(text, expected):
    assert setup.parse_architectures(text) == expected


@pytest.mark.parametrize("text", ["Ampere", "80", "8.0,9.0", "8.0;sm_90", "8.0+ptx", "8", "9.0+PTX+PTX"])
def test_a_capability_that_is_none_is_named_with_what_is_expected(text):
    with pytest.raises(setup.CudaUnavailable, match=r"TORCH_CUDA_ARCH_LIST.*expected.*'8\.0;9\.0\+PTX'"):
        setup.parse_architectures(text)


def test_only_old_capabilities_are_refused():
    with pytest.raises(setup.CudaUnavailable, match=r"'7\.0;7\.5'; expected a compute capability of 8\.0 or more"):
        setup.parse_architectures("7.0;7.5")


def test_code_for_newer_parts_only_where_asked_for():
    assert setup.code_flag("8.0") == "-gencode=arch=compute_80,code=[sm_80]"
    assert setup.code_flag("12.0+PTX") == "-gencode=arch=compute_120,code=[sm_120,compute_120]"


@pytest.mark.parametrize(
    ("mode", "torch_cuda", "builds"),
    [
        (None, "13.0", True),
        ("auto", "13.0", True),
        ("auto", None, False),
        ("1", None, True),
        ("1", "13.0", True),
        ("0", "13.0", False),
    ],
)
def test_when_the_cuda_part_is_built(toolkit, monkeypatch, mode, torch_cuda, builds):
    def look_for_a_gpu():
        raise AssertionError("building must not depend on a GPU")

    nvcc = toolkit()
    if mode is not None:
        monkeypatch.setenv("GMA_CUDA", mode)
    monkeypatch.setattr(torch.version, "cuda", torch_cuda)
    monkeypatch.setattr(torch.cuda, "is_available", look_for_a_gpu)
    monkeypatch.setattr(torch.cuda, "device_count", look_for_a_gpu)
    if builds:
        assert setup.find_toolkit() == (nvcc, ["8.0", "9.0", "10.0", "12.0+PTX"])
    else:
        with pytest.raises(setup.CudaUnavailable, match="GMA_CUDA=0" if mode == "0" else "without CUDA"):
            setup.find_toolkit()


def test_the_list_of_capabilities_is_honoured(toolkit, monkeypatch):
    toolkit()
    monkeypatch.setenv("GMA_CUDA", "1")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.6 9.0+PTX")
    assert setup.find_toolkit().architectures == ["8.6", "9.0+PTX"]


def test_an_older_toolkit_builds_what_it_knows(toolkit):
    assert setup.default_architectures(toolkit("printf 'compute_80\\ncompute_90\\n'")) == ["8.0", "9.0+PTX"]


def test_a_toolkit_named_and_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(setup.CudaUnavailable, match=f"no nvcc was found.*{tmp_path}/bin/nvcc"):
        setup.find_nvcc()


@pytest.mark.parametrize("mode", ["yes", "on", "2", "AUTO"])
def test_an_unknown_mode_stops_the_build_with_the_choices(monkeypatch, mode):
    monkeypatch.setenv("GMA_CUDA", mode)
    with pytest.raises(SystemExit, match=f"GMA_CUDA is '{mode}'; expected 'auto', '1' or '0'"):
        setup.find_toolkit()


@pytest.fixture
def build(monkeypatch, tmp_path):
    """Runs the build with C++ units only named, not compiled, and returns what is linked and the reasons recorded."""

    def compile_nothing(compiler, includes, build, source, failure=None):
        return str(source)

    def link(command, failure=None):
        return real_run(command, failure) if Path(command[0]).name == "nvcc" else linked.extend(command)

    def run():
        command = setup.BuildNative(Distribution({"name": "gma", "ext_modules": [Extension("gma_kernels._C", [])]}))
        command.build_lib, command.build_temp = str(tmp_path / "lib"), str(tmp_path / "temp")
        command.ensure_finalized()
        command.run()
        return linked, {file.name: file.read_text() for file in (tmp_path / "lib").glob("**/*.txt")}

    linked, real_run = [], setup.run
    monkeypatch.setattr(setup, "compile_source", compile_nothing)
    monkeypatch.setattr(setup, "run", link)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return run


FAILING = (
    f"case $* in *list-gpu-arch*) printf '{KNOWN}';; *) echo 'x.cu: error: too new a host compiler'; exit 1;; esac"
)


def test_an_automatic_cuda_build_that_fails_is_recorded_and_the_cpu_part_still_built(build, toolkit):
    toolkit(FAILING)
    linked, reasons = build()
    assert "csrc/torch/binding.cpp" in linked
    assert "csrc/cuda/absent.cpp" in linked
    assert "csrc/torch/binding_cuda.cpp" not in linked
    assert reasons == {"_cuda_missing.txt": "nvcc failed at installation: x.cu: error: too new a host compiler\n"}


def test_a_toolkit_without_the_static_runtime_costs_the_cuda_part_alone(toolkit, tmp_path):
    nvcc = toolkit("echo '#$ LIBRARIES=\"-L/nowhere\"'")
    compiler = ["sh", "-c", "echo 'error: cannot find -lcudart_static'; exit 1"]
    with pytest.raises(setup.CudaUnavailable, match="cannot find -lcudart_static"):
        setup.cuda_libraries(setup.Toolkit(nvcc, ["8.0"]), compiler, tmp_path)


def test_a_cuda_build_links_kernels_and_the_static_runtime(build, toolkit):
    toolkit(f"case $* in *dryrun*) echo '#$ LIBRARIES= \"-L/one\" \"-L/two\"';; *) printf '{KNOWN}';; esac")
    linked, reasons = build()
    assert "csrc/torch/binding_cuda.cpp" in linked
    assert "csrc/cuda/absent.cpp" not in linked
    for source in setup.cuda_sources():
        assert any(name.endswith(f"{source.name}.o") for name in linked)
    assert linked.index("-L/one") < linked.index("-L/two") < linked.index("-lcudart_static")
    assert not reasons


@pytest.mark.parametrize("body", [FAILING, None])
def test_a_cuda_build_asked_for_that_fails_stops_the_build(build, toolkit, monkeypatch, tmp_path, body):
    if body is None:
        monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    else:
        toolkit(body)
    monkeypatch.setenv("GMA_CUDA", "1")
    expected = "too new a host compiler" if body else "no nvcc was found"
    with pytest.raises(SystemExit, match=f"GMA_CUDA=1 asks for the CUDA backend.*{expected}"):
        build()


def test_cuda_asked_for_and_the_extension_left_out(build, monkeypatch):
    monkeypatch.setenv("GMA_CUDA", "1")
    monkeypatch.setenv("GMA_BUILD_NATIVE", "0")
    with pytest.raises(SystemExit, match=r"GMA_CUDA=1.*GMA_BUILD_NATIVE=0"):
        build()


PROGRAM = """
#include <cstdio>
#include "cuda/device.h"
int main() {
  std::vector<gma::cuda::Device> devices;
  const std::string error = gma::cuda::find_devices(devices);
  std::printf("%s|%s|%zu", gma::cuda::architectures().c_str(), error.c_str(), devices.size());
}
"""


def test_nvcc_compiles_and_the_static_runtime_says_what_is_missing(real_nvcc, tmp_path):
    """What finds the devices, as it is built: it runs where there is no driver, and says so."""
    toolkit = setup.Toolkit(real_nvcc, ["8.0", "9.0+PTX"])
    unit = setup.compile_kernels(toolkit, tmp_path, Path("csrc/cuda/device.cu"))
    program = tmp_path / "program.cpp"
    program.write_text(PROGRAM)
    compiler = setup.find_compiler()
    libraries = setup.cuda_libraries(toolkit, compiler, tmp_path)
    setup.run([*compiler, "-Icsrc", str(program), unit, *libraries, "-o", str(tmp_path / "program")])
    output = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True).stdout
    architectures, error, count = output.split("|")
    assert architectures == "8.0;9.0+PTX"
    assert int(count) > 0 or any(words in error for words in ("no NVIDIA driver", "shows no GPU", "is one for CUDA"))
