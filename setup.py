"""Builds the native extension where it can, and installs as pure Python where it cannot.

    GMA_BUILD_NATIVE=0   leave the extension out
    CXX, CXXFLAGS        the compiler and extra flags, as usual

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

IS_X86 = platform.machine().lower() in ("x86_64", "amd64")

FLAGS = ["-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall"]
# the kernels need infinities and NaN to behave, so no -ffast-math
KERNEL_FLAGS = ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]

# csrc/cpu/kernels.cpp is compiled once per level and chosen from at run time; no other source may use these flags
SIMD_LEVELS = {"baseline": []}
if IS_X86:
    SIMD_LEVELS["avx2"] = ["-mavx2", "-mfma", "-mf16c"]
    SIMD_LEVELS["avx512"] = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"]


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
            objects = list(pool.map(lambda unit: compile_unit(compiler, includes, build, *unit), units(compiler)))
        shared = ["-bundle", "-undefined", "dynamic_lookup"] if platform.system() == "Darwin" else ["-shared"]
        run([*compiler, *shared, *map(str, objects), *libraries, "-o", str(library)])


class NativeUnavailable(Exception):
    """Why there is no native backend in this installation."""


def units(compiler: list[str]) -> list[tuple[Path, str, list[str]]]:
    """Every compilation: source, name of the object, flags beyond those all share."""
    facts = [
        f'-DGMA_COMPILER="{first_line([*compiler, "--version"])}"',
        f'-DGMA_FLAGS="{" ".join(FLAGS + KERNEL_FLAGS)}"',
        *(f"-DGMA_HAS_{level.upper()}" for level in SIMD_LEVELS),
    ]
    csrc = Path("csrc")
    kernels = csrc / "cpu" / "kernels.cpp"
    plain = [source for folder in (csrc, csrc / "cpu") for source in sorted(folder.glob("*.cpp")) if source != kernels]
    return [
        *(
            (kernels, f"kernels_{level}", [*KERNEL_FLAGS, *flags, f"-DGMA_SIMD_LEVEL={level}"])
            for level, flags in SIMD_LEVELS.items()
        ),
        *((source, source.stem, facts) for source in plain),
    ]


def compile_unit(compiler: list[str], includes: list[str], build: Path, source: Path, name: str, flags: list[str]):
    target = build / f"{name}.o"
    extra = shlex.split(os.environ.get("CXXFLAGS", ""))
    run([*compiler, *FLAGS, *flags, *extra, *includes, "-c", str(source), "-o", str(target)])
    return target


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
    except ImportError as error:
        raise NativeUnavailable(
            f"{error.name} could not be imported at installation; install torch and pybind11 first, then this package "
            "with --no-build-isolation"
        ) from error
    folders = [*python_includes, pybind11.get_include(), *cpp_extension.include_paths()]
    includes = [flag for folder in folders for flag in ("-isystem", folder)]
    return [*includes, "-Icsrc"], [*(f"-L{path}" for path in cpp_extension.library_paths()), "-ltorch_cpu", "-lc10"]


def first_line(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[0]


def run(command: list[str]) -> None:
    print(shlex.join(command))
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stdout + done.stderr, end="")
    if done.returncode:
        complaint = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise NativeUnavailable(f"the C++ compiler failed at installation: {complaint}")


setup(ext_modules=[Extension("gma_kernels._C", sources=[], optional=True)], cmdclass={"build_ext": BuildNative})
