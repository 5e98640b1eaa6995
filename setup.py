"""Builds the kernels where it can, and installs as pure Python where it cannot.

    GMA_BUILD_NATIVE=0   leave the kernels out
    GMA_CUDA=auto        its CUDA part where nvcc is found and torch is a CUDA build (the default);
             1           always, whatever torch is, or fail; 0 never. No GPU is needed to build it
    TORCH_CUDA_ARCH_LIST   the compute capabilities to build for, as in "8.0;9.0+PTX" or "Ampere;Hopper"
    CUDA_HOME            the CUDA toolkit, where nvcc is neither on the PATH nor from pip
    CXX, CXXFLAGS, LDFLAGS   the compiler, of nvcc too, and extra flags, as usual
    MAX_JOBS             compilers that run at a time

build_support finds the CUDA toolkit and tells ninja what to compile. All else about the package is in pyproject.toml.
"""

import functools
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# a build by pip leaves it out
sys.path.insert(0, str(Path(__file__).parent))
from build_support import ninja_plan
from build_support.cuda_toolkit import CudaUnavailable, cuda_mode, find_toolkit

LIBRARY = "_kernels.so"


class NativeUnavailable(Exception):
    """Why there is no native backend in this installation."""


class Torch(NamedTuple):
    """cuda: the version that it is a build for"""

    version: str
    cuda: str | None
    includes: list[str]
    libraries: list[str]


class BuildNative(build_ext):
    """Builds the library by ninja. A failure is recorded for `gma_kernels.backends()`, not fatal."""

    def get_ext_filename(self, fullname: str) -> str:
        # no module of Python's but a library: no version of Python in its name
        return str(Path(*fullname.split(".")).with_name(LIBRARY))

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
        except (NativeUnavailable, ninja_plan.Failure) as error:
            self._do_without("native", error)

    def _build(self, library: Path) -> None:
        if os.environ.get("GMA_BUILD_NATIVE", "1") == "0":
            raise NativeUnavailable("it was left out at installation by GMA_BUILD_NATIVE=0")
        if platform.system() == "Windows":
            raise NativeUnavailable("it needs GCC or Clang, and was installed on Windows")
        compiler = find_compiler()
        torch = find_torch()
        plan = functools.partial(ninja_plan.write, compiler, *flags(torch))
        try:
            plan(find_toolkit(torch.cuda))
            # everything at once; what failed is tried again by name, where it is known what that costs
            ninja_plan.build_what_can_be()
            ninja_plan.build("cuda")
        except (CudaUnavailable, ninja_plan.Failure) as error:
            self._do_without("cuda", error, is_loud=torch.cuda is not None and cuda_mode() == "auto")
            plan(None)
            ninja_plan.build_what_can_be()
        shutil.copy(ninja_plan.build("native"), library)
        try:
            # by this name `gma_kernels.native` finds the one for the torch that runs
            name = f"_autograd_torch_{torch.version.partition('+')[0]}.so"
            shutil.copy(ninja_plan.build("autograd"), self.installed / name)
        except ninja_plan.Failure as error:
            print(f"gma: gradients take a slower way, through Python: {error}")

    def _do_without(self, backend: str, error: Exception, is_loud: bool = False) -> None:
        if cuda_mode() == "1":
            raise SystemExit(f"gma: GMA_CUDA=1 asks for the CUDA backend, and it cannot be built: {error}")
        (self.installed / f"_{backend}_missing.txt").write_text(f"{error}\n")
        frame = "\n" + "!" * 99 + "\n" if is_loud else ""
        print(f"{frame}gma: installing without the {backend} backend: {error}{frame}")


def find_compiler() -> list[str]:
    for candidate in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        command = shlex.split(candidate)
        try:
            subprocess.run([*command, "--version"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return command
    raise NativeUnavailable("no C++ compiler was found at installation (tried CXX, c++, g++, clang++)")


def find_torch() -> Torch:
    """The one the package is installed beside, also where pip isolates the build: then PYTHONPATH hides it."""
    program = (
        "import json, torch; from torch.utils import cpp_extension as c; "
        "print(json.dumps([torch.__version__, torch.version.cuda, c.include_paths(), c.library_paths()]))"
    )
    for option in ((), ("-E",)):
        done = subprocess.run([sys.executable, *option, "-c", program], capture_output=True, text=True)
        if done.returncode == 0:
            return Torch(*json.loads(done.stdout.splitlines()[-1]))
    complaint = done.stderr.strip().splitlines()[-1:] or [""]
    raise NativeUnavailable(
        f"torch, which is to be installed first, could not be imported at installation: {complaint[0]}"
    )


def flags(torch: Torch) -> tuple[list[str], list[str]]:
    """To compile and to link with."""
    includes = [flag for folder in torch.includes for flag in ("-isystem", folder)]
    # for quotes alone: <torch/…> must not be looked for in csrc/torch
    return [*includes, "-iquote", "csrc"], [*(f"-L{folder}" for folder in torch.libraries), "-ltorch_cpu"]


class Wheel(bdist_wheel):
    """One for every version of Python; where nothing was compiled, for every machine, too."""

    def get_tag(self) -> tuple[str, str, str]:
        has_kernels = any(Path(self.bdist_dir).glob(f"gma_kernels/{LIBRARY}"))
        return "py3", "none", super().get_tag()[2] if has_kernels else "any"


# the tests import this file for its functions
if __name__ == "__main__":
    setup(
        ext_modules=[Extension("gma_kernels._kernels", sources=[], optional=True)],
        cmdclass={"build_ext": BuildNative, "bdist_wheel": Wheel},
    )
