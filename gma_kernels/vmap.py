"""Operators under torch.vmap: what is mapped over becomes more batch entries of one call, where that is the same."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def register(operator: Any, library: torch.library.Library) -> None:
    """Give an operator of ours its rule."""
    names = [argument.name for argument in operator._schema.arguments]

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        given = dict(zip(names, arguments))
        # dropout depends on a sentence's number, and packed sentences are not in batches
        alone = given.get("seed") is not None or given.get("cu_query") is not None
        results = (_one_by_one if alone else _as_batch)(operator, info.batch_size, in_dims, arguments)
        return results, 0 if isinstance(results, Tensor) else (0,) * len(results)

    torch.library.register_vmap(operator, rule, lib=library)


def _as_batch(operator: Callable, count: int, in_dims: tuple[int | None, ...], arguments: tuple) -> Any:
    def fold(x: Any, dim: int | None) -> Any:
        if not isinstance(x, Tensor):
            return x
        return (x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)

    def unfold(x: Tensor) -> Tensor:
        return x.unflatten(0, (count, x.shape[0] // count))

    found = operator(*map(fold, arguments, in_dims))
    return unfold(found) if isinstance(found, Tensor) else tuple(map(unfold, found))


def _one_by_one(operator: Callable, count: int, in_dims: tuple[int | None, ...], arguments: tuple) -> Any:
    found = [
        operator(*(x if dim is None else x.select(dim, n) for x, dim in zip(arguments, in_dims))) for n in range(count)
    ]
    return torch.stack(found) if isinstance(found[0], Tensor) else tuple(map(torch.stack, zip(*found)))
