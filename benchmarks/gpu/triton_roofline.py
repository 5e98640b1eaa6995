"""What the main loops of the Triton kernels issue, counted like those of the CUDA kernels.

The fixed tiles, float16, gaussian prior, no dropout, whole tiles. A main loop of Triton's has no branches, so there is
one way round it.
"""

import tempfile
from collections import Counter
from pathlib import Path

import triton

from benchmarks.gpu import sass
from benchmarks.gpu.occupancy import PARTS, occupancy
from benchmarks.gpu.roofline import CAPABILITY, Measured, Row, Step, busy, summarise
from benchmarks.gpu.sass import TENSOR, Function, Graph, Loop
from benchmarks.gpu.triton_resources import DTYPES, TARGETS, example, launches, source
from gma_kernels.triton.launch import Launch

# matrix products for each logit, and those of them that no other kernel makes
PRODUCTS = {"forward": (2, 2), "backward_rows": (4, 3), "backward_keys": (4, 2)}
PASSES = {"forward": ("forward",), "backward": ("backward_rows", "backward_keys")}
LENGTH = 1024


def compiled(step: Launch, capability: str) -> tuple[Function, int]:
    """The kernel as machine code, and the shared memory of a block."""
    options = {"num_warps": step.warps, "num_stages": step.stages}
    done = triton.compile(source(step), target=TARGETS[capability], options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(done.asm["cubin"])
        file.flush()
        (function,) = sass.functions(Path(file.name), ".")
    return function, done.metadata.shared


def whole_tiles(graph: Graph) -> Loop:
    """Of the innermost loops with products the shortest: the one without masks."""
    hits = {loop: sum(bool(TENSOR.match(x.base)) for x in graph.body(loop)) for loop in graph.loops}
    inner = [x for x in graph.loops if hits[x] and not any(hits[y] and y.blocks < x.blocks for y in graph.loops)]
    return min(inner, key=lambda x: len(graph.body(x)))


def measure(name: str, step: Launch, head_size: int, capability: str = CAPABILITY) -> Measured:
    """One of PRODUCTS. Compiles."""
    function, shared = compiled(step, capability)
    graph = Graph(function.instructions)
    way = graph.body(whole_tiles(graph))
    classes, cycles = Counter(x.kind for x in way), Counter(issue=len(way))
    for x in way:
        part, count = busy(x)
        cycles[part] += count
    threads = step.warps * PARTS[capability].warp
    resident = occupancy(capability, threads, function.registers, shared)
    blocks = round(resident * PARTS[capability].threads / threads)
    # not from the products: where there are more warps than rows to share, some make the same ones
    logits = step.constants["ROWS"] * step.constants["KEYS"] / step.warps
    products, needed = PRODUCTS[name]
    plan = Step("", name, head_size, products, needed, 0, shared, threads)
    return Measured(plan, function.registers, blocks, logits, classes, cycles)


def rows() -> dict[str, Row]:
    """Forward and backward with D = 64 and 128."""
    found = {}
    for title, passes in PASSES.items():
        for size in (64, 128):
            steps = dict(launches(example(DTYPES["float16"], size, LENGTH, LENGTH), CAPABILITY))
            name = f"{title}, D = {size}"
            found[name] = summarise(name, [measure(step, steps[step], size) for step in passes])
    return found
