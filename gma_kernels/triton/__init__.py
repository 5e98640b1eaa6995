"""The Triton backend: the kernels of the operators triton_forward, triton_backward and triton_weights.

Importing this package imports triton. `gma_kernels.registry` does so at the first call of one of the operators, also
one from an exported program.
"""

from collections.abc import Callable

import torch
import triton
from torch import Tensor

from gma_kernels.contract import check_values
from gma_kernels.triton import launch, tile_sizes
from gma_kernels.triton.launch import Problem

# decided by the environment variable TRITON_INTERPRET, before triton is imported
INTERPRETED = triton.knobs.runtime.interpret


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    seed: Tensor | None,
    prior: int,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    """Context [B, H, T, Dv], dense in [B, T, H, Dv] memory, and logsumexp [B, H, T]."""
    problem = _checked(Problem(query, key, value, center, width, visible, seed, prior, scale, dropout_p))
    batch, heads, rows, _ = problem.shape
    context = _rows_before_heads(query, batch, heads, rows, value.shape[3])
    logsumexp = query.new_empty(batch, heads, rows, dtype=torch.float32)
    with launch.on_device(query):
        if rows == 1 and seed is None:
            for step in launch.decode(problem, context, logsumexp):
                step.run()
        else:
            _run("forward", problem, lambda tile: launch.forward(problem, tile, context, logsumexp))
    return context, logsumexp


def backward(
    grad_context: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    seed: Tensor | None,
    context: Tensor,
    logsumexp: Tensor,
    prior: int,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, center and width; those of shared rows are summed over the heads."""
    results = {"grad_context": grad_context, "context": context}
    # autograd hands over expanded and transposed gradients
    results = {name: x if x.stride()[3:] == (1,) else x.contiguous() for name, x in results.items()}
    problem = Problem(query, key, value, center, width, visible, seed, prior, scale, dropout_p)
    problem = _checked(problem, **results, logsumexp=logsumexp)
    grad_context, context = results.values()
    grad_query, grad_key, grad_value = (_rows_before_heads(x, *x.shape) for x in (query, key, value))
    by_center, by_width, row_sums = (logsumexp.new_empty(logsumexp.shape) for _ in range(3))
    of_output = {
        "grad_context": grad_context,
        "grad_context_strides": grad_context.stride()[:3],
        "logsumexp": logsumexp.contiguous(),
    }
    of_rows = of_output | {"context": context, "context_strides": context.stride()[:3]}
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
    problem = _checked(Problem(query, key, None, center, width, visible, None, prior, scale, 0.0))
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
    check_values(problem.center, problem.width, problem.visible)
    return problem


def _run(kernel: str, problem: Problem, make: Callable[[tile_sizes.Tile], launch.Launch]) -> None:
    rows, dropout = problem.shape[2], problem.seed is not None
    options = tile_sizes.candidates(kernel, problem.columns, problem.query.element_size(), rows, dropout)
    # there is nothing to measure in a call without programs
    options = options if make(options[0]).programs else options[:1]
    key = (problem.query.device, kernel, problem.columns, problem.query.dtype, tile_sizes.bucket(rows), dropout)
    make(tile_sizes.choose(key, options, lambda tile: make(tile).run())).run()


def _rows_before_heads(like: Tensor, batch: int, heads: int, rows: int, size: int) -> Tensor:
    return like.new_empty(batch, rows, heads, size).transpose(1, 2)


def _sum_shared(grad: Tensor, like: Tensor) -> Tensor:
    return grad.sum(dim=1, keepdim=True) if like.shape[1] < grad.shape[1] else grad
