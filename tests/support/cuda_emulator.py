"""Builds the emulated CUDA kernels, and runs cases on them.

The kernels are compiled as ordinary C++ against tests/gma_kernels/cuda/emulator and run in a process of their own, on
CPU memory: a kernel that dead-locks or leaves its memory ends that process, not the tests, and the same cases run under
AddressSanitizer and ThreadSanitizer.

The files in between are little-endian. Cases: their number, then for each the 64-bit numbers of `_header`, and query,
key, value, center, width, visible and grad_context, each as its bytes, misalignment, three strides and content.
Results: for each case context, logsumexp, weights and the five gradients, each as its bytes and content.
"""

import fcntl
import math
import os
import platform
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tests.support.numerics import GRADIENTS, PRIORS, Case, Inputs

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests/gma_kernels/cuda/emulator"
SCALAR_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 3}
ORDERS = ("forward", "reverse", "1", "2")
# how the emulator, AddressSanitizer (with UndefinedBehaviorSanitizer) and ThreadSanitizer end a process
EXIT_CODES = {86: "emulator", 87: "address", 88: "thread"}
SANITIZERS = {
    "ASAN_OPTIONS": "exitcode=87:detect_leaks=0",
    "UBSAN_OPTIONS": "exitcode=87:halt_on_error=1",
    "TSAN_OPTIONS": "exitcode=88:halt_on_error=1",
}


def why_not() -> str | None:
    """Why the emulator cannot be used here, if it cannot."""
    if platform.machine().lower() not in ("x86_64", "amd64") or platform.system() != "Linux":
        return "the emulator of CUDA runs on Linux on x86-64 only"
    if shutil.which("make") is None or shutil.which(os.environ.get("CXX", "c++")) is None:
        return "the emulator of CUDA needs make and a C++ compiler"
    return None


def build(
    target: str, flavour: str, largest_head: int, *, kernels: Path = ROOT / "csrc/cuda", out: Path | None = None
) -> Path:
    """A program of the emulator's Makefile for heads of up to so many columns, made if it is missing or old."""
    out = out or ROOT / "build/cuda" / f"{flavour}-{largest_head}"
    settings = {"FLAVOUR": flavour, "KERNELS": kernels, "OUT": out, "EXTRA": f"-DGMA_LARGEST_HEAD_TILE={largest_head}"}
    command = ["make", "-s", "-j2", "-C", str(HERE), *(f"{name}={x}" for name, x in settings.items())]
    out.mkdir(parents=True, exist_ok=True)
    # two files of tests may run at once, and want the same program
    with (out / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run([*command, str(out / target)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return out / target


def execute(program: Path, *arguments: str, order: str = "forward", threads: int = 1) -> subprocess.CompletedProcess:
    environment = os.environ | SANITIZERS | {"GMA_EMULATOR_ORDER": order, "GMA_EMULATOR_THREADS": str(threads)}
    # ThreadSanitizer needs its memory where a randomised address space may not have it
    prefix = ["setarch", "-R"] if shutil.which("setarch") else []
    return subprocess.run(
        [*prefix, str(program), *arguments], env=environment, capture_output=True, text=True, timeout=500
    )


def results_of(
    program: Path, cases: Sequence[Case], built: Sequence[tuple[Inputs, Tensor]], **settings
) -> list[dict[str, Tensor]]:
    """What the kernels make of the cases: context, logsumexp, weights and gradients of each."""
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "cases", Path(folder) / "results"
        with given.open("wb") as file:
            file.write(struct.pack("<q", len(cases)))
            for case, (inputs, grad) in zip(cases, built):
                file.write(_header(case))
                for tensor in (*inputs, grad if grad.stride(3) == 1 else grad.contiguous()):
                    file.write(_tensor(tensor))
        done = execute(program, str(given), str(made), **settings)
        if done.returncode != 0:
            by = EXIT_CODES.get(done.returncode, f"exit code {done.returncode}")
            raise RuntimeError(f"{by}: {done.stderr[-3000:]}")
        content = memoryview(made.read_bytes())
    results = []
    for case in cases:
        result, content = _read_results(case, content)
        results.append(result)
    assert len(content) == 0
    return results


def _header(case: Case) -> bytes:
    dropout = case.dropout()
    scale = case.size**-0.5 if case.scale is None else case.scale
    whole = (
        SCALAR_TYPES[case.dtype], PRIORS.index(case.prior), case.batch, case.heads, case.rows, case.keys, case.size,
        case.value_size, case.center_heads, case.width_heads, math.floor(dropout["dropout_p"] * 2**32), dropout["seed"],
    )  # fmt: skip
    return struct.pack(f"<{len(whole)}qdd", *whole, scale, 1 / (1 - dropout["dropout_p"]))


def _tensor(x: Tensor) -> bytes:
    """From the first to the last element of a view, with what lies in its gaps."""
    strides = list(x.stride()[:3])
    if x.dim() == 3 and x.shape[1] == 1:
        strides[1] = 0
    if x.numel() == 0:
        return struct.pack("<5q", 0, 0, *strides)
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride()))
    content = bytes(x.detach().as_strided((span,), (1,)).view(torch.uint8).numpy())
    return struct.pack("<5q", len(content), x.data_ptr() % 16, *strides) + content


def _read_results(case: Case, content: memoryview) -> tuple[dict[str, Tensor], memoryview]:
    matrices = {"context": (case.rows, case.value_size), "query": (case.rows, case.size)}
    matrices |= {"key": (case.keys, case.size), "value": (case.keys, case.value_size)}
    row_heads = {"logsumexp": case.heads, "center": case.center_heads, "width": case.width_heads}
    result = {}
    for name in ("context", "logsumexp", "weights", *GRADIENTS):
        (size,) = struct.unpack_from("<q", content)
        raw = torch.frombuffer(bytearray(content[8 : 8 + size]), dtype=torch.uint8) if size else torch.empty(0)
        content = content[8 + size :]
        if name in matrices:
            rows, columns = matrices[name]
            dense = raw.to(torch.uint8).view(case.dtype).view(case.batch, rows, case.heads, columns)
            result[name] = dense.transpose(1, 2)
        elif name in row_heads:
            result[name] = raw.to(torch.uint8).view(torch.float32).view(case.batch, row_heads[name], case.rows)
        else:
            result[name] = raw.to(torch.uint8).view(case.dtype).view(case.batch, case.heads, case.rows, case.keys)
    return result, content
