"""What the CUDA kernels take of a processor, from `ptxas -v` and from how they are launched. Nothing runs on a GPU."""

import os
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.occupancy import Resources
from build_support.cuda_toolkit import CudaUnavailable, Toolkit, find_nvcc

ROOT = Path(__file__).parents[2]
RECORDER = Path(__file__).with_name("launch_recorder.cpp")
CAPABILITIES = ("8.0", "9.0", "10.0", "12.0")


class Compiled(NamedTuple):
    """One kernel as ptxas left it for one capability."""

    function: str  # mangled
    capability: str
    registers: int
    spills_bytes: int
    shared_bytes: int  # beside what it is launched with


class Launch(NamedTuple):
    """How the launchers start one kernel."""

    dtype: str
    head_size: int  # 0: any
    threads: int
    shared_bytes: int


def rows(capabilities: tuple[str, ...] = CAPABILITIES) -> list[Resources]:
    """Every kernel for every capability. Compiles them all: minutes. RuntimeError where there is no nvcc."""
    with tempfile.TemporaryDirectory() as folder:
        compiled, objects = compile_kernels(capabilities, Path(folder))
        launches = record_launches(objects, Path(folder))
    return [
        Resources(
            backend="cuda",
            kernel=kernel_name(kernel.function),
            dtype=launch.dtype,
            head_size=launch.head_size,
            capability=kernel.capability,
            threads=launch.threads,
            registers=kernel.registers,
            spills_bytes=kernel.spills_bytes,
            shared_bytes=kernel.shared_bytes + launch.shared_bytes,
        )
        for kernel in compiled
        for launch in [launches[kernel.function]]
    ]


def compile_kernels(capabilities: tuple[str, ...], folder: Path) -> tuple[list[Compiled], list[str]]:
    """The kernels, compiled as they are when they are installed, and the object files they are in."""
    command = Toolkit(nvcc(), list(capabilities)).compile_command()

    def compile_source(source: Path) -> tuple[list[Compiled], str]:
        target = str(folder / f"{source.stem}.o")
        return parse_ptxas(run([*command, "-Xptxas=-v", "-c", str(source), "-o", target])), target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # a unit without kernels has none to report
        units = [unit for unit in pool.map(compile_source, sorted(ROOT.glob("csrc/cuda/*.cu"))) if unit[0]]
    return [kernel for kernels, _ in units for kernel in kernels], [target for _, target in units]


def kernel_name(function: str) -> str:
    """Of the mangled name, in which one flag, or the first of several, says whether it is for general calls."""
    name, general = re.search(r"\d([a-z_]+)_kernel(?:I(?:f|NS0_\w+?E)(?:Li\d+E)?Lb([01]))?", function).groups()
    return f"{name}, general" if general == "1" else name


def nvcc() -> str:
    """RuntimeError where there is none."""
    try:
        return find_nvcc(None)
    except CudaUnavailable as error:
        raise RuntimeError(str(error)) from error


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:]}")
    return done.stdout + done.stderr


def parse_ptxas(text: str) -> list[Compiled]:
    """The kernels in the output of `ptxas -v`."""
    kernels = []
    for part in text.split("Compiling entry function ")[1:]:
        function, major, minor = re.match(r"'(\w+)' for 'sm_(\d+)(\d)[af]?'", part).groups()
        spills = sum(int(count) for count in re.findall(r"(\d+) bytes spill", part))
        registers = int(re.search(r"Used (\d+) registers", part).group(1))
        shared = re.search(r"(\d+) bytes smem", part)
        kernels.append(Compiled(function, f"{major}.{minor}", registers, spills, int(shared.group(1)) if shared else 0))
    return kernels


def record_launches(objects: list[str], folder: Path) -> dict[str, Launch]:
    """How each kernel, by its mangled name, is launched for a long source."""
    program = str(folder / "launch_recorder")
    run([os.environ.get("CXX") or "c++", "-std=c++17", f"-I{ROOT / 'csrc'}", str(RECORDER), *objects, "-o", program])
    output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    launches = {}
    for line in output.splitlines():
        function, dtype, head_size, threads, shared_bytes = line.split()
        launch = Launch(dtype, int(head_size), int(threads), int(shared_bytes))
        before = launches.get(function, launch)
        # a kernel that serves heads of any size belongs to none; of a long launch and a short one the larger counts
        size = launch.head_size if launch.head_size == before.head_size else 0
        launches[function] = max(before, launch, key=lambda launch: launch.threads)._replace(head_size=size)
    return launches
