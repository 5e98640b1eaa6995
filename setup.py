"""Builds the native extension where it can, and installs as pure Python where it cannot.

    GMA_BUILD_NATIVE=0   leave the extension out
    CXX, CXXFLAGS, LDFLAGS   the compiler and extra flags, as usual

Everything else about the package is in pyproject.toml.
"""

import os
import platform
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# the kernels need infinities and NaN to behave, so no -ffast-math
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
# the oldest torch whose stable ABI the extension may rely on: 2.10
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020a000000000000"
# one unit per SIMD level, chosen from at run time; nothing else may use these flags, or it would die on older CPUs
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
AVX2 = ["-mavx2", "-mfma"]
LEVEL_FLAGS = {"avx2": AVX2, "avx512": [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]} if IS_X86 else {}


class BuildNative(build_ext):
    """Compiles each source with its own flags. A failure is recorded for `gma_kernels.backends()`, not fatal."""

    def build_extension(self, ext: Extension) -> None:
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        # an editable installation runs from the sources, and must not find what an earlier one left there
        package = Path("gma_kernels") if self.editable_mode else library.parent
        reason_file = package / "_native_missing.txt"
        for stale in (reason_file, package / library.name):
            stale.unlink(missing_ok=True)
        try:
            self._build(library)
        except NativeUnavailable as error:
            reason_file.write_text(f"{error}\n")
            print(f"gma: installing without the native backend: {error}")

    def _build(self, library: Path) -> None:
        if os.environ.get("GMA_BUILD_NATIVE", "1") == "0":
            raise NativeUnavailable("it was left out at installation by GMA_BUILD_NATIVE=0")
        if platform.system() == "Windows":
            raise NativeUnavailable("it needs GCC or Clang, and was installed on Windows")
        includes, libraries = dependencies(self.include_dirs)
        compiler = find_compiler()
        build = Path(self.build_temp).resolve()
        build.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            sources = sorted(Path("csrc").glob("**/*.cpp"))
            objects = list(pool.map(lambda source: compile_source(compiler, includes, build, source), sources))
        shared = ["-bundle", "-undefined", "dynamic_lookup"] if platform.system() == "Darwin" else ["-shared"]
        run([*compiler, *shared, *environment_flags("CXXFLAGS", "LDFLAGS"), *objects, *libraries, "-o", str(library)])


class NativeUnavailable(Exception):
    """Why there is no native backend in this installation."""


def compile_source(compiler: list[str], includes: list[str], build: Path, source: Path) -> str:
    target = build / f"{'_'.join(source.with_suffix('').parts)}.o"
    facts = f'-DGMA_BUILD_FLAGS="{" ".join(FLAGS)}"'
    extra = [*LEVEL_FLAGS.get(source.stem, []), *environment_flags("CXXFLAGS")]
    run([*compiler, *FLAGS, *extra, facts, STABLE_ABI, *includes, "-c", str(source), "-o", str(target)])
    return str(target)


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
    return [*includes, "-Icsrc"], [*(f"-L{path}" for path in cpp_extension.library_paths()), "-ltorch_cpu"]


def run(command: list[str]) -> None:
    print(shlex.join(command))
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stdout + done.stderr, end="")
    if done.returncode:
        complaint = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise NativeUnavailable(f"the C++ compiler failed at installation: {complaint}")


setup(ext_modules=[Extension("gma_kernels._C", sources=[], optional=True)], cmdclass={"build_ext": BuildNative})
