"""Random cases for the emulated CUDA kernels, whose tiles are larger than those of the CPU, and what they must give."""

import dataclasses
import math
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gma_kernels import reference
from gma_kernels.logsumexp import whole_logsumexp
from gma_kernels.philox import dropout_scale
from tests.support.cuda_emulator import Given, results_of
from tests.support.feature_cases import FeatureCase, finite, packed, run_features, run_general_yardstick
from tests.support.numerics import Case, Inputs, run, run_yardstick
from tests.support.random_cases import out_of_tolerance

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# a tile holds 16, 32 or 64 keys: most of these are three tiles or more
KEYS = (131, 150, 193, 200, 230, 67, 97, 131, 150, 5, 1, 64)
ROWS = (1, 1, 1, 2, 16, 17, 33, 40, 65, 70)
HEAD_SIZES = (32, 64, 128, 33, 100, 17, 8, 64, 256)


def draw(seed: int, largest_head: int = 256) -> Case:
    pick = random.Random(seed)
    case = Case.draw(seed, DTYPES[seed % 3])
    heads = pick.choice((1, 1, 2, 3))
    sizes = {"batch": pick.choice((1, 1, 2)), "rows": pick.choice(ROWS), "keys": pick.choice(KEYS)}
    if pick.random() < 0.04:
        sizes[pick.choice(("batch", "rows", "keys"))] = 0
    size, value_size = (pick.choice([x for x in HEAD_SIZES if x <= largest_head]) for _ in range(2))
    if max(size, value_size) > 128:  # a slow tile: small cases
        sizes["rows"], heads = min(sizes["rows"], 33), 1
    shared = {f"{name}_heads": pick.choice((1, heads)) for name in ("center", "width", "visible")}
    scale = pick.choice((None, None, 2 * size**-0.5, 0.0, -(size**-0.5)))
    return dataclasses.replace(case, heads=heads, size=size, value_size=value_size, scale=scale, **sizes, **shared)


def plain_case(dtype: torch.dtype, **changes) -> Case:
    """Nothing unusual: two heads, 40 rows, 150 keys of 32 columns, everything visible."""
    heads = changes.get("heads", 2)
    return dataclasses.replace(
        Case.draw(0, dtype),
        **{"prior": "gaussian", "scale": None, "dropout_p": 0.0, "magnitude": 1.0, "batch": 1, "heads": heads}
        | {"rows": 40, "keys": 150, "size": 32, "value_size": 32}
        | {"center_heads": heads, "width_heads": heads, "visible_heads": heads}
        | {"center_kind": "inside", "width_kind": "ordinary", "visible_kind": "all", "layouts": ("contiguous",) * 7}
        | changes,
    )


def wrong(case: Case, inputs: Inputs, grad: Tensor, result: dict[str, Tensor]) -> list[str]:
    """What is not within the tolerance of the operator's contract, or was not written."""
    exact = run(case, inputs.to(torch.float64), grad.double(), "reference")
    shape, dropout = (case.batch, case.heads, case.rows, case.keys), case.dropout()
    keep = dropout_scale(torch.tensor(dropout["seed"]), shape, dropout["dropout_p"], torch.float64)
    plain = run_yardstick(case, inputs, grad, keep if case.dropout_p > 0 else None)
    found = out_of_tolerance(case, {name: result[name] for name in exact}, exact, plain)
    scale = case.size**-0.5 if case.scale is None else case.scale
    _, normaliser = reference.forward(*inputs.to(torch.float64), None, None, case.prior, scale, 0.0)
    if not torch.allclose(result["logsumexp"].double(), normaliser, rtol=1e-5, atol=1e-5):
        found.append(f"logsumexp in {case}")
    return found


def failures(cases: Sequence[Case], program: Path, **settings) -> list[str]:
    built = [case.build() for case in cases]
    results = results_of(program, cases, built, **settings)
    return [line for case, given, result in zip(cases, built, results) for line in wrong(case, *given, result)]


FEATURE_KEYS = (131, 150, 193, 200, 67, 97, 5, 1)


def draw_features(seed: int, largest_head: int = 256) -> FeatureCase:
    """A case of grouped heads, a left bound, packed batches and logsumexp, alone or together, of sizes as above."""
    pick = random.Random(f"emulated features {seed}")
    case = FeatureCase.draw(seed, dtype=DTYPES[seed % 3])
    size, value_size = (pick.choice([x for x in HEAD_SIZES if x <= largest_head]) for _ in range(2))
    rows = pick.choice((1, 1, 1, 1, 2, 4, 9, 17, 40))
    if max(size, value_size) > 128 or case.case.heads > 4:  # slow: few rows
        rows = min(rows, 9)
    some_rows = pick.choice(((0, 1), (0, 1, 3, rows, 2 * rows)))
    lengths = tuple((pick.choice(some_rows), pick.choice((0, 5, 33, 64, 140))) for _ in case.lengths)
    sizes = {"batch": min(case.case.batch, 2), "rows": rows, "keys": pick.choice(FEATURE_KEYS)}
    scale = pick.choice((None, None, 2 * size**-0.5, -(size**-0.5)))
    changed = dataclasses.replace(case.case, size=size, value_size=value_size, scale=scale, **sizes)
    return dataclasses.replace(case, case=changed, lengths=lengths)


def given_features(case: FeatureCase) -> tuple[Given, Tensor | int]:
    """What the kernels are given for a case, and how many keys there are, of packed sentences for each row."""
    if not case.packed:
        (problem,) = case.sentences()
        given = Given(problem.inputs, problem.grad, problem.first, problem.grad_logsumexp)
        return poisoned(given, [(b, slice(None), slice(None)) for b in range(case.case.batch)]), case.case.keys
    whole = packed(case)
    matrices = [x.transpose(0, 1)[None] for x in (*whole.inputs[:3], whole.grad)]
    rows = [None if x is None else x.T[None] for x in (*whole.inputs[3:], whole.first, whole.grad_logsumexp)]
    given = Given(Inputs(*matrices[:3], *rows[:3]), matrices[3], rows[3], rows[4], whole.offsets)
    keys = torch.repeat_interleave(whole.offsets[1].diff(), whole.offsets[0].diff())
    ends = [x.tolist() for x in whole.offsets]
    sentences = [(0, *(slice(x[b], x[b + 1]) for x in ends)) for b in range(len(case.lengths))]
    return poisoned(given, sentences), keys


def poisoned(given: Given, sentences: list[tuple[int, slice, slice]]) -> Given:
    """With NaN in keys and values outside of what their heads' rows see, and in all of rows that see nothing.

    sentences: of each its batch, rows and keys.
    """
    inputs, first, grad_logsumexp = given.inputs, given.first, given.grad_logsumexp
    heads, key_heads = inputs.query.shape[1], inputs.key.shape[1]
    for b, rows, keys in sentences:
        count = inputs.key[b, 0, keys].shape[0]
        end = inputs.visible[b, :, rows].clamp(max=count).expand(heads, -1)
        begin = torch.zeros_like(end) if first is None else first[b, :, rows].expand(heads, -1)
        blind = begin >= end
        for x in (inputs.query, given.grad):
            if 0 not in x.stride():
                x[b, :, rows] = x[b, :, rows].masked_fill(blind[..., None], math.nan)
        if grad_logsumexp is not None:
            grad_logsumexp[b, :, rows] = grad_logsumexp[b, :, rows].masked_fill(blind, math.nan)
        if 0 in inputs.key.stride() or 0 in inputs.value.stride() or blind.numel() == 0:
            continue
        leftmost = begin.masked_fill(blind, count).unflatten(0, (key_heads, -1)).amin((1, 2))[:, None]
        rightmost = end.masked_fill(blind, 0).unflatten(0, (key_heads, -1)).amax((1, 2))[:, None]
        at = torch.arange(count)
        for x in (inputs.key, inputs.value):
            x[b, :, keys] = x[b, :, keys].masked_fill(((at < leftmost) | (at >= rightmost))[..., None], math.nan)
    return given


def with_whole_logsumexp(
    case: FeatureCase, given: Given, keys: Tensor | int, result: dict[str, Tensor]
) -> dict[str, Tensor]:
    """An operator's results as `gaussian_attention` returns them: what the peak adds to logsumexp and gradients."""
    result = dict(result)
    relative = result.pop("logsumexp")
    if given.grad_logsumexp is not None:
        leaves = [x.detach().clone().requires_grad_() for x in given.inputs[3:5]]
        whole = whole_logsumexp(relative, case.case.prior, *leaves, given.inputs.visible, given.first, keys)
        result["logsumexp"] = finite(whole.detach())
        if whole.requires_grad:
            grads = torch.autograd.grad(whole, leaves, given.grad_logsumexp.masked_fill(relative == -math.inf, 0.0))
            result |= {name: result[name] + grad for name, grad in zip(("center", "width"), grads)}
    if not case.packed:
        return result
    return {name: x[0].transpose(0, 1) for name, x in result.items()}


def feature_failures(cases: Sequence[FeatureCase], program: Path, **settings) -> list[str]:
    built = [given_features(case) for case in cases]
    results = results_of(program, [case.case for case in cases], [given for given, _ in built], **settings)
    found = []
    for case, (given, keys), result in zip(cases, built, results):
        exact, plain = run_features(case, "reference", torch.float64), run_general_yardstick(case)
        whole = with_whole_logsumexp(case, given, keys, result)
        found += out_of_tolerance(case, {name: whole[name] for name in exact}, exact, plain)
    return found
