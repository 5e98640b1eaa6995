"""What the CUDA part of the extension is built with: which nvcc, for which GPUs. Used by setup.py; needs no GPU."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

NVCC_FLAGS = ["-std=c++17", "-O3", "-Xcompiler=-fPIC,-fvisibility=hidden"]
CAPABILITIES = ("8.0", "9.0", "10.0", "12.0")
OLDEST_CAPABILITY = (8, 0)
# what torch.utils.cpp_extension takes in TORCH_CUDA_ARCH_LIST beside numbers
NAMED = {
    "Volta": "7.0+PTX",
    "Turing": "7.5+PTX",
    "Ampere": "8.0 8.6+PTX",
    "Ampere+Tegra": "8.7",
    "Ada": "8.9+PTX",
    "Hopper": "9.0+PTX",
    "Blackwell": "10.0 10.3 12.0 12.1+PTX",
    "Blackwell+Tegra": "11.0",
}


class CudaUnavailable(Exception):
    """Why there is no CUDA backend in this installation."""


class Toolkit(NamedTuple):
    """The compiler, and capabilities such as '8.0' or '12.0+PTX'."""

    nvcc: str
    architectures: list[str]

    def compile_command(self) -> list[str]:
        """All but the source and the target."""
        codes = [code_flag(name) for name in self.architectures]
        # the host compiler, too, is the one asked for; in 'ccache g++-14' the last word
        host = [word for word in shlex.split(os.environ.get("CXX", "")) if not word.startswith("-")][-1:]
        facts = f'-DGMA_CUDA_ARCHITECTURES="{";".join(self.architectures)}"'
        return [self.nvcc, *(f"-ccbin={name}" for name in host), *NVCC_FLAGS, *codes, facts]

    def libraries(self) -> list[str]:
        """Link flags of the static CUDA runtime: the extension must load where there is none."""
        # where the libraries are, in any layout of the toolkit, nvcc itself knows best
        plan = ask(self.nvcc, "--dryrun", "-o", "library", "unit.o")
        folders = re.search(r"LIBRARIES=(.*)", plan)
        flags = shlex.split(folders.group(1)) if folders else []
        # torch brings a CUDA runtime of its own, and neither may see the other's symbols
        return [*flags, "-lcudart_static", "-ldl", "-lrt", "-lpthread", "-Wl,--exclude-libs,libcudart_static.a"]


def cuda_mode() -> str:
    mode = os.environ.get("GMA_CUDA") or "auto"
    if mode not in ("auto", "1", "0"):
        raise SystemExit(f"gma: GMA_CUDA is {mode!r}; expected 'auto', '1' or '0'")
    return mode


def find_toolkit(torch_cuda: str | None) -> Toolkit:
    """torch_cuda: the version of CUDA that torch is a build for."""
    mode = cuda_mode()
    if mode == "0":
        raise CudaUnavailable("it was left out at installation by GMA_CUDA=0")
    if mode == "auto" and torch_cuda is None:
        raise CudaUnavailable("torch was a build without CUDA at installation")
    nvcc = find_nvcc(torch_cuda)
    given = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    return Toolkit(nvcc, parse_architectures(given) if given.strip() else default_architectures(nvcc))


def find_nvcc(torch_cuda: str | None) -> str:
    """The first nvcc whose CUDA has the major version of torch's: a newer one may need a newer driver than torch."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    # pip has it in nvidia/cu13, for CUDA 12 in nvidia/cuda_nvcc
    from_pip = [str(path) for folder in sys.path for path in sorted(Path(folder).glob("nvidia/cu*/bin/nvcc"))]
    candidates = [f"{home}/bin/nvcc"] if home else ["nvcc", "/usr/local/cuda/bin/nvcc", *from_pip]
    found = [path for path in map(shutil.which, candidates) if path]
    if not found:
        tried = ", ".join(candidates)
        raise CudaUnavailable(f"no nvcc was found at installation (tried {tried}); CUDA_HOME can name a toolkit")
    versions = {path: cuda_version(path) for path in found}
    for path, version in versions.items():
        if torch_cuda is None or version.partition(".")[0] == torch_cuda.partition(".")[0]:
            return path
    listed = ", ".join(f"{path} of CUDA {version}" for path, version in versions.items())
    raise CudaUnavailable(
        f"torch was a build for CUDA {torch_cuda} at installation, and there was only {listed}; name a toolkit of the "
        "same major version in CUDA_HOME, or install torch for the other"
    )


def cuda_version(nvcc: str) -> str:
    text = ask(nvcc, "--version")
    found = re.search(r"release (\d+\.\d+)", text)
    if not found:
        raise CudaUnavailable(f"{nvcc} --version names no release: {text[:200]!r}")
    return found.group(1)


def parse_architectures(text: str) -> list[str]:
    """'Ampere;9.0+PTX' → ['8.0', '8.6+PTX', '9.0+PTX']. Capabilities below 8.0 are left out: no kernel fits them."""
    given = text.replace(";", " ").split()
    names = list(dict.fromkeys(" ".join(NAMED.get(name, name) for name in given).split()))
    for name in names:
        if not re.fullmatch(r"\d+\.\d[af]?(\+PTX)?", name):
            raise CudaUnavailable(
                f"TORCH_CUDA_ARCH_LIST is {text!r} and holds {name!r}; expected capabilities as in '8.0;9.0+PTX', or "
                f"names of {', '.join(NAMED)}"
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
    known = ask(nvcc, "--list-gpu-arch").split()
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


def ask(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CudaUnavailable(f"{' '.join(command)} failed at installation: {(done.stdout + done.stderr)[:200]}")
    # a dry run writes its plan to stderr
    return done.stdout + done.stderr
