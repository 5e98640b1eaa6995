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
from gma_kernels.triton import tile_sizes
from gma_kernels.triton.backward import backward_keys_kernel, backward_rows_kernel
from gma_kernels.triton.decode import decode_group_kernel, decode_kernel, join_kernel
from gma_kernels.triton.forward import forward_kernel
from gma_kernels.triton.tile_sizes import SMALLEST_BLOCK, Tile, padded
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
    """The inputs of the operators, with the settings. Packed sentences are one long one, with offsets."""

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
    first: Tensor | None = None
    cu_query: Tensor | None = None
    cu_key: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, T, S"""
        batch, heads, rows, _ = self.query.shape
        return batch, heads, rows, self.key.shape[2]

    @property
    def group(self) -> int:
        """How many heads of the query share one of the keys."""
        return self.query.shape[1] // max(self.key.shape[1], 1)

    @property
    def sentences(self) -> int | None:
        """How many are packed."""
        return None if self.cu_query is None else self.cu_query.shape[0] - 1

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

        key_heads = self.key.shape[1]
        if key_heads < 1 or heads % key_heads:
            raise ValueError(f"key has {key_heads} heads; expected a divisor of the query's {heads}")
        if (self.cu_query is None) != (self.cu_key is None) or (self.cu_query is not None and batch != 1):
            raise ValueError("cu_query and cu_key come together, and with tensors of one long sentence")

        by_row = ((batch, 1, rows), (batch, heads, rows))
        by_value = ((batch, heads, rows, value_size),)
        offsets = ((max((self.sentences or 0) + 1, 1),),)
        kinds = {
            "query": (dtype, (self.query.shape,)),
            "key": (dtype, ((batch, key_heads, keys, size),)),
            "value": (dtype, ((batch, key_heads, keys, value_size),)),
            "center": (torch.float32, by_row),
            "width": (torch.float32, by_row),
            "visible": (torch.int32, by_row),
            "first": (torch.int32, by_row),
            "cu_query": (torch.int32, offsets),
            "cu_key": (torch.int32, offsets),
            "seed": (torch.int64, ((),)),
            "grad_context": (dtype, by_value),
            "context": (dtype, by_value),
            "logsumexp": (torch.float32, by_row[1:]),
            "grad_logsumexp": (torch.float32, by_row[1:]),
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
                found |= {name: x, f"{name}_strides": self.strides(x)}
        for name in ("center", "width", "visible", "first"):
            x = getattr(self, name)
            found |= {name: x, f"{name}_strides": None if x is None else self.strides(x)}
        return found

    def strides(self, x: Tensor) -> tuple[int, int, int]:
        """Of a sentence, a head and a row of [B, H, N, …]; of packed sentences see `memory`."""
        # heads that share a row all read the one there is
        per_head = x.stride(1) if x.shape[1] > 1 else 0
        return x.stride(0) if self.cu_query is None else x.stride(2), per_head, x.stride(2)

    def packing(self) -> dict[str, Any]:
        return {"cu_query": self.cu_query, "cu_key": self.cu_key, "sentences": self.sentences}

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
        found = {"PRIOR": self.prior, "WINDOW": self.first is not None, "GROUP": self.group}
        found |= {"HEAD_SIZE": size, "HEAD_BLOCK": padded(size)}
        if self.value is not None:
            value_size = self.value.shape[3]
            found |= {"VALUE_SIZE": value_size, "VALUE_BLOCK": padded(value_size)}
        return found

    def tiles(self, kernel: str, part: int) -> tuple[Tile, ...]:
        """To choose from. Packed sentences count with their mean length: to look would wait for the GPU."""
        _, _, rows, keys = self.shape
        count = max(self.sentences or 1, 1)
        sizes = (self.columns, self.query.element_size(), rows // count, keys // count)
        return tile_sizes.candidates(kernel, *sizes, self.seed is not None, self.first is not None, part)

    def features(self) -> tuple:
        """What tells kernels of the same shape apart."""
        return self.prior, self.seed is not None, self.first is not None, self.group, self.sentences is not None

    def blocks(self, heads: int, length: int, block: int) -> int:
        """Programs that have a block of the rows, or the keys, of one head each."""
        if self.sentences is None:
            return self.query.shape[0] * heads * triton.cdiv(length, block)
        return heads * (length // block + self.sentences) if self.sentences else 0

    def by_group(self) -> "Problem":
        """With T = 1: the heads that share a head of keys as rows of one. [B, H_kv, GROUP, D], [B, 1 or H_kv, GROUP]"""
        key_heads = self.key.shape[1]

        def as_rows(x: Tensor) -> Tensor:
            if x.shape[1] == 1:
                return x.expand(-1, -1, self.group)
            return x[:, :, 0].unflatten(1, (key_heads, self.group))

        query = self.query[:, :, 0].unflatten(1, (key_heads, self.group))
        center, width, visible = as_rows(self.center), as_rows(self.width), as_rows(self.visible)
        first = None if self.first is None else as_rows(self.first)
        return self._replace(query=query, center=center, width=width, visible=visible, first=first)


def forward(problem: Problem, tile: Tile, context: Tensor, logsumexp: Tensor) -> Launch:
    _, heads, rows, _ = problem.shape
    outputs = {"context": context, "logsumexp": logsumexp}
    return Launch(
        forward_kernel,
        problem.blocks(heads, rows, tile.rows),
        problem.inputs() | problem.packing() | problem.dropout() | outputs | problem.sizes() | {"scale": problem.scale},
        problem.constants() | {"DROPOUT": problem.seed is not None, "ROWS": tile.rows, "KEYS": tile.keys},
        tile.warps,
        tile.stages,
    )


def backward_rows(problem: Problem, tile: Tile, saved: dict[str, Any], outputs: dict[str, Tensor]) -> Launch:
    """saved: grad_context and context with their strides, grad_logsumexp and logsumexp."""
    _, heads, rows, _ = problem.shape
    given = problem.inputs() | problem.packing() | problem.dropout() | saved
    return Launch(
        backward_rows_kernel,
        problem.blocks(heads, rows, tile.rows),
        given | outputs | problem.sizes() | {"scale": problem.scale},
        problem.constants() | {"DROPOUT": problem.seed is not None, "ROWS": tile.rows, "KEYS": tile.keys},
        tile.warps,
        tile.stages,
    )


def backward_keys(problem: Problem, tile: Tile, saved: dict[str, Any], outputs: dict[str, Tensor]) -> Launch:
    """saved: grad_context with its strides, logsumexp, and row_sums as `backward_rows` wrote them."""
    keys = problem.shape[3]
    tiles = {"ROWS": tile.rows, "KEYS": tile.keys, "SCAN": SCANNED_ROWS}
    given = problem.inputs() | problem.packing() | problem.dropout() | saved
    return Launch(
        backward_keys_kernel,
        problem.blocks(problem.key.shape[1], keys, tile.keys),
        given | outputs | problem.sizes() | {"scale": problem.scale},
        problem.constants() | {"DROPOUT": problem.seed is not None} | tiles,
        tile.warps,
        tile.stages,
    )


def weights(problem: Problem, tile: Tile, output: Tensor) -> Launch:
    _, heads, rows, _ = problem.shape
    return Launch(
        weights_kernel,
        problem.blocks(heads, rows, tile.rows),
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
    key_heads = problem.key.shape[1]
    parts, part = parts_of_source(batch, key_heads, keys)
    split = parts > 1
    whole = {"context": context, "logsumexp": logsumexp}
    partial = dict.fromkeys(("part_sums", "part_largest", "part_total"))
    if split:
        shape = (batch * heads, parts)
        partial["part_sums"] = logsumexp.new_empty(*shape, context.shape[3])
        partial["part_largest"], partial["part_total"] = logsumexp.new_empty(shape), logsumexp.new_empty(shape)
    given = problem.inputs() if problem.group == 1 else problem.by_group().inputs()
    sizes = {"heads": key_heads, "keys": keys, "part": part, "parts": parts, "scale": problem.scale}
    constants = problem.constants() | {"SPLIT": split, "KEYS": DECODE_KEYS}
    if problem.group > 1:
        constants["ROWS"] = max(triton.next_power_of_2(problem.group), SMALLEST_BLOCK)
    step = Launch(
        decode_kernel if problem.group == 1 else decode_group_kernel,
        batch * key_heads * parts,
        given | (dict.fromkeys(whole) if split else whole) | partial | sizes,
        constants,
        4,
        2,
    )
    if not split:
        return (step,)
    sight = {name: x for name, x in problem.inputs().items() if name.startswith(("visible", "first"))}
    join = Launch(
        join_kernel,
        batch * heads,
        partial | sight | whole | {"heads": heads, "keys": keys, "parts": parts},
        {"PARTS": triton.next_power_of_2(parts)}
        | {name: x for name, x in problem.constants().items() if name.startswith("VALUE")},
        4,
        1,
    )
    return step, join


def on_device(x: Tensor) -> contextlib.AbstractContextManager:
    """Kernels are launched on the current device, which need not be the tensors'."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()
