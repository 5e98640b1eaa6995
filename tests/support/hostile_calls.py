"""Calls of the torch operators with impossible arguments."""

from collections.abc import Callable, Iterator
from typing import Any

import torch


def hostile_calls(backend: str) -> Iterator[tuple[str, Callable, list[Any]]]:
    """(description, operator, arguments) of every hostile call."""
    good = {
        "query": torch.randn(2, 3, 5, 4),
        "key": torch.randn(2, 3, 7, 4),
        "value": torch.randn(2, 3, 7, 6),
        "center": torch.ones(2, 1, 5),
        "width": torch.ones(2, 1, 5),
        "visible": torch.full((2, 1, 5), 7, dtype=torch.int32),
        "seed": None,
        "grad_context": torch.randn(2, 3, 5, 6),
        "context": torch.randn(2, 3, 5, 6),
        "logsumexp": torch.zeros(2, 3, 5),
        "prior": 0,
        "scale": 0.5,
        "dropout_p": 0.0,
    }
    inputs = ("query", "key", "value", "center", "width", "visible", "seed")
    settings = ("prior", "scale", "dropout_p")
    signatures = {
        "forward": (*inputs, *settings),
        "backward": ("grad_context", *inputs, "context", "logsumexp", *settings),
        "weights": ("query", "key", "center", "width", "visible", "prior", "scale"),
    }
    bounds = ("first", "cu_query", "cu_key")
    general_inputs = (*inputs[:6], *bounds, "seed")
    signatures |= {
        "general_forward": (*general_inputs, *settings),
        "general_backward": (
            "grad_context", "grad_logsumexp", *general_inputs, "context", "logsumexp", *settings,
        ),
        "general_weights": ("query", "key", "center", "width", "visible", "first", "prior", "scale"),
    }  # fmt: skip
    good |= dict.fromkeys((*bounds, "grad_logsumexp"))
    int32 = torch.int32
    changes = [
        {"query": torch.tensor(1.0)},
        {"query": torch.randn(2, 3, 5, 3)},
        {"key": torch.randn(2, 3, 7, 9)},
        {"key": torch.randn(7, 4)},
        {"key": torch.randn(2, 2, 7, 4)},
        {"key": torch.randn(4, 3, 7, 4)},
        {"value": torch.randn(2, 3, 3, 6)},
        {"value": torch.randn(2, 3, 7)},
        {"value": torch.randn(5, 3, 7, 6)},
        {"center": torch.ones(2, 2, 5)},
        {"center": torch.ones(2, 1, 4)},
        {"center": torch.ones(3, 1, 5)},
        {"width": torch.ones(2, 1, 9)},
        {"width": torch.ones(7)},
        {"visible": torch.ones(2, 1, 3, dtype=int32)},
        {"visible": torch.ones(2, 2, 5, dtype=int32)},
        {"prior": 4},
        {"prior": 2**40},
        {"prior": -7},
    ]
    for_attention = [
        {"seed": torch.tensor([1, 2, 3]), "dropout_p": 0.5},
    ]
    for_backward = [
        {"grad_context": torch.randn(2, 3, 4, 6)},
        {"grad_context": torch.randn(2, 3, 5, 2)},
        {"grad_context": torch.randn(6)},
    ]
    # shapes plain PyTorch would broadcast or never read; a kernel that indexes memory has to refuse them
    for_kernels = [
        {"query": torch.randn(5, 4)},
        {"query": torch.zeros(2, 3, 5, 4, dtype=torch.int64)},
        {"query": torch.randn(2, 3, 5, 4).double()},
        {"key": torch.randn(2, 3, 7, 4).half()},
        {"query": torch.randn(2, 3, 5, 8)[..., ::2]},
        {"query": torch.randn(2, 3, 5, 4).to_sparse()},
        {"query": torch.empty(2, 3, 5, 4, device="meta")},
        {"query": torch.randn(2, 3, 5, 300), "key": torch.randn(2, 3, 7, 300)},
        {"key": torch.randn(1, 1, 7, 4)},
        {"key": torch.empty(2, 3, 7, 4, device="meta")},
        {"key": torch.randn(2, 3, 7, 8)[..., ::2]},
        {"center": torch.ones(2, 1, 5).double()},
        {"center": torch.ones(2, 1, 5, dtype=torch.int64)},
        {"center": torch.ones(())},
        {"center": torch.ones(2, 1, 5).to_sparse()},
        {"width": torch.ones(1, 1, 1)},
        {"width": torch.ones(2, 1, 5).half()},
        {"visible": torch.ones(2, 1, 5, dtype=torch.int64)},
        {"visible": torch.ones(2, 1, 5)},
        {"visible": torch.ones((), dtype=int32)},
        {"visible": torch.empty(2, 1, 5, dtype=int32, device="meta")},
    ]
    kernel_attention = [
        {"value": torch.randn(2, 3, 7, 6).double()},
        {"value": torch.randn(1, 1, 7, 6)},
        {"value": torch.empty(2, 3, 7, 6, device="meta")},
        {"value": torch.randn(2, 3, 7, 400)},
        {"seed": torch.tensor(1.5), "dropout_p": 0.5},
        {"seed": torch.tensor(1, dtype=int32), "dropout_p": 0.5},
        {"seed": torch.tensor(1), "dropout_p": 1.0},
        {"seed": torch.tensor(1), "dropout_p": float("nan")},
        {"seed": None, "dropout_p": 0.5},
    ]
    kernel_backward = [
        {"context": torch.randn(2, 3, 1, 6)},
        {"context": torch.randn(())},
        {"logsumexp": torch.zeros(2, 3, 1)},
        {"logsumexp": torch.zeros(2, 3, 5).double()},
        {"grad_context": torch.randn(2, 3, 5, 6).double()},
        {"grad_context": torch.empty(2, 3, 5, 6, device="meta")},
    ]
    for_first = [
        {"first": x}
        for x in (
            torch.zeros(2, 2, 5, dtype=int32),
            torch.zeros(2, 1, 4, dtype=int32),
            torch.zeros(3, 1, 5, dtype=int32),
            torch.zeros(2, 3, 6, dtype=int32),
            torch.zeros(5, dtype=int32),
            torch.zeros((), dtype=int32),
            torch.zeros(0, 1, 5, dtype=int32),
            torch.zeros(2, 0, 5, dtype=int32),
            torch.zeros(2, 1, 5, 1, dtype=int32),
            torch.zeros(2, 1, 5),
            torch.zeros(2, 1, 5, dtype=torch.int64),
            torch.zeros(2, 1, 5, dtype=torch.int16),
            torch.zeros(2, 1, 5, dtype=torch.bool),
            torch.zeros(2, 1, 5, dtype=int32).to_sparse(),
            torch.empty(2, 1, 5, dtype=int32, device="meta"),
            torch.full((2, 1, 5), -1, dtype=int32),
            torch.full((2, 3, 5), -(2**31), dtype=int32),
        )
    ]
    good_ends = {"cu_query": (0, 2, 5), "cu_key": (0, 7, 7)}
    one = {name: x[:1] for name, x in good.items() if isinstance(x, torch.Tensor)}

    def packed(**ends: Any) -> dict[str, Any]:
        return one | {name: torch.tensor(x, dtype=int32) for name, x in good_ends.items()} | ends

    lengths = {"cu_query": 5, "cu_key": 7}
    for_packed = [
        packed(**{name: bad})
        for name, length in lengths.items()
        for bad in (
            None,
            torch.tensor([], dtype=int32),
            torch.tensor(0, dtype=int32),
            torch.tensor([[0, length]], dtype=int32),
            torch.tensor([0, length], dtype=int32),  # of another number of sentences
            torch.tensor([0, 1, 2, length], dtype=int32),
            torch.tensor([0.0, 2.0, length]),
            torch.tensor([0, 2, length], dtype=torch.int64),
            torch.tensor([0, 2, length], dtype=int32).to_sparse(),
            torch.empty(3, dtype=int32, device="meta"),
        )
    ]
    # only on the CPU somebody looks
    packed_values = [
        packed(**{name: torch.tensor(bad, dtype=int32)})
        for name, length in lengths.items()
        for bad in (
            (0, 2, length - 1),
            (0, 2, length + 1),
            (0, 2, 2**31 - 1),
            (0, length + 3, length),
            (0, -1, length),
            (-(2**31), 2**31 - 1, length),
            (1, 2, length),
            (-1, 2, length),
        )
    ]
    with_gaps = {name: torch.tensor([0, 9, 2, 9, length], dtype=int32)[::2] for name, length in lengths.items()}
    packed_values += [packed(**{name: x}) for name, x in with_gaps.items()]
    for_packed.append({name: torch.tensor(x, dtype=int32) for name, x in good_ends.items()})  # two batches
    for_logsumexp = [
        {"grad_logsumexp": x}
        for x in (
            torch.zeros(2, 3, 4),
            torch.zeros(2, 1, 5),
            torch.zeros(3, 3, 5),
            torch.zeros(2, 3, 5, 1),
            torch.zeros(()),
            torch.zeros(2, 3, 5).double(),
            torch.zeros(2, 3, 5).half(),
            torch.zeros(2, 3, 5, dtype=int32),
            torch.zeros(2, 3, 5).to_sparse(),
            torch.empty(2, 3, 5, device="meta"),
        )
    ]
    tables = {"weights": list(changes), "forward": changes + for_attention}
    tables["backward"] = changes + for_attention + for_backward
    if backend != "reference":
        tables["weights"] += for_kernels
        tables["forward"] += for_kernels + kernel_attention
        tables["backward"] += for_kernels + kernel_attention + kernel_backward
        tables |= {f"general_{name}": table + for_first for name, table in tables.items()}
        for_packed += packed_values if backend == "native" else []
        tables["general_forward"] += for_packed
        tables["general_backward"] += for_packed + for_logsumexp
    operators = {name: getattr(torch.ops.gma_kernels, f"{backend}_{name}").default for name in tables}
    for name, table in tables.items():
        for change in table:
            if set(change) <= set(signatures[name]):
                arguments = [{**good, **change}[argument] for argument in signatures[name]]
                yield f"{name}({', '.join(map(describe, change.items()))})", operators[name], arguments


def describe(item: tuple) -> str:
    name, x = item
    if hasattr(x, "shape"):
        return f"{name}: {x.dtype} {tuple(x.shape)} {x.layout} on {x.device}"
    return f"{name}: {x}"
