"""Compiles the Triton kernels ahead of time, with no GPU, and reads what they take from the result."""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from rich.progress import track
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.gpu.occupancy import Resources
from gma_kernels.triton import launch
from gma_kernels.triton.launch import Launch, Problem
from gma_kernels.triton.tile_sizes import Tile

TARGETS = {
    "8.0": GPUTarget("cuda", 80, 32),
    "9.0": GPUTarget("cuda", 90, 32),
    "10.0": GPUTarget("cuda", 100, 32),
    "12.0": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
TYPE_NAMES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
TENSOR_CORES = re.compile(r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma)|v_mfma")
# tokens of a training batch as the kernels see them: long enough for the full tile
ROWS, KEYS, LONG_SOURCE = 256, 256, 4096
OTHERS = (("bfloat16", 128), ("float32", 64), ("float16", 256))


class Compiled(NamedTuple):
    """One launch compiled for one part."""

    resources: Resources
    tensor_cores: bool  # whether it has instructions for them


def compile_launch(step: Launch, name: str, dtype: str, head_size: int, capability: str) -> Compiled:
    """Compile what `step` would run, specialised as it would be at run time."""
    target = TARGETS[capability]
    options = {"num_warps": step.warps, "num_stages": step.stages}
    done = triton.compile(source(step), target=target, options=options)
    if target.backend == "cuda":
        assembly = done.asm["ptx"]
        registers, spills = cubin_usage(done.asm["cubin"])
    else:
        assembly = done.asm["amdgcn"]
        registers = amd_field(assembly, "vgpr_count")  # accumulation registers included
        spills = 4 * (amd_field(assembly, "vgpr_spill_count") + amd_field(assembly, "sgpr_spill_count"))
    threads = step.warps * target.warp_size
    resources = Resources(
        "triton", name, dtype, head_size, capability, threads, registers, spills, done.metadata.shared
    )
    return Compiled(resources, TENSOR_CORES.search(assembly) is not None)


def source(step: Launch) -> ASTSource:
    """Parameter types and constants as Triton's launcher would choose them: 1 and multiples of 16 are special."""
    signature: dict[str, Any] = {}
    constants: dict[tuple, Any] = {}
    attributes: dict[tuple, list] = {}

    def describe(value: Any, path: tuple, special: bool) -> Any:
        if isinstance(value, tuple):
            return tuple(describe(x, (*path, i), special) for i, x in enumerate(value))
        if isinstance(value, torch.Tensor):
            attributes[path] = [["tt.divisibility", 16]]
            return TYPE_NAMES[value.dtype]
        if isinstance(value, float):
            return "fp32"
        if value is None or (special and value == 1):
            constants[path] = value
            return "constexpr"
        if special and value % 16 == 0:
            attributes[path] = [["tt.divisibility", 16]]
        return "i32" if value < 2**31 else "i64"

    for index, parameter in enumerate(step.kernel.params):
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[(index,)] = step.constants[parameter.name]
        else:
            value = step.arguments[parameter.name]
            signature[parameter.name] = describe(value, (index,), not parameter.do_not_specialize)
    return ASTSource(step.kernel, signature, constexprs=constants, attrs=attributes)


def cubin_usage(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of its stack: the kernels have no arrays, so what is there was spilled."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [CUOBJDUMP, "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    fields = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", text))
    return int(fields["REG"]), int(fields["STACK"]) + int(fields["LOCAL"])


def amd_field(assembly: str, name: str) -> int:
    return max(int(x) for x in re.findall(rf"\.{name}:\s+(\d+)", assembly))


def example(
    dtype: torch.dtype,
    head_size: int,
    rows: int,
    keys: int,
    dropout_p: float = 0.0,
    prior: int = 0,
    features: tuple[str, ...] = (),
) -> Problem:
    """Inputs without memory: two sentences of eight heads, the center shared, as a translator has them. features: of
    `gma_kernels.backends.FEATURES`; the gradient of a logsumexp is not among the inputs."""
    packed = "packed batches" in features
    batch, length = (1, 2) if packed else (2, 1)

    def heads(count: int, of: int) -> torch.Tensor:
        return torch.empty(batch, length * count, of, head_size, dtype=dtype, device="meta").transpose(1, 2)

    def by_row(dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(batch, 1, length * rows, dtype=dtype, device="meta")

    center, visible = by_row(torch.float32), by_row(torch.int32)
    seed = torch.empty((), dtype=torch.int64, device="meta") if dropout_p else None
    key = heads(keys, 2 if "grouped heads" in features else 8)
    first = by_row(torch.int32) if "first" in features else None
    offsets = [torch.empty(3, dtype=torch.int32, device="meta") if packed else None] * 2
    return Problem(heads(rows, 8), key, key, center, center, visible, seed, prior, 0.125, dropout_p, first, *offsets)


def launches(
    problem: Problem,
    capability: str,
    choose: Callable[[str, tuple[Tile, ...]], Tile] = lambda kernel, options: options[0],
    with_logsumexp: bool = False,
) -> Iterator[tuple[str, Launch]]:
    """Every kernel on this problem, by name, with the tile that `choose` picks for it of those for a part of TARGETS.
    with_logsumexp: which then has a gradient."""
    part = int(capability.split(".")[0]) if TARGETS[capability].backend == "cuda" else 0
    batch, heads, rows, _ = problem.shape
    context = torch.empty_like(problem.query)
    by_row = torch.empty(batch, heads, rows, device="meta")

    def tile(kernel: str) -> Tile:
        return choose(kernel, problem.tiles(kernel, part))

    if rows == 1 and problem.seed is None and problem.sentences is None:
        yield from zip(("decode", "join"), launch.decode(problem, context, by_row))
        return
    yield "forward", launch.forward(problem, tile("forward"), context, by_row)
    strides = problem.strides(context)
    saved = {"grad_context": context, "grad_context_strides": strides, "logsumexp": by_row}
    of_rows = saved | {"context": context, "context_strides": strides}
    of_rows["grad_logsumexp"] = by_row if with_logsumexp else None
    outputs = {"grad_query": context, "grad_center": by_row, "grad_width": by_row, "row_sums": by_row}
    yield "backward_rows", launch.backward_rows(problem, tile("backward_rows"), of_rows, outputs)
    outputs = {"grad_key": problem.key, "grad_value": problem.key}
    yield "backward_keys", launch.backward_keys(problem, tile("backward_keys"), saved | {"row_sums": by_row}, outputs)
    if problem.sentences is None:
        weights = torch.empty(problem.shape, dtype=problem.query.dtype, device="meta")
        yield "weights", launch.weights(problem, tile("weights"), weights)


# float16 on every part, the rest on the oldest and on the one with the least shared memory
KINDS = (
    *(("float16", head_size, part) for head_size in (64, 128) for part in TARGETS),
    *((dtype, head_size, part) for dtype, head_size in OTHERS for part in ("8.0", "12.0")),
)


def rows() -> list[Resources]:
    """Every kernel with its fixed tile."""
    found = []
    for dtype, head_size, part in track(KINDS, "compiling", transient=True):
        training = example(DTYPES[dtype], head_size, ROWS, KEYS)
        decoding = example(DTYPES[dtype], head_size, 1, LONG_SOURCE)
        for name, step in (*launches(training, part), *launches(decoding, part)):
            found.append(compile_launch(step, name, dtype, head_size, part).resources)
    return found
