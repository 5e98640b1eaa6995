"""Bugs planted into the CUDA kernels, one at a time, each of which the emulator or a sanitizer has to notice."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.cuda_cases import draw, failures
from tests.support.cuda_emulator import ROOT, build, why_not

pytestmark = [pytest.mark.skipif(why_not() is not None, reason=str(why_not())), pytest.mark.slow]

HEAD = 32


class Mutation(NamedTuple):
    file: str
    old: str
    new: str


MUTATIONS = {
    "no barrier before the tile is used": Mutation(
        "forward.cu", "    wait_for_copies<1>();\n    __syncthreads();\n", "    wait_for_copies<1>();\n"
    ),
    "no barrier before the tile is replaced": Mutation("forward.cu", "    __syncthreads();\n  }\n", "  }\n"),
    "a barrier on every other tile only": Mutation(
        "backward_query.cu", "    __syncthreads();\n  }\n", "    if (turn % 2 == 1) __syncthreads();\n  }\n"
    ),
    "no barrier in the kernel over keys": Mutation(
        "backward_key.cu", "    wait_for_copies<1>();\n    __syncthreads();\n", "    wait_for_copies<1>();\n"
    ),
    "no barrier before teams are merged": Mutation(
        "decode.cu", "= context[i];\n  __syncthreads();\n", "= context[i];\n"
    ),
    "one group of copies too few waited for": Mutation("forward.cu", "wait_for_copies<1>", "wait_for_copies<2>"),
    "the last tile is left out": Mutation(
        "forward.cu", "const int tiles = (largest + step - 1) / step", "const int tiles = largest / step"
    ),
    "a row sees one key too many": Mutation("rows.h", "e >= rows[r].visible", "e > rows[r].visible"),
    "a tile past the end is read": Mutation("forward.cu", "return tile * step + row < largest", "return row >= 0"),
    "rows past the end are read": Mutation(
        "backward_query.cu", "return first_row + row < call.rows", "return row >= 0"
    ),
    "rows past the end are written": Mutation("tile.h", "if (row >= end) continue;", "if (row > end) continue;"),
    "the maximum from a wrong lane": Mutation(
        "softmax.h",
        "return fmaxf(x, __shfl_xor_sync(whole_warp, x, 2));",
        "return fmaxf(x, __shfl_xor_sync(whole_warp, x, 4));",
    ),
    "the context is not rescaled": Mutation("forward.cu", "context[n][i] *= factor[i / 2];", "context[n][i] *= 1;"),
    "values are not transposed": Mutation("product.h", "load_matrices_transposed(b, right", "load_matrices(b, right"),
    "misaligned rows in shared memory": Mutation(
        "tile.h", "static constexpr int stride = head_tile + chunk;", "static constexpr int stride = head_tile + 4;"
    ),
    "too little shared memory": Mutation(
        "forward.cu",
        "(warps * warp_rows + 4 * Sizes::forward_step)",
        "(warps * warp_rows + 4 * Sizes::forward_step - 1)",
    ),
    "a shuffle some lanes never reach": Mutation(
        "softmax.h", "      largest = largest_of_row", "      if (largest > -1e30f) largest = largest_of_row"
    ),
    "dropout of a wrong row": Mutation("dropout.h", "row + g + (odd ? 8 : 0)", "row + g + (odd ? 0 : 8)"),
    "rows that see the keys are skipped": Mutation("backward_key.cu", "largest[i] > keys", "largest[i] > keys + 40"),
    "the first of the heads is not summed up": Mutation("backward.cu", "int64_t head = 0;", "int64_t head = 1;"),
}


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    """A folder of the kernels and of what was built of them, which mutants start from."""
    folder = tmp_path_factory.mktemp("clean")
    shutil.copytree(ROOT / "csrc", folder / "csrc")
    for flavour in ("plain", "address", "thread"):
        build("runner", flavour, HEAD, kernels=folder / "csrc/cuda", out=folder / flavour)
    return folder


def who_notices(folder: Path) -> str | None:
    """The first rung that finds something wrong: numbers, the emulator, or a sanitizer."""
    for flavour, order, seeds in (
        ("plain", "forward", range(30)),
        ("plain", "reverse", range(30)),
        ("plain", "1", range(30)),
        ("address", "forward", range(12)),
        ("thread", "forward", range(12)),
    ):
        program = build("runner", flavour, HEAD, kernels=folder / "csrc/cuda", out=folder / flavour)
        try:
            if failures([draw(seed, HEAD) for seed in seeds], program, order=order, threads=2):
                return f"numbers, order {order}"
        except RuntimeError as error:
            return str(error).partition(":")[0]
    return None


def test_without_a_mutation_nothing_is_noticed(clean):
    assert who_notices(clean) is None


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_are_noticed(name, clean, tmp_path):
    mutant = tmp_path / "mutant"
    shutil.copytree(clean, mutant)
    file, old, new = MUTATIONS[name]
    path = mutant / "csrc/cuda" / file
    text = path.read_text()
    assert old in text, f"{file} no longer contains {old!r}"
    path.write_text(text.replace(old, new, 1))
    by = who_notices(mutant)
    print(f"{name}: {by}")
    assert by is not None
