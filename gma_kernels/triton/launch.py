"""From tensors to kernel launches: what every kernel is given, and how many programs run it.

A launch is data, so that what is compiled ahead of time is what is launched.
"""

import contextlib
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from gma_kernels.contract import LARGEST_HEAD, PRIORS
from gma_kernels.philox import drop_threshold
from gma_kernels.triton.backward import backward_keys_kernel, backward_rows_kernel
from gma_kernels.triton.decode import decode_kernel, join_kernel
from gma_kernels.triton.forward import forward_kernel
from gma_kernels.triton.tile_sizes import Tile, padded
from gma_kernels.triton.weights import weights_kernel

DECODE_KEYS = 64  # a tile of the source when decoding
SHORTEST_PART = 4 * DECODE_KEYS  # no part of a split source is shorter
MOST_PARTS = 64
ENOUGH_PROGRAMS = 512  # that keep the largest GPU busy
SCANNED_ROWS = 512  # of `visible` at a time, by the kernel over keys


class Launch(NamedTuple):
    """One call of one kernel. `arguments` and `constants` go by the names of the kernel's parameters."""

    kernel: Any
    programs: int
    arguments: dict[str, Any]
    constants: dict[str, Any]
    warps: int
    stages: int

    def run(self) -> None:
        if self.programs:
            options = {"num_warps": self.warps, "num_stages": self.stages}
            self.kernel[(self.programs,)](**self.arguments, **self.constants, **options)


class Problem(NamedTuple):
    """The inputs of the operators, with the settings."""

    query: Tensor
    key: Tensor
    value: Tensor | None
    center: Tensor
    width: Tensor
    visible: Tensor
    seed: Tensor | None
    prior: int
    scale: float
    dropout_p: float

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, T, S"""
        batch, heads, rows, _ = self.query.shape
        return batch, heads, rows, self.key.shape[2]

    @property
    def columns(self) -> int:
        """The padded columns of the wider head, which decide what fits where."""
        value_size = 1 if self.value is None else self.value.shape[3]
        return max(padded(self.query.shape[3]), padded(value_size))

    def check(self, **results: Tensor) -> None:
        """Refuse what no kernel is made for, or what would be touched outside its memory; the public functions have
        said more about it before. results: in the backward grad_context, context and logsumexp."""
        batch, heads, rows, keys = self.shape
        dtype, size = self.query.dtype, self.query.shape[3]
        value_size = size if self.value is None else self.value.shape[-1]
        if dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise TypeError(f"query has dtype {dtype}; backend 'triton' expects float32, float16 or bfloat16")
        if not (1 <= size <= LARGEST_HEAD and 1 <= value_size <= LARGEST_HEAD):
            raise ValueError(f"D and Dv are {size} and {value_size}; expected 1 to {LARGEST_HEAD}")
        if max(rows, keys) >= 2**30:
            raise ValueError(f"T and S are {rows} and {keys}; expected less than 2**30")
        if not 0 <= self.prior < len(PRIORS):
            raise ValueError(f"prior is {self.prior}; expected 0 to {len(PRIORS) - 1}")
        if not 0 <= self.dropout_p < 1 or (self.dropout_p > 0 and self.seed is None):
            raise ValueError(f"dropout_p is {self.dropout_p}; expected 0 <= dropout_p < 1, and a seed unless it is 0")

        by_row = ((batch, 1, rows), (batch, heads, rows))
        by_value = ((batch, heads, rows, value_size),)
        kinds = {
            "query": (dtype, (self.query.shape,)),
            "key": (dtype, ((batch, heads, keys, size),)),
            "value": (dtype, ((batch, heads, keys, value_size),)),
            "center": (torch.float32, by_row),
            "width": (torch.float32, by_row),
            "visible": (torch.int32, by_row),
            "seed": (torch.int64, ((),)),
            "grad_context": (dtype, by_value),
            "context": (dtype, by_value),
            "logsumexp": (torch.float32, by_row[1:]),
        }
        for name, x in (self._asdict() | results).items():
            if not isinstance(x, Tensor):
                continue
            expected, shapes = kinds[name]
            if x.shape not in shapes or x.device != self.query.device:
                raise ValueError(f"{name} has shape {tuple(x.shape)} on {x.device}; it does not fit query")
            if x.dtype != expected:
                raise TypeError(f"{name} has dtype {x.dtype}; backend 'triton' expects {expected}")
            if x.dim() == 4 and x.stride(3) != 1 and x.shape[3] > 1 and x.numel():
                raise ValueError(f"{name} has last stride {x.stride(3)}; expected 1: pass {name}.contiguous()")
            if x.numel() and not x.data_ptr():
                raise ValueError(f"{name} has no memory: its storage was freed")

    def inputs(self) -> dict[str, Any]:
        """Every tensor the kernels read, with its outer strides."""
        found: dict[str, Any] = {}
        for name in ("query", "key", "value"):
            x = getattr(self, name)
            if x is not None:
                found |= {name: x, f"{name}_strides": x.stride()[:3]}
        for name in ("center", "width", "visible"):
            x = getattr(self, name)
            # heads that share a row all read the one there is
            per_head = x.stride(1) if x.shape[1] > 1 else 0
            found |= {name: x, f"{name}_strides": (x.stride(0), per_head, x.stride(2))}
        return found

    def dropout(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "drop_below": drop_threshold(self.dropout_p),
            "keep_scale": 1.0 / (1.0 - self.dropout_p),
        }

    def sizes(self) -> dict[str, int]:
        _, heads, rows, keys = self.shape
        return {"heads": heads, "rows": rows, "keys": keys}

    def constants(self) -> dict[str, Any]:
        size = self.query.shape[3]
        found = {"PRIOR": self.prior, "HEAD_SIZE": size, "HEAD_BLOCK": padded(size)}
        if self.value is not None:
            value_size = self.value.shape[3]
            found |= {"VALUE_SIZE": value_size, "VALUE_BLOCK": padded(value_size)}
        return found


def forward(problem: Problem, tile: Tile, context: Tensor, logsumexp: Tensor) -> Launch:
    batch, heads, rows, _ = problem.shape
    outputs = {"context": context, "logsumexp": logsumexp}
    return Launch(
        forward_kernel,
        batch * heads * triton.cdiv(rows, tile.rows),
        problem.inputs() | problem.dropout() | outputs | problem.sizes() | {"scale": problem.scale},
        problem.constants() | {"DROPOUT": problem.seed is not None, "ROWS": tile.rows, "KEYS": tile.keys},
        tile.warps,
        tile.stages,
    )


def backward_rows(problem: Problem, tile: Tile, saved: dict[str, Any], outputs: dict[str, Tensor]) -> Launch:
    """saved: grad_context and context with their strides, and logsumexp."""
    batch, heads, rows, _ = problem.shape
    return Launch(
        backward_rows_kernel,
        batch * heads * triton.cdiv(rows, tile.rows),
        problem.inputs() | problem.dropout() | saved | outputs | problem.sizes() | {"scale": problem.scale},
        problem.constants() | {"DROPOUT": problem.seed is not None, "ROWS": tile.rows, "KEYS": tile.keys},
        tile.warps,
        tile.stages,
    )


def backward_keys(problem: Problem, tile: Tile, saved: dict[str, Any], outputs: dict[str, Tensor]) -> Launch:
    """saved: grad_context with its strides, logsumexp, and row_sums as `backward_rows` wrote them."""
    batch, heads, _, keys = problem.shape
    tiles = {"ROWS": tile.rows, "KEYS": tile.keys, "SCAN": SCANNED_ROWS}
    return Launch(
        backward_keys_kernel,
        batch * heads * triton.cdiv(keys, tile.keys),
        problem.inputs() | problem.dropout() | saved | outputs | problem.sizes() | {"scale": problem.scale},
        problem.constants() | {"DROPOUT": problem.seed is not None} | tiles,
        tile.warps,
        tile.stages,
    )


def weights(problem: Problem, tile: Tile, output: Tensor) -> Launch:
    batch, heads, rows, _ = problem.shape
    return Launch(
        weights_kernel,
        batch * heads * triton.cdiv(rows, tile.rows),
        problem.inputs() | {"weights": output, "scale": problem.scale} | problem.sizes(),
        problem.constants() | {"ROWS": tile.rows, "KEYS": tile.keys},
        tile.warps,
        tile.stages,
    )


def parts_of_source(batch: int, heads: int, keys: int) -> tuple[int, int]:
    """How many programs share one source when decoding, and the keys of each. From sizes alone: no synchronisation."""
    wanted = min(triton.cdiv(ENOUGH_PROGRAMS, max(batch * heads, 1)), keys // SHORTEST_PART, MOST_PARTS)
    part = triton.cdiv(triton.cdiv(keys, max(wanted, 1)), DECODE_KEYS) * DECODE_KEYS
    return max(triton.cdiv(keys, max(part, 1)), 1), part


def decode(problem: Problem, context: Tensor, logsumexp: Tensor) -> tuple[Launch, ...]:
    """The launches of a step with T = 1 and no dropout: one, or with a long source two."""
    batch, heads, _, keys = problem.shape
    parts, part = parts_of_source(batch, heads, keys)
    split = parts > 1
    whole = {"context": context, "logsumexp": logsumexp}
    partial = dict.fromkeys(("part_sums", "part_largest", "part_total"))
    if split:
        shape = (batch * heads, parts)
        partial["part_sums"] = logsumexp.new_empty(*shape, context.shape[3])
        partial["part_largest"], partial["part_total"] = logsumexp.new_empty(shape), logsumexp.new_empty(shape)
    sizes = {"heads": heads, "keys": keys, "part": part, "parts": parts, "scale": problem.scale}
    first = Launch(
        decode_kernel,
        batch * heads * parts,
        problem.inputs() | (dict.fromkeys(whole) if split else whole) | partial | sizes,
        problem.constants() | {"SPLIT": split, "KEYS": DECODE_KEYS},
        4,
        2,
    )
    if not split:
        return (first,)
    rows = {name: x for name, x in problem.inputs().items() if name.startswith("visible")}
    constants = {name: x for name, x in problem.constants().items() if name.startswith("VALUE")}
    second = Launch(
        join_kernel,
        batch * heads,
        partial | rows | whole | {"heads": heads, "parts": parts},
        constants | {"PARTS": triton.next_power_of_2(parts)},
        4,
        1,
    )
    return first, second


def on_device(x: Tensor) -> contextlib.AbstractContextManager:
    """Kernels are launched on the current device, which need not be the tensors'."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()
