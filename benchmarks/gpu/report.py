"""Compile the GPU kernels with no GPU and report what they take: prints a table, writes docs/gpu-report.md.

python -m benchmarks.gpu.report
"""

from pathlib import Path

import torch
import triton
from rich.console import Console
from rich.table import Table

from benchmarks.gpu import cuda_resources, triton_resources
from benchmarks.gpu.occupancy import PARTS, Resources, occupancy
from benchmarks.gpu.traffic import Traffic, traffic
from benchmarks.publish.markdown import markdown_table

REPORT = Path(__file__).parents[2] / "docs" / "gpu-report.md"
COLUMNS = (
    "backend", "kernel", "dtype", "D", "part", "warps", "registers", "spills, bytes", "shared, bytes", "limit",
    "occupancy",
)  # fmt: skip
SHAPES = ((32, 32, 32), (8, 128, 128), (4, 512, 512), (1, 2048, 2048))
HEADS, HEAD_SIZE = 8, 64
TRAFFIC_COLUMNS = ("step", "size", "moved, MB", "least, MB", "ratio")
REPORT_TEXT = """\
# The GPU kernels, compiled

**Nothing in this report ran on a GPU.** The kernels were compiled ahead of time on a machine that has none, and
registers, spills and shared memory were read from the result. Occupancy is computed from them; speed is not known.
`make gpu-report` writes this page.

{versions}. A part is a compute capability of NVIDIA's, or AMD's gfx942. Shown are the fixed tiles, for the
gaussian prior without dropout, a center shared by the heads, and long rows. Occupancy is the share of a processor's
threads that fit at once; kernels on tensor cores, which keep their running sums in registers, can run well with little.

{resources}

## Memory traffic of the Triton kernels

float16, H = {heads}, D = {head_size}, centers on the diagonal, δ = 1. Moved: every tile a program loads or stores,
counted from the tile schedule, as if there were no cache. Least: everything needed once, where the backward is one
step. Above the least are source tiles that several blocks of rows load, and rows that several blocks of keys load,
which the L2 cache will often hold.

{traffic}
"""


def resources(console: Console) -> list[Resources]:
    found = triton_resources.rows()
    try:
        cuda_resources.nvcc()
    except RuntimeError as error:
        console.print(f"The CUDA kernels are left out: {error}")
        return found
    return found + cuda_resources.rows()


def cells(row: Resources) -> tuple[str, ...]:
    part = PARTS[row.capability]
    share = occupancy(row.capability, row.threads, row.registers, row.shared_bytes)
    return (
        row.backend, row.kernel, row.dtype, str(row.head_size), row.capability, str(row.threads // part.warp),
        str(row.registers), str(row.spills_bytes), f"{row.shared_bytes:,}", f"{part.largest_shared_bytes:,}",
        f"{share:.0%}",
    )  # fmt: skip


def traffic_cells(shape: tuple[int, int, int], found: Traffic) -> tuple[str, ...]:
    batch, rows, keys = shape
    size = f"B={batch} T={rows} S={keys}"
    return found.step, size, f"{found.moved / 1e6:.1f}", f"{found.least / 1e6:.1f}", f"{found.moved / found.least:.2f}×"


def report(found: list[Resources], moved: list[tuple[str, ...]]) -> str:
    versions = f"torch {torch.__version__}, triton {triton.__version__}"
    return REPORT_TEXT.format(
        versions=versions,
        resources=markdown_table(COLUMNS, [cells(row) for row in found], 5).rstrip(),
        traffic=markdown_table(TRAFFIC_COLUMNS, moved, 2).rstrip(),
        heads=HEADS,
        head_size=HEAD_SIZE,
    )


def main() -> None:
    console = Console()
    console.print(
        "Nothing in this report ran on a GPU: kernels are compiled, and what they take is read from the result."
    )
    found = resources(console)
    table = Table(*COLUMNS)
    for row in found:
        table.add_row(*cells(row))
    console.print(table)
    moved = [
        traffic_cells(shape, step)
        for shape in SHAPES
        for step in traffic(shape[0], HEADS, *shape[1:], HEAD_SIZE, torch.float16)
    ]
    table = Table(*TRAFFIC_COLUMNS)
    for row in moved:
        table.add_row(*row)
    console.print(table)
    REPORT.write_text(report(found, moved))
    console.print(f"written to {REPORT}")


if __name__ == "__main__":
    main()
