"""Packed batches in plain PyTorch: the oracle, one sentence after the other.

All tensors are those of one long sentence, [1, H, N, D] and [1, 1 or H, N]; offsets [B + 1] say which rows belong
together: sentence b has the rows cu_query[b] … cu_query[b + 1] − 1, and those of cu_key of keys and values.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gma_kernels import reference
from gma_kernels.contract import accumulation_dtype
from gma_kernels.reference import rows_before_heads


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    first: Tensor | None,
    cu_query: Tensor,
    cu_key: Tensor,
    seed: Tensor | None,
    prior: str,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    """Context [1, H, N, Dv] and logsumexp [1, H, N], each as `reference.forward` for every sentence alone."""
    # of a sentence without rows, so that a batch without sentences has results, too
    context = query.new_zeros(1, query.shape[1], 0, value.shape[3])
    parts = [(context, context.sum(dim=3, dtype=accumulation_dtype(query.dtype)))]
    for sentence, rows, keys in _sentences(cu_query, cu_key):
        q, c, w, seen, begin = _rows((query, center, width, visible, first), *rows)
        k, v = _rows((key, value), *keys)
        inputs = (q, k, v, c, w, seen, begin)
        parts.append(reference.forward(*inputs, seed, prior, scale, dropout_p, sentence))
    contexts, normalisers = zip(*parts)
    return rows_before_heads(torch.cat(contexts, dim=2)), torch.cat(normalisers, dim=2)


def backward(
    grad_context: Tensor,
    grad_logsumexp: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    first: Tensor | None,
    cu_query: Tensor,
    cu_key: Tensor,
    seed: Tensor | None,
    prior: str,
    scale: float,
    dropout_p: float,
) -> tuple[Tensor, ...]:
    """Gradients of query, key, value, center and width."""
    parts: list[tuple[Tensor, ...]] = [tuple(x[:, :, :0] for x in (query, key, value, center, width))]
    for sentence, rows, keys in _sentences(cu_query, cu_key):
        grad, of_logsumexp, q, c, w, seen, begin = _rows(
            (grad_context, grad_logsumexp, query, center, width, visible, first), *rows
        )
        k, v = _rows((key, value), *keys)
        inputs = (grad, of_logsumexp, q, k, v, c, w, seen, begin)
        parts.append(reference.backward(*inputs, seed, prior, scale, dropout_p, sentence))
    query_grad, key_grad, value_grad, *by_row = (torch.cat(grads, dim=2) for grads in zip(*parts))
    return *map(rows_before_heads, (query_grad, key_grad, value_grad)), *(x.contiguous() for x in by_row)


def _sentences(cu_query: Tensor, cu_key: Tensor) -> Iterator[tuple[int, tuple[int, int], tuple[int, int]]]:
    rows, keys = cu_query.tolist(), cu_key.tolist()
    for b in range(len(rows) - 1):
        yield b, (rows[b], rows[b + 1]), (keys[b], keys[b + 1])


def _rows(tensors: tuple[Tensor | None, ...], begin: int, end: int) -> list[Any]:
    return [None if x is None else x[:, :, begin:end] for x in tensors]
