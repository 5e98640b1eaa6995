"""Random cases for the emulated CUDA kernels, whose tiles are larger than those of the CPU, and what they must give."""

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gma_kernels import reference
from gma_kernels.philox import dropout_scale
from tests.support.cuda_emulator import results_of
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
    _, normaliser = reference.forward(*inputs.to(torch.float64), None, case.prior, scale, 0.0)
    if not torch.allclose(result["logsumexp"].double(), normaliser, rtol=1e-5, atol=1e-5):
        found.append(f"logsumexp in {case}")
    return found


def failures(cases: Sequence[Case], program: Path, **settings) -> list[str]:
    built = [case.build() for case in cases]
    results = results_of(program, cases, built, **settings)
    return [line for case, given, result in zip(cases, built, results) for line in wrong(case, *given, result)]
