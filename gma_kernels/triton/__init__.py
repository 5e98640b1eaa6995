"""The Triton backend: the kernels of the operators triton_forward, triton_backward, triton_weights, triton_general_….

Importing this package imports triton. `gma_kernels.registry` does so at the first call of one of the operators, also
one from an exported program.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

from gma_kernels.contract import check_offsets, check_values
from gma_kernels.triton import launch, tile_sizes
from gma_kernels.triton.launch import Problem

# decided by the environment variable TRITON_INTERPRET, before triton is imported
INTERPRETED = triton.knobs.runtime.interpret


def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Context [B, H, T, Dv], dense in [B, T, H, Dv] memory, and logsumexp [B, H, T]."""
    plain = (*arguments[:6], None, None, None, *arguments[6:])
    return general_forward(*plain)


def general_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    first: Tensor | None,
    cu_query: Tensor | None,
    cu_key: Tensor | None,
    seed: Tensor | None,
    prior: int,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    """The same."""
    settings = (seed, prior, scale, dropout_p)
    problem = _checked(Problem(query, key, value, center, width, visible, *settings, first, cu_query, cu_key))
    batch, heads, rows, _ = problem.shape
    context = _rows_before_heads(query, batch, heads, rows, value.shape[3])
    logsumexp = query.new_empty(batch, heads, rows, dtype=torch.float32)
    with launch.on_device(query):
        if rows == 1 and seed is None and cu_query is None:
            for step in launch.decode(problem, context, logsumexp):
                step.run()
        else:
            _run("forward", problem, lambda tile: launch.forward(problem, tile, context, logsumexp))
    return context, logsumexp


def backward(grad_context: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """Gradients of query, key, value, center and width; those of shared rows are summed over the heads."""
    plain = (*arguments[:6], None, None, None, *arguments[6:])
    return general_backward(grad_context, None, *plain)


def general_backward(
    grad_context: Tensor,
    grad_logsumexp: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    first: Tensor | None,
    cu_query: Tensor | None,
    cu_key: Tensor | None,
    seed: Tensor | None,
    context: Tensor,
    logsumexp: Tensor,
    prior: int,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, ...]:
    """The same."""
    results = {"grad_context": grad_context, "context": context}
    # autograd hands over expanded and transposed gradients
    results = {name: x if x.stride()[3:] == (1,) else x.contiguous() for name, x in results.items()}
    settings = (seed, prior, scale, dropout_p)
    problem = Problem(query, key, value, center, width, visible, *settings, first, cu_query, cu_key)
    of_logsumexp = {} if grad_logsumexp is None else {"grad_logsumexp": grad_logsumexp}
    problem = _checked(problem, **results, logsumexp=logsumexp, **of_logsumexp)
    grad_context, context = results.values()
    grad_query, grad_key, grad_value = (_rows_before_heads(x, *x.shape) for x in (query, key, value))
    by_center, by_width, row_sums = (logsumexp.new_empty(logsumexp.shape) for _ in range(3))
    of_output = {
        "grad_context": grad_context,
        "grad_context_strides": problem.strides(grad_context),
        "logsumexp": logsumexp.contiguous(),
    }
    of_rows = of_output | {"context": context, "context_strides": problem.strides(context)}
    of_rows["grad_logsumexp"] = None if grad_logsumexp is None else grad_logsumexp.contiguous()
    row_outputs = {"grad_query": grad_query, "grad_center": by_center, "grad_width": by_width, "row_sums": row_sums}
    of_keys = of_output | {"row_sums": row_sums}
    key_outputs = {"grad_key": grad_key, "grad_value": grad_value}
    with launch.on_device(query):
        _run("backward_rows", problem, lambda tile: launch.backward_rows(problem, tile, of_rows, row_outputs))
        _run("backward_keys", problem, lambda tile: launch.backward_keys(problem, tile, of_keys, key_outputs))
    return grad_query, grad_key, grad_value, _sum_shared(by_center, center), _sum_shared(by_width, width)


def weights(
    query: Tensor, key: Tensor, center: Tensor, width: Tensor, visible: Tensor, prior: int, scale: float
) -> Tensor:
    """The posterior β, [B, H, T, S]."""
    return general_weights(query, key, center, width, visible, None, prior, scale)


def general_weights(
    query: Tensor,
    key: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    first: Tensor | None,
    prior: int,
    scale: float,
) -> Tensor:
    """The same."""
    problem = _checked(Problem(query, key, None, center, width, visible, None, prior, scale, 0.0, first))
    output = query.new_empty(problem.shape)
    with launch.on_device(query):
        _run("weights", problem, lambda tile: launch.weights(problem, tile, output))
    return output


def _checked(problem: Problem, **results: Tensor) -> Problem:
    if not problem.query.is_cuda and not INTERPRETED:
        raise RuntimeError(
            f"backend 'triton' was given {problem.query.device} tensors; move them to a GPU, use backend='auto', or "
            "set TRITON_INTERPRET=1 before triton is imported to run the kernels in Triton's interpreter"
        )
    problem.check(**results)
    check_values(problem.center, problem.width, problem.visible, problem.first)
    if problem.cu_query is not None and problem.cu_key is not None:
        check_offsets("cu_query", problem.cu_query, problem.query.shape[2], "query")
        check_offsets("cu_key", problem.cu_key, problem.key.shape[2], "key")
        problem = problem._replace(cu_query=problem.cu_query.contiguous(), cu_key=problem.cu_key.contiguous())
    return problem


def _run(kernel: str, problem: Problem, make: Callable[[tile_sizes.Tile], launch.Launch]) -> None:
    """Prepared once, but when tiles are measured."""
    options = problem.tiles(kernel, tile_sizes.part_of(problem.query.device))
    if tile_sizes.measures(options) and make(options[0]).programs:
        key = (problem.query.device, kernel, problem.columns, problem.query.dtype, options, *problem.features())
        options = (tile_sizes.fastest(key, options, lambda tile: make(tile).run()),)
    make(options[0]).run()


def _rows_before_heads(like: Tensor, batch: int, heads: int, rows: int, size: int) -> Tensor:
    return like.new_empty(batch, rows, heads, size).transpose(1, 2)


def _sum_shared(grad: Tensor, like: Tensor) -> Tensor:
    return grad.sum(dim=1, keepdim=True) if like.shape[1] < grad.shape[1] else grad
