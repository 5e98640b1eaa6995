"""Builds the native extension where it can, and installs as pure Python where it cannot.

    GMA_BUILD_NATIVE=0   leave the extension out
    GMA_CUDA=auto        its CUDA part where nvcc is found and torch is a CUDA build (the default);
             1           always, whatever torch is, or fail; 0 never. No GPU is needed to build it
    TORCH_CUDA_ARCH_LIST   the compute capabilities to build for, as in "8.0;9.0+PTX"
    CUDA_HOME            the CUDA toolkit, where nvcc is not on the PATH
    CXX, CXXFLAGS, LDFLAGS   the compiler and extra flags, as usual

Everything else about the package is in pyproject.toml.
"""

import functools
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# the kernels need infinities and NaN to behave, so no -ffast-math
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
# the oldest torch whose stable ABI the extension may rely on: 2.10
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020a000000000000"
# a library of its own, because it relies on all of the torch it is built with; without it the package is only slower
AUTOGRAD = Path("csrc/torch/autograd.cpp")
# one unit per SIMD level, chosen from at run time; nothing else may use these flags, or it would die on older CPUs
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
AVX2 = ["-mavx2", "-mfma"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
LEVEL_FLAGS = {"avx2": AVX2, "avx512": AVX512, "avx512_vnni": [*AVX512, "-mavx512vnni"]} if IS_X86 else {}

NVCC_FLAGS = ["-std=c++17", "-O3", "-Xcompiler=-fPIC,-fvisibility=hidden"]
CAPABILITIES = ("8.0", "9.0", "10.0", "12.0")
OLDEST_CAPABILITY = (8, 0)
# with CUDA the first is compiled beside the kernels, without it the second
CUDA_BINDING, CUDA_STAND_IN = Path("csrc/torch/binding_cuda.cpp"), Path("csrc/cuda/absent.cpp")

Result = TypeVar("Result")


class NativeUnavailable(Exception):
    """Why there is no native backend in this installation."""


class CudaUnavailable(Exception):
    """Why there is no CUDA backend in this installation."""


class Toolkit(NamedTuple):
    """What the CUDA part is built with: the compiler, and capabilities such as '8.0' or '12.0+PTX'."""

    nvcc: str
    architectures: list[str]


class BuildNative(build_ext):
    """Compiles each source with its own flags. A failure is recorded for `gma_kernels.backends()`, not fatal."""

    def build_extension(self, ext: Extension) -> None:
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        # an editable installation runs from the sources, and must not find what an earlier one left there
        self.installed = Path("gma_kernels") if self.editable_mode else library.parent
        for stale in ("_native_missing.txt", "_cuda_missing.txt", library.name, "_autograd_torch_*"):
            for file in self.installed.glob(stale):
                file.unlink()
        try:
            self._build(library)
        except NativeUnavailable as error:
            self._do_without("native", error)

    def _build(self, library: Path) -> None:
        if os.environ.get("GMA_BUILD_NATIVE", "1") == "0":
            raise NativeUnavailable("it was left out at installation by GMA_BUILD_NATIVE=0")
        if platform.system() == "Windows":
            raise NativeUnavailable("it needs GCC or Clang, and was installed on Windows")
        includes, libraries = dependencies(self.include_dirs)
        compiler = find_compiler()
        toolkit = self._unless_cuda_fails(find_toolkit)
        build = Path(self.build_temp).resolve()
        build.mkdir(parents=True, exist_ok=True)
        compile_unit = functools.partial(compile_source, compiler, includes, build)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            kernels = []
            if toolkit:
                # before the others: they take longest
                kernels = [pool.submit(compile_kernels, toolkit, build, source) for source in cuda_sources()]
                kernels.append(pool.submit(compile_unit, CUDA_BINDING, CudaUnavailable))
            sources = sorted(set(Path("csrc").glob("**/*.cpp")) - {AUTOGRAD, CUDA_BINDING, CUDA_STAND_IN})
            autograd = pool.submit(compile_unit, AUTOGRAD)
            objects = list(pool.map(compile_unit, sources))
            cuda_objects = self._unless_cuda_fails(lambda: [kernel.result() for kernel in kernels])
        cuda_runtime = cuda_objects and self._unless_cuda_fails(lambda: cuda_libraries(toolkit, compiler, build))
        if cuda_runtime:
            objects, libraries = objects + cuda_objects, libraries + cuda_runtime
        else:
            objects.append(compile_unit(CUDA_STAND_IN))
        shared = ["-bundle", "-undefined", "dynamic_lookup"] if platform.system() == "Darwin" else ["-shared"]
        link = [*compiler, *shared, *environment_flags("CXXFLAGS", "LDFLAGS")]
        run([*link, *objects, *libraries, "-o", str(library)])
        try:
            run([*link, autograd.result(), *libraries, "-lc10", "-o", str(self.installed / autograd_library())])
        except NativeUnavailable as error:
            print(f"gma: gradients take a slower way, through Python: {error}")

    def _unless_cuda_fails(self, step: Callable[[], Result]) -> Result | None:
        try:
            return step()
        except CudaUnavailable as error:
            return self._do_without("cuda", error)

    def _do_without(self, backend: str, error: Exception) -> None:
        if cuda_mode() == "1":
            raise SystemExit(f"gma: GMA_CUDA=1 asks for the CUDA backend, and it cannot be built: {error}")
        (self.installed / f"_{backend}_missing.txt").write_text(f"{error}\n")
        print(f"gma: installing without the {backend} backend: {error}")


def compile_source(
    compiler: list[str], includes: list[str], build: Path, source: Path, failure: type[Exception] = NativeUnavailable
) -> str:
    facts = f'-DGMA_BUILD_FLAGS="{" ".join(FLAGS)}"'
    interface = "-std=c++20" if source == AUTOGRAD else STABLE_ABI
    extra = [*LEVEL_FLAGS.get(source.stem, []), interface, *environment_flags("CXXFLAGS")]
    target = object_file(build, source)
    run([*compiler, *FLAGS, *extra, facts, *includes, "-c", str(source), "-o", target], failure)
    return target


def autograd_library() -> str:
    """Its name, by which `gma_kernels.native` finds the one for the torch that runs."""
    import torch

    return f"_autograd_torch_{torch.__version__.partition('+')[0]}.so"


def compile_kernels(toolkit: Toolkit, build: Path, source: Path) -> str:
    target = object_file(build, source)
    run(nvcc_command(toolkit, source, target), CudaUnavailable)
    return target


def nvcc_command(toolkit: Toolkit, source: Path, target: str) -> list[str]:
    codes = [code_flag(name) for name in toolkit.architectures]
    facts = f'-DGMA_CUDA_ARCHITECTURES="{";".join(toolkit.architectures)}"'
    return [toolkit.nvcc, *NVCC_FLAGS, *codes, facts, "-c", str(source), "-o", target]


def object_file(build: Path, source: Path) -> str:
    return str(build / f"{'_'.join(source.parts)}.o")


def environment_flags(*names: str) -> list[str]:
    return [flag for name in names for flag in shlex.split(os.environ.get(name, ""))]


def find_compiler() -> list[str]:
    for candidate in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        command = shlex.split(candidate)
        try:
            subprocess.run([*command, "--version"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return command
    raise NativeUnavailable("no C++ compiler was found at installation (tried CXX, c++, g++, clang++)")


def dependencies(python_includes: list[str]) -> tuple[list[str], list[str]]:
    """Include and link flags of Python, pybind11 and torch."""
    try:
        import pybind11
        from torch.utils import cpp_extension
    except (ImportError, OSError) as error:
        culprit = getattr(error, "name", None) or error
        raise NativeUnavailable(
            f"{culprit} could not be imported at installation; install torch and pybind11 first, then this package "
            "with --no-build-isolation"
        ) from error
    folders = [*python_includes, pybind11.get_include(), *cpp_extension.include_paths()]
    includes = [flag for folder in folders for flag in ("-isystem", folder)]
    # for quotes alone: <torch/…> must not be looked for in csrc/torch
    return [*includes, "-iquote", "csrc"], [*(f"-L{path}" for path in cpp_extension.library_paths()), "-ltorch_cpu"]


def cuda_mode() -> str:
    mode = os.environ.get("GMA_CUDA") or "auto"
    if mode not in ("auto", "1", "0"):
        raise SystemExit(f"gma: GMA_CUDA is {mode!r}; expected 'auto', '1' or '0'")
    return mode


def find_toolkit() -> Toolkit:
    """What to build the CUDA part with. Neither looks for a GPU nor needs one."""
    mode = cuda_mode()
    if mode == "0":
        raise CudaUnavailable("it was left out at installation by GMA_CUDA=0")
    if mode == "auto" and torch_cuda_version() is None:
        raise CudaUnavailable("torch was a build without CUDA at installation")
    nvcc = find_nvcc()
    given = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    return Toolkit(nvcc, parse_architectures(given) if given.strip() else default_architectures(nvcc))


def torch_cuda_version() -> str | None:
    import torch

    return torch.version.cuda


def find_nvcc() -> str:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    candidates = [f"{home}/bin/nvcc"] if home else ["nvcc", "/usr/local/cuda/bin/nvcc"]
    for candidate in candidates:
        if found := shutil.which(candidate):
            return found
    raise CudaUnavailable(f"no nvcc was found at installation (tried {', '.join(candidates)}); CUDA_HOME can name one")


def parse_architectures(text: str) -> list[str]:
    """'8.0 9.0+PTX' or '8.0;9.0+PTX' → ['8.0', '9.0+PTX']. Capabilities below 8.0 are left out: no kernel fits them."""
    names = list(dict.fromkeys(text.replace(";", " ").split()))
    for name in names:
        if not re.fullmatch(r"\d+\.\d[af]?(\+PTX)?", name):
            raise CudaUnavailable(
                f"TORCH_CUDA_ARCH_LIST is {text!r} and holds {name!r}; expected capabilities as in '8.0;9.0+PTX'"
            )
    fitting = [name for name in names if capability(name) >= OLDEST_CAPABILITY]
    if not fitting:
        raise CudaUnavailable(f"TORCH_CUDA_ARCH_LIST is {text!r}; expected a compute capability of 8.0 or more in it")
    return fitting


def capability(architecture: str) -> tuple[int, int]:
    major, minor = re.match(r"(\d+)\.(\d)", architecture).groups()
    return int(major), int(minor)


def default_architectures(nvcc: str) -> list[str]:
    """Those of CAPABILITIES that this nvcc knows, the newest also as PTX for parts that are newer still."""
    known = run([nvcc, "--list-gpu-arch"], CudaUnavailable).split()
    names = [name for name in CAPABILITIES if f"compute_{name.replace('.', '')}" in known]
    if not names:
        raise CudaUnavailable(f"{nvcc} knows no compute capability of {', '.join(CAPABILITIES)}")
    return [*names[:-1], f"{names[-1]}+PTX"]


def code_flag(architecture: str) -> str:
    """'9.0+PTX' → machine code for 9.0, and PTX of it for newer parts."""
    name, _, ptx = architecture.partition("+")
    number = name.replace(".", "")
    codes = [f"sm_{number}", f"compute_{number}"] if ptx else [f"sm_{number}"]
    return f"-gencode=arch=compute_{number},code=[{','.join(codes)}]"


def cuda_sources() -> list[Path]:
    return sorted(Path("csrc/cuda").glob("*.cu"))


def cuda_libraries(toolkit: Toolkit, compiler: list[str], build: Path) -> list[str]:
    """Link flags of the static CUDA runtime: the extension must load where there is none."""
    # where the libraries are, in any layout of the toolkit, nvcc itself knows best
    plan = run([toolkit.nvcc, "--dryrun", "-o", "library", "unit.o"], CudaUnavailable)
    folders = re.search(r"LIBRARIES=(.*)", plan)
    flags = shlex.split(folders.group(1)) if folders else []
    # torch brings a CUDA runtime of its own, and neither may see the other's symbols
    flags += ["-lcudart_static", "-ldl", "-lrt", "-lpthread", "-Wl,--exclude-libs,libcudart_static.a"]
    # some toolkits come without it, which must not cost the CPU part
    run([*compiler, "-shared", *flags, "-o", str(build / "cuda_runtime.so")], CudaUnavailable)
    return flags


def run(command: list[str], failure: type[Exception] = NativeUnavailable) -> str:
    print(shlex.join(command))
    done = subprocess.run(command, capture_output=True, text=True)
    output = done.stdout + done.stderr
    print(output, end="")
    if done.returncode:
        complaint = next((line for line in output.splitlines() if "error" in line), output[:200])
        raise failure(f"{Path(command[0]).name} failed at installation: {complaint}")
    return output


# the tests import this file for its functions
if __name__ == "__main__":
    setup(ext_modules=[Extension("gma_kernels._C", sources=[], optional=True)], cmdclass={"build_ext": BuildNative})
