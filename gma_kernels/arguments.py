"""Checks of the public functions' arguments, which name the one to put right, and their form for the operators."""

import math
import numbers

import torch
from torch import Tensor

from gma_kernels.contract import DTYPES, LARGEST_HEAD, PRIORS, accumulation_dtype


def explain_refusal(*tensors: Tensor) -> None:
    """Raise what `check_tensors` says of a call that the kernels refused, in place of the kernels' own error."""
    try:
        check_tensors(*tensors)
    except (TypeError, ValueError) as error:
        raise error from None


def check_tensors(query: Tensor, key: Tensor, center: Tensor, width: Tensor, visible: Tensor, *values: Tensor) -> None:
    """Refuse tensors that do not fit together. `values` is the value, or nothing where only weights are computed."""
    batch, heads, rows, size = _checked_shape("query", query, "[B, H, T, D]")
    dtype, device = query.dtype, query.device
    if dtype not in DTYPES:
        raise TypeError(f"query has dtype {dtype}; expected one of {', '.join(map(str, DTYPES))}")
    if not heads:
        raise ValueError(f"query has shape {tuple(query.shape)}; expected at least one head in [B, H, T, D]")
    _check_head_size("query has D", size)

    key_batch, key_heads, keys, key_size = _checked_shape("key", key, "[B, H, S, D]")
    _check_kind("key", key, dtype, device, query)
    if (key_batch, key_heads, key_size) != (batch, heads, size):
        raise ValueError(f"key has shape {tuple(key.shape)}; expected [{batch}, {heads}, S, {size}] to fit query")
    for value in values:
        *value_outer, value_size = _checked_shape("value", value, "[B, H, S, Dv]")
        _check_kind("value", value, dtype, device, query)
        if value_outer != [batch, heads, keys]:
            raise ValueError(
                f"value has shape {tuple(value.shape)}; expected [{batch}, {heads}, {keys}, Dv] to fit query and key"
            )
        _check_head_size("value has Dv", value_size)

    real = accumulation_dtype(dtype)
    for name, x, expected in (("center", center, real), ("width", width, real), ("visible", visible, torch.int32)):
        check_is_tensor(name, x)
        shape = x.shape
        if len(shape) != 3 or shape[0] != batch or shape[1] not in (1, heads) or shape[2] != rows:
            per_head = heads if heads == 1 else f"1 or {heads}"
            raise ValueError(
                f"{name} has shape {tuple(shape)}; expected 3 dimensions [{batch}, {per_head}, {rows}] to fit query"
            )
        _check_kind(name, x, expected, device, query)


def _checked_shape(name: str, x: Tensor, layout: str) -> torch.Size:
    check_is_tensor(name, x)
    shape = x.shape
    if len(shape) != 4:
        raise ValueError(f"{name} has shape {tuple(shape)}; expected 4 dimensions {layout}")
    if x.layout != torch.strided:
        raise TypeError(f"{name} has layout {x.layout}; expected a dense tensor: pass {name}.to_dense()")
    if x.stride()[3] != 1 and shape[3] > 1:
        raise ValueError(f"{name} has last stride {x.stride(3)}; expected 1: pass {name}.contiguous()")
    return shape


def check_is_tensor(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; expected a torch.Tensor")


def _check_head_size(what: str, size: int) -> None:
    if not 1 <= size <= LARGEST_HEAD:
        raise ValueError(f"{what} = {size}; expected 1 to {LARGEST_HEAD}: split it over more heads")


def _check_kind(name: str, x: Tensor, dtype: torch.dtype, device: torch.device, query: Tensor) -> None:
    if x.dtype != dtype:
        raise TypeError(f"{name} has dtype {x.dtype}; expected {dtype} for a query of {query.dtype}")
    if x.device != device:
        raise ValueError(f"{name} is on {x.device}; expected {device} like query")
    if x.layout != torch.strided:
        raise TypeError(f"{name} has layout {x.layout}; expected a dense tensor: pass {name}.to_dense()")


def prior_and_scale(query: Tensor, prior: str, scale: float | None) -> tuple[int, float]:
    """The prior's number and the scale to use."""
    if prior not in PRIORS:
        raise ValueError(f"prior is {prior!r}; expected one of {', '.join(map(repr, PRIORS))}")
    if scale is None:
        return PRIORS.index(prior), query.shape[3] ** -0.5
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
