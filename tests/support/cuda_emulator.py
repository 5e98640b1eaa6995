"""Builds the emulated CUDA kernels, and runs cases on them.

The kernels are compiled as ordinary C++ against tests/gma_kernels/cuda/emulator and run in a process of their own, on
CPU memory: a kernel that dead-locks or leaves its memory ends that process, not the tests, and the same cases run under
AddressSanitizer and ThreadSanitizer.

The files in between are little-endian. Cases: their number, then for each the 64-bit numbers of `_header`, and the
tensors of `Given`, each as its bytes, misalignment, three strides and content; one that is missing has no bytes.
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
from typing import NamedTuple

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


class Given(NamedTuple):
    """What a case's kernels are given: tensors as the operators take them, so packed sentences are one."""

    inputs: Inputs
    grad: Tensor  # of the context
    first: Tensor | None = None
    grad_logsumexp: Tensor | None = None
    offsets: tuple[Tensor, ...] = ()  # of packed sentences, of queries and of keys


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
    program: Path, cases: Sequence[Case], built: Sequence[Given | tuple[Inputs, Tensor]], **settings
) -> list[dict[str, Tensor]]:
    """What the kernels make of the cases: context, logsumexp, gradients and, unless packed, weights of each.

    cases: dtype, prior, scale and dropout of each; sizes are those of the tensors.
    """
    all_given = [Given(*x) for x in built]
    with tempfile.TemporaryDirectory() as folder:
        stored, made = Path(folder) / "cases", Path(folder) / "results"
        with stored.open("wb") as file:
            file.write(struct.pack("<q", len(cases)))
            for case, given in zip(cases, all_given):
                file.write(_header(case, given))
                grad = given.grad if given.grad.stride(3) == 1 else given.grad.contiguous()
                for tensor in (
                    *given.inputs,
                    grad,
                    given.first,
                    given.grad_logsumexp,
                    *(given.offsets or (None, None)),
                ):
                    file.write(_tensor(tensor))
        done = execute(program, str(stored), str(made), **settings)
        if done.returncode != 0:
            by = EXIT_CODES.get(done.returncode, f"exit code {done.returncode}")
            raise RuntimeError(f"{by}: {done.stderr[-3000:]}")
        content = memoryview(made.read_bytes())
    results = []
    for given in all_given:
        result, content = _read_results(given, content)
        results.append(result)
    assert len(content) == 0
    return results


def _header(case: Case, given: Given) -> bytes:
    batch, heads, rows, size = given.inputs.query.shape
    _, key_heads, keys, value_size = given.inputs.value.shape
    sentences = len(given.offsets[0]) - 1 if given.offsets else -1
    dropout = case.dropout()
    scale = size**-0.5 if case.scale is None else case.scale
    whole = (
        SCALAR_TYPES[case.dtype], PRIORS.index(case.prior), batch, heads, heads // key_heads, rows, keys, size,
        value_size, sentences, given.inputs.center.shape[1], given.inputs.width.shape[1],
        math.floor(dropout["dropout_p"] * 2**32), dropout["seed"],
    )  # fmt: skip
    return struct.pack(f"<{len(whole)}qdd", *whole, scale, 1 / (1 - dropout["dropout_p"]))


def _tensor(x: Tensor | None) -> bytes:
    """From the first to the last element of a view, with what lies in its gaps."""
    if x is None:
        return struct.pack("<5q", 0, 0, 0, 0, 0)
    strides = [*x.stride()[:3], 0, 0][:3]
    if x.dim() == 3 and x.shape[1] == 1:
        strides[1] = 0
    if x.numel() == 0:
        return struct.pack("<5q", 0, 0, *strides)
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride()))
    content = bytes(x.detach().as_strided((span,), (1,)).view(torch.uint8).numpy())
    return struct.pack("<5q", len(content), x.data_ptr() % 16, *strides) + content


def _read_results(given: Given, content: memoryview) -> tuple[dict[str, Tensor], memoryview]:
    inputs = given.inputs
    shapes = {"context": (*inputs.query.shape[:3], inputs.value.shape[3]), "logsumexp": inputs.query.shape[:3]}
    shapes["weights"] = (*inputs.query.shape[:3], inputs.key.shape[2])
    shapes |= {name: getattr(inputs, name).shape for name in GRADIENTS}
    result = {}
    for name, shape in shapes.items():
        (size,) = struct.unpack_from("<q", content)
        raw = torch.frombuffer(bytearray(content[8 : 8 + size]), dtype=torch.uint8) if size else torch.empty(0)
        content = content[8 + size :]
        if name == "weights" and given.offsets:
            continue
        found = raw.to(torch.uint8).view(torch.float32 if len(shape) == 3 else inputs.query.dtype)
        if len(shape) == 3 or name == "weights":
            result[name] = found.view(shape)
        else:
            result[name] = found.view(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)
    return result, content
