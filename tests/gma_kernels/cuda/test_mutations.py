"""Bugs planted into the CUDA kernels, one at a time, each of which the emulator or a sanitizer has to notice."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.cuda_cases import draw, draw_features, failures, feature_failures
from tests.support.cuda_emulator import ROOT, build, why_not

pytestmark = [pytest.mark.skipif(why_not() is not None, reason=str(why_not())), pytest.mark.slow]

HEAD = 32


class Mutation(NamedTuple):
    file: str
    old: str
    new: str
    head: int = HEAD  # up to how many columns heads have


MUTATIONS = {
    "no barrier before keys are used": Mutation(
        "forward_kernel.h", "    __syncthreads();\n    value_copy.load", "    value_copy.load"
    ),
    "no barrier before keys are replaced": Mutation(
        "forward_kernel.h", "    __syncthreads();\n    if (first_key + step", "    if (first_key + step"
    ),
    "a barrier on every other tile only": Mutation(
        "backward_query_kernel.h",
        "      __syncthreads();\n      if (S::stages",
        "      if (tile % 2) __syncthreads();\n      if (S::stages",
    ),
    "no barrier in the kernel over keys": Mutation(
        "backward_key_kernel.h",
        "    wait_for_copies<S::stages - 1>();\n    __syncthreads();\n",
        "    wait_for_copies<S::stages - 1>();\n",
    ),
    "no barrier before teams are merged": Mutation(
        "decode_kernel.h", "= context[i];\n  __syncthreads();\n", "= context[i];\n"
    ),
    "values are not waited for": Mutation(
        "forward_kernel.h",
        "    wait_for_copies<0>();\n    __syncthreads();\n    if (first_key + step",
        "    wait_for_copies<1>();\n    __syncthreads();\n    if (first_key + step",
    ),
    "the last tile is left out": Mutation(
        "forward_kernel.h", "first_key < end; first_key", "first_key + step <= end; first_key"
    ),
    "a row sees one key too many": Mutation("rows.h", "e >= seen.end", "e > seen.end"),
    "keys past the end are read": Mutation("tile.h", "at < left; }", "at <= left; }"),
    "rows past the end are read": Mutation(
        "backward_query_kernel.h", "load(query, rows_in<general>(call, place) - first_row)", "load(query, S::rows)"
    ),
    "rows past the end are written": Mutation("tile.h", "if (row >= end) continue;", "if (row > end) continue;"),
    "the maximum from a wrong lane": Mutation(
        "softmax.h",
        "return fmaxf(x, __shfl_xor_sync(whole_warp, x, 2));",
        "return fmaxf(x, __shfl_xor_sync(whole_warp, x, 4));",
    ),
    "the context is not rescaled": Mutation(
        "forward_kernel.h", "context[r][n][i] *= factor[2 * r + i / 2];", "context[r][n][i] *= 1;"
    ),
    "values are not transposed": Mutation("product.h", "load_matrices_transposed(b, right", "load_matrices(b, right"),
    "misaligned rows in shared memory": Mutation(
        "tile.h", "return row * head_tile +", "return row * (head_tile - 4) +"
    ),
    "chunks of an odd row in the wrong order": Mutation("product.h", "(t / 2 ^ 1) * 4", "t / 2 * 4"),
    "too little shared memory": Mutation(
        "forward_kernel.h", "(rows + 2 * keys) * head_tile", "(rows + 2 * keys - 1) * head_tile"
    ),
    "a shuffle some lanes never reach": Mutation(
        "softmax.h", "      largest = largest_of_row", "      if (largest > -1e30f) largest = largest_of_row"
    ),
    "dropout of a wrong row": Mutation("dropout.h", "row + g + (odd ? 8 : 0)", "row + g + (odd ? 0 : 8)"),
    "rows that see the keys are skipped": Mutation(
        "backward_key_kernel.h", ".any_end <= keys.begin)", ".any_end <= keys.begin + 40)"
    ),
    "the first of the heads is not summed up": Mutation("backward.cu", "int64_t head = 0;", "int64_t head = 1;"),
    "the folded prior without its linear term": Mutation("rows.h", "t * (t * curve.a + curve.b)", "t * (t * curve.a)"),
    "the width's derivative without its linear term": Mutation("rows.h", "+ curve.b * center", ""),
    "delta is not corrected": Mutation("backward_query_kernel.h", "first_row] += excess[i];", "first_row] += 0;"),
    "parts of a source overlap": Mutation(
        "forward_kernel.h", "? seen.end : part + split.keys;", "? seen.end : part + split.keys + 64;"
    ),
    "a part is left out": Mutation("split.cu", "for (int i = team;", "for (int i = team + 1;"),
    "parts are not brought to one maximum": Mutation(
        "split.cu", "weighs ? exp2_fast(maximum - largest)", "weighs ? 1.0f"
    ),
    "weights are exchanged without a barrier": Mutation(
        "backward_key_exchange.h",
        "    wait_for_copies<0>();\n    __syncthreads();\n    set_all(grads, 0);",
        "    wait_for_copies<0>();\n    set_all(grads, 0);",
        128,
    ),
    "weights are replaced before all have used them": Mutation(
        "backward_key_exchange.h",
        "    __syncthreads();\n    leave<scalar, step>(grads",
        "    leave<scalar, step>(grads",
        128,
    ),
    "the other half of the rows is exchanged": Mutation(
        "backward_key_exchange.h", "(grads, own, half * S::part);", "(grads, own, 0);", 128
    ),
    "a window begins one key too early": Mutation("rows.h", "e < seen.begin", "e + 1 < seen.begin"),
    "a window is not looked at in decoding": Mutation(
        "decode_kernel.h", "seen.begin > part ? seen.begin", "false ? part"
    ),
    "tiles of a part begin where its rows do": Mutation("forward_kernel.h", "is_long ? 8 : step", "8"),
    "values left of all windows are read": Mutation("forward_kernel.h", "general ? seen.begin - first_key : 0", "0"),
    "the backward reads keys left of all windows": Mutation(
        "backward_query_kernel.h", "general ? seen.begin - first_key : 0", "0"
    ),
    "warps left of their windows go wrong": Mutation("rows.h", "> any.begin;", "> any.begin + 8;"),
    "the peak is sought left of the window": Mutation("rows.h", "keys.end, keys.begin);", "keys.end, 0);"),
    "weights left of a window are not written": Mutation("weights.cu", "tiles > 0 && key < begin;", "false;"),
    "keys left of a window get gradients": Mutation(
        "backward_key_kernel.h", "key < seen.begin) || is_single", "key + 1 < seen.begin) || is_single"
    ),
    "keys left of a window get weights": Mutation(
        "backward_key_kernel.h", "key < seen.begin)) weights", "false)) weights"
    ),
    "tiles of keys left of some windows are not masked": Mutation(
        "backward_key_kernel.h", "hide |= groups[i].left.all_begin > warp_key;", ";"
    ),
    "tiles of rows are taken for right of the keys": Mutation(
        "backward_key_kernel.h", ".any_begin < keys.end", ".any_begin + 40 < keys.end"
    ),
    "parts of tiles are taken for right of the keys": Mutation(
        "backward_key_kernel.h",
        "left.any_begin >= warp_key + S::warp_keys",
        "left.any_begin + 9 >= warp_key + S::warp_keys",
    ),
    "rows of a group are not told apart": Mutation("place.h", "x % heads", "0 * heads"),
    "all groups use the first keys": Mutation(
        "place.h", "place.key_head * matrix.head_stride", "0 * matrix.head_stride"
    ),
    "gradients of the first of a group only": Mutation(
        "tile.h", "if constexpr (stacked) next_ += count;", "if constexpr (stacked) next_ += 0;"
    ),
    "dropout of a wrong head of a group": Mutation(
        "dropout.h", "flat_head + static_cast<uint64_t>(at.head)", "flat_head"
    ),
    "dropout of a wrong sentence": Mutation("place.h", "static_cast<int64_t>(b) * call.heads", "0 * call.heads"),
    "a sentence too far": Mutation("place.h", "middle) <= tile) low", "middle) < tile) low"),
    "rows of a packed sentence at a wrong place": Mutation("place.h", "place.row_offset + at.row", "at.row"),
    "a packed sentence has the keys of all": Mutation("place.h", "call.keys) - place.key_offset;", "call.keys);"),
    "tiles past a packed sentence are worked on": Mutation(
        "forward_kernel.h", "if (general && place.tile >= row_tile_count) return;", ""
    ),
    "keys past a packed sentence are written": Mutation(
        "backward_key_kernel.h", "if (general && first_key >= place.keys) return;", ""
    ),
    "groups of packed sentences overlap": Mutation(
        "place.h", "group_rows, b);\n      place.tile", "group_rows, 0);\n      place.tile"
    ),
    "the logsumexp's gradient is left out": Mutation(
        "backward_query_kernel.h", "delta[i] - grad_logsumexp_of(i)", "delta[i]"
    ),
    "delta is corrected as if the logsumexp had no gradient": Mutation(
        "backward_query_kernel.h", ": factor[i]) - grad_logsumexp_of(i);", ": factor[i]);"
    ),
    "a single key has no gradient": Mutation("backward_query_kernel.h", "!= nullptr ? 0 : 1", "!= nullptr ? 1 : 1"),
    "a single key gets none": Mutation("backward_key_kernel.h", "!(general && has_single)", "true"),
    "blind rows have a gradient of the logsumexp": Mutation(
        "backward_query_kernel.h", "!= nullptr && rows.sees(i))", "!= nullptr)"
    ),
    "a decoding step reads past the end": Mutation(
        "decode_kernel.h", "there = key < end ? key : end - 1;", "there = key;"
    ),
}


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    """A folder of the kernels and of what was built of them, which mutants start from."""
    folder = tmp_path_factory.mktemp("clean")
    shutil.copytree(ROOT / "csrc", folder / "csrc")
    for flavour in ("plain", "address", "thread"):
        build("runner", flavour, HEAD, kernels=folder / "csrc/cuda", out=folder / f"{flavour}-{HEAD}")
    return folder


def who_notices(folder: Path, head: int = HEAD) -> str | None:
    """The first rung that finds something wrong: numbers, the emulator, or a sanitizer."""
    for flavour, order, seeds in (
        ("plain", "forward", range(30)),
        ("plain", "reverse", range(30)),
        ("plain", "1", range(30)),
        ("address", "forward", range(12)),
        ("thread", "forward", range(12)),
    ):
        program = build("runner", flavour, head, kernels=folder / "csrc/cuda", out=folder / f"{flavour}-{head}")
        more = range(len(seeds) * 3)
        try:
            if failures([draw(seed, head) for seed in seeds], program, order=order, threads=2):
                return f"numbers, order {order}"
            if feature_failures([draw_features(seed, head) for seed in more], program, order=order, threads=2):
                return f"numbers with features, order {order}"
        except RuntimeError as error:
            return str(error).partition(":")[0]
    return None


def test_without_a_mutation_nothing_is_noticed(clean):
    assert who_notices(clean) is None


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_are_noticed(name, clean, tmp_path):
    mutant = tmp_path / "mutant"
    shutil.copytree(clean, mutant)
    file, old, new, head = MUTATIONS[name]
    path = mutant / "csrc/cuda" / file
    text = path.read_text()
    assert old in text, f"{file} no longer contains {old!r}"
    path.write_text(text.replace(old, new, 1))
    by = who_notices(mutant, head)
    print(f"{name}: {by}")
    assert by is not None
