"""The public functions: they validate, choose a backend and call its operator."""

import math
import numbers

import torch
from torch import Tensor
from torch.compiler import is_compiling

from gma_kernels.backends import choose_backend
from gma_kernels.ops import operators_of
from gma_kernels.reference import PRIORS, accumulation_dtype

LARGEST_HEAD = 256
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def gaussian_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    *,
    prior: str = "gaussian",
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attention with a learned position prior: softmax_j(scale · q·k_j + log prior(j; center, width)) @ value.

    Row i sees the source positions j = 1 … visible_i and nothing else. One that sees nothing gives zeros, and NaN in
    its query, center, width or gradient spoils nothing.
    Differentiable in query, key, value, center and width.

    Args:
        query: [B, H, T, D]. float32, float16, bfloat16 or float64; key and value have the same dtype.
        key: [B, H, S, D]. Any outer strides, last stride 1; so for query and value.
        value: [B, H, S, Dv]. What no row sees, of key and value, may hold anything; what some row sees must be finite,
            or may spoil other rows of its head.
        center: [B, 1 or H, T]. Aligned source position of each row, 1-based; 1 = shared by the heads.
            float32, or float64 if query is; so for width.
        width: [B, 1 or H, T]. Standard deviation of the prior, positive.
        visible: int32 [B, 1 or H, T]. How many leading source positions each row may use; more than S counts as S.
            Padding is expressed here: right-padded keys by the sentence length, padded rows by 0.
        prior: 'gaussian' −½((j−c)/w)²; 'laplace' −√2·|j−c|/w (the Gaussian's standard deviation); 'linear'
            log max(2⁻¹⁰, 1 − |j−c|/(2w)); 'none'. Laplace and linear are our reading of the paper's ablation, which
            does not define them. Widths below 2⁻⁴⁰ act as 2⁻⁴⁰.
        scale: factor of the dot products; None means D^−½.
        dropout_p: probability of dropping a normalised weight.
        seed: of the dropout; an int, a 0-d int64 tensor on query's device, or None to draw one from torch.
        backend: 'auto', or the name of one to be used or refused; see `backends()`.

    Returns:
        [B, H, T, Dv], dense in [B, T, H, Dv] memory. Where that is big, native reuses the memory of outputs that
        nobody holds any more: it keeps up to 256 MB of it, or what the environment variable GMA_POOL_MB says, and
        such an output cannot be resized in place.
    """
    _check_is_tensor("query", query)
    name = choose_backend(backend, query.device, query.dtype)
    # the extension's kernels check all tensors themselves, and a decoding step would feel a second time
    checked_by_kernel = name in ("native", "cuda") and type(query) is Tensor and not is_compiling()
    if not checked_by_kernel:
        _check_tensors(query, key, center, width, visible, value)
    try:
        index, scale = _check_settings(query, prior, scale)
        drop_seed = _dropout_seed(query, dropout_p, seed)
        forward = operators_of(name).forward
        return forward(query, key, value, center, width, visible, drop_seed, index, scale, float(dropout_p))[0]
    except Exception:
        if checked_by_kernel:
            _explain_refusal(query, key, center, width, visible, value)
        raise


def attention_weights(
    query: Tensor,
    key: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    *,
    prior: str = "gaussian",
    scale: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """The weights `gaussian_attention` uses, before dropout: [B, H, T, S] in query's dtype, 0 past `visible`.

    For looking at and for losses on alignments: differentiable, and of size T×S by nature. Arguments as there.
    """
    _check_tensors(query, key, center, width, visible)
    index, scale = _check_settings(query, prior, scale)
    operators = operators_of(choose_backend(backend, query.device, query.dtype))
    return operators.weights(query, key, center, width, visible, index, scale)


def _explain_refusal(*tensors: Tensor) -> None:
    """Raise what `_check_tensors` has to say about a call the kernels refused, in its place."""
    try:
        _check_tensors(*tensors)
    except (TypeError, ValueError) as error:
        raise error from None


def _check_tensors(query: Tensor, key: Tensor, center: Tensor, width: Tensor, visible: Tensor, *values: Tensor) -> None:
    """`values` is the value, where there is one."""
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
        _check_is_tensor(name, x)
        shape = x.shape
        if len(shape) != 3 or shape[0] != batch or shape[1] not in (1, heads) or shape[2] != rows:
            per_head = heads if heads == 1 else f"1 or {heads}"
            raise ValueError(
                f"{name} has shape {tuple(shape)}; expected 3 dimensions [{batch}, {per_head}, {rows}] to fit query"
            )
        _check_kind(name, x, expected, device, query)


def _checked_shape(name: str, x: Tensor, layout: str) -> torch.Size:
    _check_is_tensor(name, x)
    shape = x.shape
    if len(shape) != 4:
        raise ValueError(f"{name} has shape {tuple(shape)}; expected 4 dimensions {layout}")
    if x.layout != torch.strided:
        raise TypeError(f"{name} has layout {x.layout}; expected a dense tensor: pass {name}.to_dense()")
    if x.stride()[3] != 1 and shape[3] > 1:
        raise ValueError(f"{name} has last stride {x.stride(3)}; expected 1: pass {name}.contiguous()")
    return shape


def _check_is_tensor(name: str, x: Tensor) -> None:
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


def _check_settings(query: Tensor, prior: str, scale: float | None) -> tuple[int, float]:
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


def _dropout_seed(query: Tensor, dropout_p: float, seed: int | Tensor | None) -> Tensor | None:
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
