"""Triton's interpreter, repaired and watched, for tests only.

`repair` mends three things for the whole process. bfloat16: the interpreter holds it as 16-bit integers, converts it by
cutting digits off and multiplies the integers; here it is rounded to nearest and multiplied as the numbers it stands
for, and any other arithmetic on it is refused. Matrix products: numpy sums in whatever order is fastest; here products
are exact and summed in order, one by one in float32 as Triton's fused multiply-adds are, or sixteen at a time for
16-bit operands as on tensor cores, so that a product and its transpose have the same bits as they should have there.
Speed: the language is patched once, not anew at every call of a function, which took most of the time.

`watch` checks every access of the launches inside it.
"""

import contextlib
import functools
import types
from collections.abc import Iterator

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

TENSOR_CORE_DEPTH = 16
Handle = interpreter.TensorHandle
Builder = interpreter.InterpreterBuilder


def bfloat16_to_float32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(x: np.ndarray) -> np.ndarray:
    """The bits of x rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded).reshape(np.shape(x))


def ordered_product(a: np.ndarray, b: np.ndarray, total: np.ndarray, depth: int) -> np.ndarray:
    """total + a @ b in float32, `depth` exact products at a time. Matrices, or stacks of them."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    for k in range(0, a.shape[-1], depth):
        step = a[..., k : k + depth] @ b[..., k : k + depth, :]
        total = (total + step).astype(np.float32)
    return total


@functools.cache
def repair() -> None:
    """Mend the interpreter. Once is enough."""
    cast, binary, unary = Builder.cast_impl, Builder.binary_op, Builder.unary_op

    def cast_impl(self, source: Handle, target) -> Handle:
        before, after = source.dtype.scalar, target.scalar
        if before == after or tl.bfloat16 not in (before, after):
            return cast(self, source, target)
        if after == tl.bfloat16:
            return Handle(float32_to_bfloat16(source.data.astype(np.float32)), tl.bfloat16)
        return Handle(bfloat16_to_float32(source.data).astype(interpreter._get_np_dtype(target)), after)

    def binary_op(self, left: Handle, right: Handle, operation) -> Handle:
        assert tl.bfloat16 not in (left.dtype.scalar, right.dtype.scalar), f"{operation} of bfloat16"
        return binary(self, left, right, operation)

    def unary_op(self, x: Handle, operation) -> Handle:
        assert x.dtype.scalar != tl.bfloat16, f"{operation} of bfloat16"
        return unary(self, x, operation)

    def create_dot(self, a: Handle, b: Handle, total: Handle, precision, imprecise) -> Handle:
        assert "IEEE" in str(precision), f"product with {precision}"
        assert min(*a.data.shape[-2:], *b.data.shape[-2:]) >= 16, "the compiler refuses products of blocks below 16"
        left, right = (bfloat16_to_float32(x.data) if x.dtype.scalar == tl.bfloat16 else x.data for x in (a, b))
        depth = 1 if a.dtype.scalar == tl.float32 else TENSOR_CORE_DEPTH
        return Handle(ordered_product(left, right, total.data, depth), total.dtype.scalar)

    # on the CPU the kernels have written to the tensors themselves
    interpreter.GridExecutor._restore_args_dev = lambda *_: None
    everything = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    interpreter._patch_lang(everything)
    interpreter._patch_lang = lambda function: interpreter._LangPatchScope()
    Builder.cast_impl, Builder.binary_op, Builder.unary_op = cast_impl, binary_op, unary_op
    Builder.create_dot = create_dot
    Builder.create_fp_to_fp = lambda self, source, target, rounding: cast_impl(self, source, target)


class Watch:
    """The accesses of all launches: which addresses were read and written, and by which program of which launch."""

    def __init__(self) -> None:
        self.launches = 0
        self.races = False  # whether they are allowed
        self.addresses = np.empty(0, dtype=np.int64)
        self.writer: dict[int, tuple] = {}
        # the first program of the last launch that read it, and whether another did, too
        self.readers: dict[int, tuple[tuple, bool]] = {}

    def begin(self, tensors: list[torch.Tensor]) -> None:
        """A launch that may touch the elements of these tensors and nothing else."""
        self.launches += 1
        self.addresses = np.unique(np.concatenate([element_addresses(x) for x in tensors]))

    def access(self, kind: str, pointers: Handle, mask: np.ndarray, program: tuple) -> None:
        shape = np.broadcast_shapes(pointers.data.shape, mask.shape)
        touched = np.broadcast_to(pointers.data, shape)[np.broadcast_to(mask, shape).astype(bool)].astype(np.int64)
        if touched.size == 0:
            return
        found = self.addresses[np.minimum(np.searchsorted(self.addresses, touched), self.addresses.size - 1)]
        outside = int((found != touched).sum())
        assert not outside, f"{outside} of {touched.size} elements of a {kind} are outside every tensor"
        if self.races:
            return
        who = (self.launches, program)
        if kind == "load":
            for address in touched.tolist():
                writer = self.writer.get(address, who)
                assert writer == who or writer[0] < self.launches, "a program reads what another writes"
                first, shared = self.readers.get(address, (who, False))
                known = first[0] == self.launches
                self.readers[address] = (first, shared or first != who) if known else (who, False)
            return
        assert np.unique(touched).size == touched.size, "two lanes write one element"
        for address in touched.tolist():
            assert self.writer.setdefault(address, who) == who, "two programs write one element"
            first, shared = self.readers.get(address, (who, False))
            assert first[0] < self.launches or (first == who and not shared), "a program writes what another has read"

    def wrote(self, x: torch.Tensor) -> bool:
        """Whether every element of x has been written."""
        return all(address in self.writer for address in element_addresses(x).tolist())

    def of(self, x: torch.Tensor) -> set[int]:
        """The addresses of all elements of x."""
        return set(element_addresses(x).tolist())

    def has_read(self, x: torch.Tensor) -> bool:
        """Whether any element of x has been read."""
        return not self.readers.keys().isdisjoint(element_addresses(x).tolist())


def element_addresses(x: torch.Tensor) -> np.ndarray:
    """The address of every element."""
    offsets = np.zeros(1, dtype=np.int64)
    for size, stride in zip(x.shape, x.stride()):
        offsets = (offsets[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return x.data_ptr() + offsets * x.element_size()


@contextlib.contextmanager
def watch() -> Iterator[Watch]:
    """Fail when a launch touches anything but elements of its own tensors, or two programs touch what one writes."""
    watched = Watch()
    load, store = Builder.create_masked_load, Builder.create_masked_store
    arguments = interpreter.GridExecutor._init_args_hst

    def program(builder) -> tuple:
        return tuple(int(x) for x in builder.grid_idx)

    def checked_load(self, pointers, mask, *rest):
        watched.access("load", pointers, mask.data, program(self))
        return load(self, pointers, mask, *rest)

    def checked_store(self, pointers, value, mask, *rest):
        watched.access("store", pointers, mask.data, program(self))
        return store(self, pointers, value, mask, *rest)

    def noted_arguments(self, positional, named):
        watched.begin([x for x in (*positional, *named.values()) if isinstance(x, torch.Tensor)])
        return arguments(self, positional, named)

    Builder.create_masked_load, Builder.create_masked_store = checked_load, checked_store
    interpreter.GridExecutor._init_args_hst = noted_arguments
    try:
        yield watched
    finally:
        Builder.create_masked_load, Builder.create_masked_store = load, store
        interpreter.GridExecutor._init_args_hst = arguments
