"""The CUDA kernels as nvcc compiles them: no warnings, no registers spilled, shared memory within every GPU's limit.

Compiled only: nothing here runs on a GPU.
"""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.gpu import cuda_resources
from tests.support.cuda_emulator import ROOT

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc, of the CUDA toolkit, is not on the PATH")

# of each file: how many kernels there are of two head tiles in three dtypes. Forward: few rows or many, with dropout or
# without; backward: a quick one, which is none in float32, and a careful one. Of these each for plain calls and general
PAIRS = {"forward": 24, "decode": 6, "backward_query": 10, "backward_key": 10}
KERNELS = (
    PAIRS | {f"{name}_general": count for name, count in PAIRS.items()} | {"split": 6, "backward": 1, "weights": 6}
)
# bytes of shared memory a block may have with compute capability 12.0, the least of those supported
SHARED_LIMIT = 101376


def compiled(name: str, folder: Path) -> str:
    """What nvcc and ptxas say about the kernels of one file for capability 8.0, heads of up to 64 columns."""
    flags = ["-std=c++17", "-O3", "-arch=sm_80", "-DGMA_LARGEST_HEAD_TILE=64", "-Xptxas=-v", "-Xcompiler=-Wall"]
    command = ["nvcc", *flags, "-c", str(ROOT / f"csrc/cuda/{name}.cu"), "-o", str(folder / f"{name}.o")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr + done.stdout


def test_small_heads_for_one_capability(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(lambda name: compiled(name, tmp_path), KERNELS))
    for name, output in zip(KERNELS, outputs):
        assert "warning" not in output, output
        kernels = cuda_resources.parse_ptxas(output)
        assert len(kernels) == KERNELS[name]
        assert [kernel for kernel in kernels if kernel.spills_bytes > 0] == []


@pytest.mark.slow
def test_all_heads_for_all_capabilities():
    rows = cuda_resources.rows()
    assert {row.capability for row in rows} == {"8.0", "9.0", "10.0", "12.0"}
    # a register that is stored before the main loop and read back after it is nothing
    assert [row for row in rows if row.head_size in (64, 128) and row.spills_bytes > 16] == []
    assert [row for row in rows if row.shared_bytes > SHARED_LIMIT] == []
