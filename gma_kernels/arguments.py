"""Checks of the public functions' arguments, which name the one to put right, and their form for the operators."""

import math
import numbers
from collections.abc import Iterator

import torch
from torch import Tensor

from gma_kernels.contract import DTYPES, LARGEST_HEAD, PRIORS, accumulation_dtype


def explain_refusal(*tensors: Tensor) -> None:
    """Raise what `check_tensors` says of a call that the kernels refused, in place of the kernels' own error."""
    try:
        check_tensors(*tensors)
    except (TypeError, ValueError) as error:
        raise error from None


def check_tensors(
    query: Tensor,
    key: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    *values: Tensor,
    first: Tensor | None = None,
) -> None:
    """Refuse tensors that do not fit together. `values` is the value, or nothing where only weights are computed."""
    batch, heads, rows, size = _checked_query(query, ("B", "H", "T", "D"))

    key_batch, key_heads, keys, key_size = _checked_shape("key", key, ("B", "H_kv", "S", "D"))
    _check_kind("key", key, query)
    if (key_batch, key_size) != (batch, size) or not _divides(key_heads, heads):
        fitting = f"[{batch}, {_heads_of_keys(heads)}, S, {size}]"
        raise ValueError(f"key has shape {tuple(key.shape)}; expected {fitting} to fit query")
    for value in values:
        *value_outer, value_size = _checked_shape("value", value, ("B", "H_kv", "S", "Dv"))
        _check_kind("value", value, query)
        if value_outer != [batch, key_heads, keys]:
            expected = f"[{batch}, {key_heads}, {keys}, Dv]"
            raise ValueError(f"value has shape {tuple(value.shape)}; expected {expected} to fit query and key")
        _check_head_size("value has Dv", value_size)

    for name, x, dtype in _of_rows(query, center, width, visible, first):
        shape = x.shape
        if len(shape) != 3 or shape[0] != batch or shape[1] not in (1, heads) or shape[2] != rows:
            expected = f"3 dimensions [{batch}, {_per_head(heads)}, {rows}]"
            raise ValueError(f"{name} has shape {tuple(shape)}; expected {expected} to fit query")
        _check_kind(name, x, query, dtype)


def check_packed_tensors(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    first: Tensor | None,
    cu_query: Tensor,
    cu_key: Tensor,
) -> None:
    """The same of a packed batch."""
    rows, heads, size = _checked_query(query, ("N", "H", "D"))
    keys, key_heads, key_size = _checked_shape("key", key, ("M", "H_kv", "D"))
    _check_kind("key", key, query)
    if key_size != size or not _divides(key_heads, heads):
        fitting = f"[M, {_heads_of_keys(heads)}, {size}]"
        raise ValueError(f"key has shape {tuple(key.shape)}; expected {fitting} to fit query")
    *value_outer, value_size = _checked_shape("value", value, ("M", "H_kv", "Dv"))
    _check_kind("value", value, query)
    if value_outer != [keys, key_heads]:
        raise ValueError(
            f"value has shape {tuple(value.shape)}; expected [{keys}, {key_heads}, Dv] to fit query and key"
        )
    _check_head_size("value has Dv", value_size)

    for name, x, dtype in _of_rows(query, center, width, visible, first):
        if x.dim() != 2 or x.shape[0] != rows or x.shape[1] not in (1, heads):
            expected = f"2 dimensions [{rows}, {_per_head(heads)}]"
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {expected} to fit query")
        _check_kind(name, x, query, dtype)
    for name, offsets in (("cu_query", cu_query), ("cu_key", cu_key)):
        check_is_tensor(name, offsets)
        if offsets.dim() != 1 or not offsets.shape[0]:
            raise ValueError(
                f"{name} has shape {tuple(offsets.shape)}; expected [sentences + 1]: 0, and where each ends"
            )
        _check_kind(name, offsets, query, torch.int32)
    if cu_key.shape != cu_query.shape:
        raise ValueError(
            f"cu_key has shape {tuple(cu_key.shape)}; expected {list(cu_query.shape)} like cu_query: as many sentences"
        )


def _of_rows(
    query: Tensor, center: Tensor, width: Tensor, visible: Tensor, first: Tensor | None
) -> Iterator[tuple[str, Tensor, torch.dtype]]:
    """What there is one number of for each row, by name, and the dtype it has to have."""
    real = accumulation_dtype(query.dtype)
    given = (("center", center, real), ("width", width, real), ("visible", visible, torch.int32))
    for name, x, dtype in given if first is None else (*given, ("first", first, torch.int32)):
        check_is_tensor(name, x)
        yield name, x, dtype


def is_grouped(query: Tensor, key: Tensor) -> bool:
    """Whether several heads of the query share one of keys and values."""
    return (
        isinstance(key, Tensor)
        and 3 <= query.dim() == key.dim() <= 4
        and key.shape[1] != query.shape[1]
        and _divides(key.shape[1], query.shape[1])
    )


def _divides(part: int, whole: int) -> bool:
    return 0 < part <= whole and whole % part == 0


def _heads_of_keys(heads: int) -> str:
    """The numbers of heads that keys may have."""
    return " or ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)


def _per_head(heads: int) -> str:
    return str(heads) if heads == 1 else f"1 or {heads}"


def _checked_query(query: Tensor, layout: tuple[str, ...]) -> torch.Size:
    shape = _checked_shape("query", query, layout)
    if query.dtype not in DTYPES:
        raise TypeError(f"query has dtype {query.dtype}; expected one of {', '.join(map(str, DTYPES))}")
    if not shape[1]:
        raise ValueError(f"query has shape {tuple(shape)}; expected at least one head in [{', '.join(layout)}]")
    _check_head_size("query has D", shape[-1])
    return shape


def _checked_shape(name: str, x: Tensor, layout: tuple[str, ...]) -> torch.Size:
    check_is_tensor(name, x)
    shape = x.shape
    if len(shape) != len(layout):
        expected = f"{len(layout)} dimensions [{', '.join(layout)}]"
        raise ValueError(f"{name} has shape {tuple(shape)}; expected {expected}")
    if x.layout != torch.strided:
        raise TypeError(f"{name} has layout {x.layout}; expected a dense tensor: pass {name}.to_dense()")
    if x.stride()[-1] != 1 and shape[-1] > 1:
        raise ValueError(f"{name} has last stride {x.stride(-1)}; expected 1: pass {name}.contiguous()")
    return shape


def check_is_tensor(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; expected a torch.Tensor")


def _check_head_size(what: str, size: int) -> None:
    if not 1 <= size <= LARGEST_HEAD:
        raise ValueError(f"{what} = {size}; expected 1 to {LARGEST_HEAD}: split it over more heads")


def _check_kind(name: str, x: Tensor, query: Tensor, dtype: torch.dtype | None = None) -> None:
    """dtype: what x has to have if not the query's."""
    expected = query.dtype if dtype is None else dtype
    if x.dtype != expected:
        raise TypeError(f"{name} has dtype {x.dtype}; expected {expected} for a query of {query.dtype}")
    if x.device != query.device:
        raise ValueError(f"{name} is on {x.device}; expected {query.device} like query")
    if x.layout != torch.strided:
        raise TypeError(f"{name} has layout {x.layout}; expected a dense tensor: pass {name}.to_dense()")


def prior_and_scale(query: Tensor, prior: str, scale: float | None) -> tuple[int, float]:
    """The prior's number and the scale to use."""
    if prior not in PRIORS:
        raise ValueError(f"prior is {prior!r}; expected one of {', '.join(map(repr, PRIORS))}")
    if scale is None:
        return PRIORS.index(prior), query.shape[-1] ** -0.5
    if not _is_number(scale):
        raise TypeError(f"scale is a {type(scale).__name__}; expected a number or None for D^-0.5")
    if not math.isfinite(scale):
        raise ValueError(f"scale is {scale}; expected a finite number or None for D^-0.5")
    return PRIORS.index(prior), float(scale)


def dropout_seed(query: Tensor, dropout_p: float, seed: int | Tensor | None) -> Tensor | None:
    """The seed as the operators take it: a 0-d int64 tensor, or None without dropout."""
    if type(dropout_p) is float and dropout_p == 0.0 and seed is None:
        return None
    if not _is_number(dropout_p):
        raise TypeError(f"dropout_p is a {type(dropout_p).__name__}; expected a number, 0 <= dropout_p < 1")
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p is {dropout_p}; expected 0 <= dropout_p < 1")
    if isinstance(seed, Tensor):
        if seed.dim() != 0 or seed.dtype != torch.int64:
            raise ValueError(f"seed has shape {tuple(seed.shape)} and dtype {seed.dtype}; expected a 0-d int64 tensor")
        if seed.device != query.device:
            raise ValueError(f"seed is on {seed.device}; expected {query.device} like query")
    elif seed is not None:
        if not isinstance(seed, numbers.Integral) or isinstance(seed, bool):
            raise TypeError(f"seed is a {type(seed).__name__}; expected an int, a 0-d int64 tensor or None")
        if not -(2**63) <= seed < 2**63:
            raise ValueError(f"seed is {seed}; expected a 64-bit integer")
    if dropout_p == 0.0:
        return None
    if seed is None:
        return torch.randint(2**63 - 1, (), device=query.device)
    if isinstance(seed, Tensor):
        return seed
    # filled on the device: copying a number there would wait for it, and cannot be captured into a CUDA graph
    return torch.full((), int(seed), dtype=torch.int64, device=query.device)


def _is_number(x: object) -> bool:
    return isinstance(x, float) or (isinstance(x, numbers.Real) and not isinstance(x, bool))
