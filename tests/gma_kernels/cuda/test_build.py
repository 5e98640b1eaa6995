"""What the build decides about CUDA, what ninja makes of that, how it fails, and that nvcc compiles what it should."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from setuptools import Distribution, Extension
from torch.utils import cpp_extension

import setup
from build_support import cuda_toolkit, ninja_plan
from build_support.cuda_toolkit import CudaUnavailable

ROOT = Path(__file__).parents[3]
KNOWN = "compute_75\\ncompute_80\\ncompute_86\\ncompute_90\\ncompute_100\\ncompute_120\\n"
QUESTIONS = f"*--version*) echo 'Cuda compilation tools, release 13.0';; *--list-gpu-arch*) printf '{KNOWN}';;"


@pytest.fixture(autouse=True)
def _nothing_said_of_cuda(monkeypatch):
    for name in ("GMA_CUDA", "GMA_BUILD_NATIVE", "TORCH_CUDA_ARCH_LIST", "CUDA_HOME", "CUDA_PATH", "CXX", "MAX_JOBS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(ROOT)


def write_nvcc(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def toolkit(monkeypatch, tmp_path):
    """nvcc of a toolkit, which CUDA_HOME names: a shell script, of which `compiling` is what it does with a source."""

    def make(compiling="exit 1", questions=QUESTIONS):
        nvcc = write_nvcc(tmp_path / "toolkit" / "bin" / "nvcc", f'case "$*" in {questions} *) {compiling};; esac')
        monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
        return nvcc

    return make


@pytest.fixture
def real_nvcc():
    try:
        return cuda_toolkit.find_nvcc(None)
    except CudaUnavailable as error:
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
        ("Turing;Ampere;Hopper", ["8.0", "8.6+PTX", "9.0+PTX"]),
        ("Ampere+Tegra 9.0", ["8.7", "9.0"]),
    ],
)
def test_capabilities_are_read_as_torch_writes_them_and_old_ones_left_out(text, expected):
    assert cuda_toolkit.parse_architectures(text) == expected


@pytest.mark.parametrize("text", ["Amper", "80", "8.0,9.0", "8.0;sm_90", "8.0+ptx", "8", "9.0+PTX+PTX"])
def test_a_capability_that_is_none_is_named_with_what_is_expected(text):
    with pytest.raises(CudaUnavailable, match=r"TORCH_CUDA_ARCH_LIST.*expected.*'8\.0;9\.0\+PTX'.*Ampere"):
        cuda_toolkit.parse_architectures(text)


@pytest.mark.parametrize("text", ["7.0;7.5", "Volta"])
def test_only_old_capabilities_are_refused(text):
    with pytest.raises(CudaUnavailable, match=rf"'{text}'; expected a compute capability of 8\.0 or more"):
        cuda_toolkit.parse_architectures(text)


def test_code_for_newer_parts_only_where_asked_for():
    assert cuda_toolkit.code_flag("8.0") == "-gencode=arch=compute_80,code=[sm_80]"
    assert cuda_toolkit.code_flag("12.0+PTX") == "-gencode=arch=compute_120,code=[sm_120,compute_120]"


@pytest.mark.parametrize(
    ("mode", "torch_cuda", "builds"),
    [
        (None, "13.0", True),
        ("auto", "13.2", True),
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
    monkeypatch.setattr(torch.cuda, "is_available", look_for_a_gpu)
    monkeypatch.setattr(torch.cuda, "device_count", look_for_a_gpu)
    if builds:
        assert cuda_toolkit.find_toolkit(torch_cuda) == (nvcc, ["8.0", "9.0", "10.0", "12.0+PTX"])
    else:
        with pytest.raises(CudaUnavailable, match="GMA_CUDA=0" if mode == "0" else "without CUDA"):
            cuda_toolkit.find_toolkit(torch_cuda)


def test_the_list_of_capabilities_is_honoured(toolkit, monkeypatch):
    toolkit()
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.6 9.0+PTX")
    assert cuda_toolkit.find_toolkit("13.0").architectures == ["8.6", "9.0+PTX"]


def test_an_older_toolkit_builds_what_it_knows(toolkit):
    nvcc = toolkit(questions="*--list-gpu-arch*) printf 'compute_80\\ncompute_90\\n';;")
    assert cuda_toolkit.default_architectures(nvcc) == ["8.0", "9.0+PTX"]


def test_a_toolkit_named_and_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(CudaUnavailable, match=f"no nvcc was found.*{tmp_path}/bin/nvcc"):
        cuda_toolkit.find_nvcc(None)


def test_a_toolkit_of_another_major_version_than_that_of_torch_is_refused(toolkit):
    nvcc = toolkit()
    with pytest.raises(CudaUnavailable, match=rf"build for CUDA 12\.6.*only {nvcc} of CUDA 13\.0; .*CUDA_HOME"):
        cuda_toolkit.find_nvcc("12.6")


@pytest.mark.parametrize("folder", ["nvidia/cu13", "nvidia/cuda_nvcc"])
def test_an_nvcc_from_pip_is_found_if_it_is_the_one_that_fits(monkeypatch, tmp_path, folder):
    nvcc = write_nvcc(tmp_path / folder / "bin" / "nvcc", "echo 'release 99.1, V99.1.88'")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cuda_toolkit.find_nvcc("99.0") == nvcc


def test_nvcc_is_given_the_compiler_that_is_asked_for(monkeypatch):
    kit = cuda_toolkit.Toolkit("nvcc", ["8.0"])
    assert not any("ccbin" in word for word in kit.compile_command())
    monkeypatch.setenv("CXX", "ccache g++-12 -m64")
    assert "-ccbin=g++-12" in kit.compile_command()


@pytest.mark.parametrize("mode", ["yes", "on", "2", "AUTO"])
def test_an_unknown_mode_stops_the_build_with_the_choices(monkeypatch, mode):
    monkeypatch.setenv("GMA_CUDA", mode)
    with pytest.raises(SystemExit, match=f"GMA_CUDA is '{mode}'; expected 'auto', '1' or '0'"):
        cuda_toolkit.find_toolkit("13.0")


# nvcc's flags left out, a .cu file is C++
AS_CPP = """for word; do shift; case $word in -X*|-gencode*|-ccbin*) ;; *) set -- "$@" "$word";; esac; done
exec c++ -fPIC -x c++ "$@" """
SOURCES = {
    "csrc/cuda/common.h": "#pragma once\n",
    "csrc/cuda/one.cu": '#include "common.h"\nint one() { return 1; }\n',
    "csrc/cuda/two.cu": "int two() { return 2; }\n",
    "csrc/cuda/absent.cpp": "int absent() { return 0; }\n",
    "csrc/torch/binding_cuda.cpp": "int binding_cuda() { return 0; }\n",
    "csrc/torch/binding.cpp": "int binding() { return 0; }\n",
    "csrc/torch/autograd.cpp": "int autograd() { return 0; }\n",
}


@pytest.fixture
def build(monkeypatch, tmp_path):
    """Builds a small tree of sources and returns the functions in the library and the reasons recorded."""

    def run():
        command = setup.BuildNative(
            Distribution({"name": "gma", "ext_modules": [Extension("gma_kernels._kernels", [])]})
        )
        command.build_lib = str(tmp_path / "lib")
        command.ensure_finalized()
        command.run()
        folder = tmp_path / "lib" / "gma_kernels"
        names = set()
        for library in folder.glob(setup.LIBRARY):
            symbols = subprocess.run(["nm", "-C", library], capture_output=True, text=True, check=True).stdout
            names = {line.split()[-1].removesuffix("()") for line in symbols.splitlines() if line.endswith("()")}
        return names, {file.name: file.read_text() for file in folder.glob("*.txt")}

    for name, text in SOURCES.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path / "tree")
    found = setup.Torch(torch.__version__, "13.0", [], cpp_extension.library_paths())
    monkeypatch.setattr(setup, "find_torch", lambda: found)
    return run


@pytest.fixture
def whole_toolkit(toolkit, tmp_path):
    """One that compiles, with an empty static runtime."""
    questions = f"""{QUESTIONS} *--dryrun*) echo '#$ LIBRARIES="-L{tmp_path}/toolkit/lib"' >&2;;"""
    toolkit(AS_CPP, questions)
    (tmp_path / "toolkit" / "lib").mkdir()
    subprocess.run(["ar", "rc", tmp_path / "toolkit" / "lib" / "libcudart_static.a"], check=True)


FAILING = "echo 'x.cu: error: too new a host compiler'; exit 1"


def test_an_automatic_cuda_build_that_fails_is_recorded_aloud_and_the_cpu_part_still_built(build, toolkit, capsys):
    toolkit(f"case $* in *dryrun*) ;; *) {FAILING};; esac")
    functions, reasons = build()
    assert functions >= {"binding", "absent"}
    assert "binding_cuda" not in functions
    assert reasons == {"_cuda_missing.txt": "x.cu: error: too new a host compiler\n"}
    assert "!!!" in capsys.readouterr().out


def test_a_toolkit_without_the_static_runtime_costs_the_cuda_part_alone(build, whole_toolkit, tmp_path):
    (tmp_path / "toolkit" / "lib" / "libcudart_static.a").unlink()
    functions, reasons = build()
    assert "absent" in functions
    assert "cannot find -lcudart_static" in reasons["_cuda_missing.txt"]


def test_a_cpu_part_that_cannot_be_compiled_is_recorded(build, monkeypatch):
    Path("csrc/torch/binding.cpp").write_text("nonsense\n")
    monkeypatch.setenv("GMA_CUDA", "0")
    functions, reasons = build()
    assert not functions
    assert "csrc/torch/binding.cpp:1:" in reasons["_native_missing.txt"]


@pytest.mark.usefixtures("whole_toolkit")
def test_a_cuda_build_links_the_kernels_and_the_next_one_compiles_what_has_changed(build, tmp_path):
    functions, reasons = build()
    assert functions >= {"one", "two", "binding", "binding_cuda"}
    assert "absent" not in functions
    assert not reasons
    assert list((tmp_path / "lib").glob("**/_autograd_torch_*.so"))

    def compiled_again(changed: str) -> set[str]:
        before = {path: path.stat().st_mtime_ns for path in ninja_plan.FOLDER.glob("*.o")}
        os.utime(changed)
        build()
        return {path.name for path, time in before.items() if path.stat().st_mtime_ns != time}

    assert compiled_again("csrc/cuda/two.cu") == {"csrc_cuda_two.cu.o"}
    assert compiled_again("csrc/cuda/common.h") == {"csrc_cuda_one.cu.o"}
    assert compiled_again("csrc/torch/binding.cpp") == {"csrc_torch_binding.cpp.o"}


def test_as_many_compilers_as_are_asked_for(build, monkeypatch):
    seen = []
    monkeypatch.setenv("GMA_CUDA", "0")
    monkeypatch.setenv("MAX_JOBS", "3")
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **rest: seen.append(command) or real(command, **rest))
    build()
    for command in seen:
        if "ninja" in str(command[0]):
            assert command[command.index("-j") + 1] == "3"
    assert any("ninja" in str(command[0]) for command in seen)


@pytest.mark.parametrize("body", [FAILING, None])
def test_a_cuda_build_asked_for_that_fails_stops_the_build(build, toolkit, monkeypatch, tmp_path, body):
    if body is None:
        monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    else:
        toolkit(f"case $* in *dryrun*) ;; *) {body};; esac")
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
    kit = cuda_toolkit.Toolkit(real_nvcc, ["8.0", "9.0+PTX"])
    unit, program = tmp_path / "device.o", tmp_path / "program.cpp"
    subprocess.run([*kit.compile_command(), "-c", "csrc/cuda/device.cu", "-o", unit], check=True)
    program.write_text(PROGRAM)
    command = [*setup.find_compiler(), "-Icsrc", program, unit, *kit.libraries(), "-o", tmp_path / "program"]
    subprocess.run(command, check=True)
    output = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True).stdout
    architectures, error, count = output.split("|")
    assert architectures == "8.0;9.0+PTX"
    assert int(count) > 0 or any(words in error for words in ("no NVIDIA driver", "shows no GPU", "is one for CUDA"))
