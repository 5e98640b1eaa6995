"""What the main loops of the CUDA kernels issue, read from their machine code, and what that allows at best.

python -m benchmarks.gpu.roofline_page compiles the kernels for compute capability 8.0 and writes docs/gpu-roofline.md.
Nothing runs on a GPU: these are ceilings and ratios, not speeds.

One way round each main loop is followed: the gaussian prior, no dropout, rows at multiples of 16 bytes, whole tiles.
Per logit = warp instructions × 32 / logits. A scheduler, a quarter of a multiprocessor, issues one instruction a cycle.
"""

import re
import subprocess
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu import sass
from benchmarks.gpu.occupancy import PARTS, occupancy
from benchmarks.gpu.sass import TENSOR, Graph, Instruction, Loop

ROOT = Path(__file__).parents[2]
CAPABILITY = "8.0"
LANES = 32
# A100: 1,024 multiply-adds of 16 bits a cycle and multiprocessor, so HMMA.16816 with its 2,048 keeps a scheduler's
# tensor core busy for 8 cycles; FP32 and integers take 2 cycles of their pipe, MUFU 8; shared memory and the first
# cache give 128 bytes a cycle to all four schedulers, so LDSM.x4 costs 16
HMMA_MACS, HMMA_CYCLES, PIPE_CYCLES, MUFU_CYCLES, LINE_CYCLES = 2048, 8, 2, 8, 4
COPY = re.compile(r"LDGSTS$")
AVOID = re.compile(r"philox")
PRIORS = ("laplace", "linear", "none")  # beside the gaussian


class Step(NamedTuple):
    """One pass of a computation: its main loop, and what has to be known to count it."""

    source: str
    kernel: str  # of the mangled name
    head_size: int
    products: int  # matrix products for each logit
    needed: int  # those of them that no other pass makes
    copies: int  # asynchronous ones of a thread on one way round
    shared_bytes: int
    threads: int = 128
    prior: str = "gaussian"


class Measured(NamedTuple):
    """One main loop, once round, of one warp."""

    step: Step
    registers: int
    blocks: int  # resident on a multiprocessor
    logits: float
    classes: Counter
    cycles: Counter  # of each part of a scheduler

    @property
    def issued(self) -> int:
        return sum(self.classes.values())


def forward_step(size: int, dtype: str = "7float16") -> Step:
    keys = {64: 64, 128: 32}[size]
    shared = (128 + 2 * keys) * size * 2
    return Step("forward", f"forward_kernelINS0_{dtype}ELi{size}ELb0ELb1ELb0E", size, 2, 2, 8, shared)


def backward_steps(size: int, dtype: str = "7float16") -> tuple[Step, Step]:
    shared = (2 * 128 + 4 * 32) * size * 2
    query = Step(
        "backward_query", f"backward_query_kernelINS0_{dtype}ELi{size}ELb0ELb1E", size, 3, 3, size // 16, shared
    )
    key = Step(
        "backward_key", f"backward_key_kernelINS0_{dtype}ELi{size}ELb0ELb1E", size, 4, 2, size // 16, shared + 1856
    )
    query = query._replace(shared_bytes=shared + 24 * 128)
    if size == 64:
        return query, key
    # eight warps over rows; over keys four, which exchange what they make
    shared = 4 * 64 * size * 2 + 64 * 64 * 2 + 1856
    key = Step("backward_key", f"backward_key_exchange_kernelINS0_{dtype}ELb0E", size, 4, 2, 16, shared)
    return query._replace(copies=4, threads=256), key


PLAN = {f"forward, D = {size}": (forward_step(size),) for size in (64, 128)}
PLAN |= {f"backward, D = {size}": backward_steps(size) for size in (64, 128)}
# the same way round with another prior
OTHER_PRIORS = {
    f"{name}, {prior}": tuple(step._replace(prior=prior) for step in steps)
    for name, steps in PLAN.items()
    for prior in PRIORS
}


def compile_cubins(sources: set[str], folder: Path) -> dict[str, Path]:
    """Each of the kernels' files, with line numbers, which change no instruction."""

    def compile_one(source: str) -> Path:
        target = folder / f"{source}.cubin"
        number = CAPABILITY.replace(".", "")
        command = [
            "nvcc",
            "-std=c++17",
            "-O3",
            "-lineinfo",
            f"-arch=sm_{number}",
            "-DGMA_LARGEST_HEAD_TILE=128",
        ]
        done = subprocess.run(
            [*command, "-cubin", str(ROOT / f"csrc/cuda/{source}.cu"), "-o", str(target)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"nvcc failed: {done.stderr[-2000:]}")
        return target

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(sorted(sources), pool.map(compile_one, sorted(sources))))


def measure(step: Step, cubin: Path) -> Measured:
    (function,) = sass.functions(cubin, step.kernel)
    graph = Graph(function.instructions)
    way = follow(graph, main_loop(graph, TENSOR), step.copies, re.compile(rf"PriorKind::{step.prior}\b"))
    classes, cycles = Counter(), Counter()
    macs = 0
    for x in way:
        classes[x.kind] += 1
        part, count = busy(x)
        cycles[part] += count
        macs += HMMA_MACS if TENSOR.match(x.base) else 0
    cycles["issue"] = len(way)
    resident = occupancy(CAPABILITY, step.threads, function.registers, step.shared_bytes)
    blocks = round(resident * PARTS[CAPABILITY].threads / step.threads)
    return Measured(step, function.registers, blocks, macs / step.head_size / step.products, classes, cycles)


def main_loop(graph: Graph, around: re.Pattern) -> Loop:
    """The innermost loop with most of these instructions."""
    hits = {loop: sum(bool(around.match(x.base)) for x in graph.body(loop)) for loop in graph.loops}
    inner = [x for x in graph.loops if hits[x] and not any(hits[y] and y.blocks < x.blocks for y in graph.loops)]
    return max(inner, key=lambda x: (hits[x], -len(graph.body(x))))


def follow(graph: Graph, loop: Loop, copies: int, through: re.Pattern) -> list[Instruction]:
    """The way round the loop past none of AVOID, with most products, the given number of copies (or nearly), most of
    `through`, and shortest. Of inner loops, none of which such a way needs, one round is taken at most."""
    weights = {block: weigh(graph.blocks[block], through) for block in loop.blocks}
    best: dict[int, dict[int, tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    start = weights[loop.header]
    best[loop.header] = {start[0]: (start[1:], (loop.header,))}
    ends: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
    for block in in_order(graph, loop):
        for made, (weight, path) in best.get(block, {}).items():
            for following in graph.successors[block]:
                if following == loop.header:
                    ends.append((made, weight, path))
                elif following in loop.blocks and following not in path:
                    more, *rest = weights[following]
                    total = tuple(a + b for a, b in zip(weight, rest))
                    known = best.setdefault(following, {}).get(made + more)
                    if known is None or total > known[0]:
                        best[following][made + more] = (total, (*path, following))
    _, _, path = max(ends, key=lambda end: (end[1][:2], -abs(end[0] - copies), end[1][2:]))
    return [x for block in path for x in graph.blocks[block]]


def weigh(block: list[Instruction], through: re.Pattern) -> tuple[int, ...]:
    """Copies; then what is better the larger: not to be avoided, products, to be sought, shortness."""
    texts = [" ".join(source_line(*frame) for frame in x.frames) for x in block]
    return (
        sum(bool(COPY.match(x.base)) for x in block),
        -sum(bool(AVOID.search(text)) or (x.base == "CALL" and not x.targets) for x, text in zip(block, texts)),
        sum(bool(TENSOR.match(x.base)) for x in block),
        sum(bool(through.search(text)) for text in texts),
        -len(block),
    )


_sources: dict[str, list[str]] = {}


def source_line(file: str, line: int) -> str:
    if file not in _sources:
        path = Path(file)
        _sources[file] = path.read_text(errors="replace").splitlines() if path.is_file() else []
    found = _sources[file]
    return f"{Path(file).name} {found[line - 1] if 0 < line <= len(found) else ''}"


def in_order(graph: Graph, loop: Loop) -> list[int]:
    """The loop's blocks, each after those before it."""
    order: list[int] = []
    seen = {loop.header}
    stack = [(loop.header, iter(graph.successors[loop.header]))]
    while stack:
        block, rest = stack[-1]
        following = next((x for x in rest if x in loop.blocks and x not in seen), None)
        if following is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(graph.successors[following])))
    return order[::-1]


def busy(x: Instruction) -> tuple[str, float]:
    """The part of a scheduler an instruction keeps busy, and for how many cycles."""
    if TENSOR.match(x.base):
        return "tensor", HMMA_CYCLES
    if not x.is_empty and (lines := wavefronts(x)):
        return "shared memory", lines * LINE_CYCLES
    if x.base in ("MUFU", "F2I", "I2F", "F2F", "FRND", "POPC", "FLO", "BREV"):
        return "mufu", MUFU_CYCLES
    if x.kind == "fp32" or x.base == "IMAD":
        return "fp32", PIPE_CYCLES
    uniform = x.base.startswith("U") or x.base in ("R2UR", "S2UR", "CS2UR")
    elsewhere = x.kind in ("global", "async copy", "spill", "control", "shuffle", "half", "padding")
    return ("none", 0) if uniform or elsewhere else ("integer", PIPE_CYCLES)


def wavefronts(x: Instruction) -> int:
    """Lines of 128 bytes through shared memory or the first cache, neighbours side by side, without conflicts."""
    if x.base in ("LDSM", "STSM"):
        return int(re.search(r"(?:\.(\d))?$", x.opcode).group(1) or 1)
    if re.fullmatch(r"LDS|STS|LDGSTS|LDG|STG|LD|ST|LDL|STL|REDG?|ATOM[GS]?", x.base):
        size = re.search(r"\.(64|128)(?:\.|$)", x.opcode)
        return int(size.group(1)) // 32 if size else 1
    return 1 if x.base == "SHFL" else 0


class Row(NamedTuple):
    """A computation of one or more passes, for one logit of one lane."""

    name: str
    issued: float
    per_product: float  # issued for each HMMA
    tensor: float  # cycles
    busiest: str
    roofline: float  # the needed tensor cycles over those of the busiest part
    registers: str
    blocks: str
    spills: float
    classes: dict[str, float]


def summarise(name: str, found: list[Measured]) -> Row:
    cycles, classes = Counter(), Counter()
    for x in found:
        for part, count in x.cycles.items():
            cycles[part] += count * LANES / x.logits
        for kind, count in x.classes.items():
            classes[kind] += count * LANES / x.logits
    del cycles["none"]
    needed = sum(x.step.needed * x.step.head_size for x in found) * LANES / HMMA_MACS * HMMA_CYCLES
    busiest = max(cycles, key=lambda part: cycles[part])
    issued = cycles["issue"]
    per_product = issued / (cycles["tensor"] / HMMA_CYCLES)
    registers, blocks = ("/".join(str(getattr(x, field)) for x in found) for field in ("registers", "blocks"))
    return Row(
        name, issued, per_product, cycles["tensor"], busiest, needed / cycles[busiest], registers, blocks,
        classes["spill"], dict(classes),
    )  # fmt: skip


def rows(plan: dict[str, tuple[Step, ...]] = PLAN) -> dict[str, Row]:
    """Every computation of a plan. Compiles: most of a minute. RuntimeError where there is no nvcc."""
    with tempfile.TemporaryDirectory() as folder:
        cubins = compile_cubins({step.source for steps in plan.values() for step in steps}, Path(folder))
        return {name: summarise(name, [measure(x, cubins[x.source]) for x in steps]) for name, steps in plan.items()}


class Decoding(NamedTuple):
    """The main loop of the decoding kernel, once round."""

    issued: int
    loads_before_use: int  # of 16 bytes
    kib: float  # of keys and values that a warp reads


def decoding(size: int = 64, dtype: str = "7float16") -> Decoding:
    with tempfile.TemporaryDirectory() as folder:
        cubin = compile_cubins({"decode"}, Path(folder))["decode"]
        (function,) = sass.functions(cubin, f"decode_kernelINS0_{dtype}ELi{size}E")
    graph = Graph(function.instructions)
    way = follow(graph, main_loop(graph, re.compile("LDG")), 0, re.compile("PriorKind::gaussian"))
    loads = [x for x in way if x.base == "LDG" and ".128" in x.opcode]
    return Decoding(len(way), loads_in_flight(way), len(loads) * LANES * 16 / 1024)


def loads_in_flight(way: list[Instruction]) -> int:
    """Loads of 16 bytes issued before the first result of one is read."""
    pending: set[int] = set()
    count = 0
    for x in way:
        registers = [int(found) for found in re.findall(r"\bR(\d+)", x.operands)]
        is_load = x.base == "LDG" and ".128" in x.opcode
        if pending & set(registers[1:] if is_load else registers):
            return count
        if is_load:
            count += 1
            pending |= set(range(registers[0], registers[0] + 4))
    return count
