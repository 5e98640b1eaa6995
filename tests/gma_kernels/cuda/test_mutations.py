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
    "no barrier before keys are used": Mutation(
        "forward.cu", "    __syncthreads();\n    value_copy.load", "    value_copy.load"
    ),
    "no barrier before keys are replaced": Mutation(
        "forward.cu", "    __syncthreads();\n    if (first_key + step", "    if (first_key + step"
    ),
    "a barrier on every other tile only": Mutation(
        "backward_query.cu",
        "      __syncthreads();\n      if (S::stages",
        "      if (tile % 2) __syncthreads();\n      if (S::stages",
    ),
    "no barrier in the kernel over keys": Mutation(
        "backward_key.cu",
        "    wait_for_copies<S::stages - 1>();\n    __syncthreads();\n",
        "    wait_for_copies<S::stages - 1>();\n",
    ),
    "no barrier before teams are merged": Mutation(
        "decode.cu", "= context[i];\n  __syncthreads();\n", "= context[i];\n"
    ),
    "values are not waited for": Mutation(
        "forward.cu",
        "    wait_for_copies<0>();\n    __syncthreads();\n    if (first_key + step",
        "    wait_for_copies<1>();\n    __syncthreads();\n    if (first_key + step",
    ),
    "the last tile is left out": Mutation(
        "forward.cu", "first_key < end; first_key", "first_key + step <= end; first_key"
    ),
    "a row sees one key too many": Mutation("rows.h", "e >= seen", "e > seen"),
    "keys past the end are read": Mutation("tile.h", "return at < left;", "return at <= left;"),
    "rows past the end are read": Mutation(
        "backward_query.cu", "load(query, call.rows - first_row)", "load(query, S::rows)"
    ),
    "rows past the end are written": Mutation("tile.h", "if (row >= end) continue;", "if (row > end) continue;"),
    "the maximum from a wrong lane": Mutation(
        "softmax.h",
        "return fmaxf(x, __shfl_xor_sync(whole_warp, x, 2));",
        "return fmaxf(x, __shfl_xor_sync(whole_warp, x, 4));",
    ),
    "the context is not rescaled": Mutation(
        "forward.cu", "context[r][n][i] *= factor[2 * r + i / 2];", "context[r][n][i] *= 1;"
    ),
    "values are not transposed": Mutation("product.h", "load_matrices_transposed(b, right", "load_matrices(b, right"),
    "misaligned rows in shared memory": Mutation(
        "tile.h", "return row * head_tile +", "return row * (head_tile - 4) +"
    ),
    "chunks of an odd row in the wrong order": Mutation("product.h", "(t / 2 ^ 1) * 4", "t / 2 * 4"),
    "too little shared memory": Mutation(
        "forward.cu", "(rows + 2 * keys) * head_tile", "(rows + 2 * keys - 1) * head_tile"
    ),
    "a shuffle some lanes never reach": Mutation(
        "softmax.h", "      largest = largest_of_row", "      if (largest > -1e30f) largest = largest_of_row"
    ),
    "dropout of a wrong row": Mutation("dropout.h", "row + g + (odd ? 8 : 0)", "row + g + (odd ? 0 : 8)"),
    "rows that see the keys are skipped": Mutation("backward_key.cu", ".largest > keys", ".largest > keys + 40"),
    "the first of the heads is not summed up": Mutation("backward.cu", "int64_t head = 0;", "int64_t head = 1;"),
    "the folded prior without its linear term": Mutation("rows.h", "t * (t * curve.a + curve.b)", "t * (t * curve.a)"),
    "the width's derivative without its linear term": Mutation("rows.h", "+ curve.b * center", ""),
    "delta is not corrected": Mutation("backward_query.cu", "first_row] += excess[i];", "first_row] += 0;"),
    "parts of a source overlap": Mutation(
        "forward.cu", "? seen : begin + split.keys;", "? seen : begin + split.keys + 64;"
    ),
    "a part is left out": Mutation("split.cu", "for (int i = team;", "for (int i = team + 1;"),
    "parts are not brought to one maximum": Mutation(
        "split.cu", "weighs ? exp2_fast(maximum - largest)", "weighs ? 1.0f"
    ),
    "a decoding step reads past the end": Mutation("decode.cu", "there = key < end ? key : end - 1;", "there = key;"),
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
