"""The public functions: they validate, choose a backend and call its operator."""

from typing import Literal, overload

import torch
from torch import Tensor
from torch.compiler import is_compiling

from gma_kernels.arguments import (
    check_is_tensor,
    check_packed_tensors,
    check_tensors,
    dropout_seed,
    explain_refusal,
    is_grouped,
    prior_and_scale,
)
from gma_kernels.backends import FEATURES_OF, choose_backend
from gma_kernels.logsumexp import ContextAndLogsumexp, whole_logsumexp
from gma_kernels.registry import operators_of

WITHOUT_GROUPS = frozenset(name for name, features in FEATURES_OF.items() if "grouped heads" not in features)


@overload
def gaussian_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    *,
    first: Tensor | None = None,
    prior: str = "gaussian",
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor | None = None,
    return_logsumexp: Literal[False] = False,
    backend: str = "auto",
) -> Tensor: ...


@overload
def gaussian_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    *,
    first: Tensor | None = None,
    prior: str = "gaussian",
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor | None = None,
    return_logsumexp: Literal[True],
    backend: str = "auto",
) -> ContextAndLogsumexp: ...


def gaussian_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    *,
    first: Tensor | None = None,
    prior: str = "gaussian",
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor | None = None,
    return_logsumexp: bool = False,
    backend: str = "auto",
) -> Tensor | ContextAndLogsumexp:
    """Attention with a learned position prior: softmax_j(scale · q·k_j + log prior(j; center, width)) @ value.

    Row i sees the source positions j = first_i + 1 … visible_i and nothing else. One that sees nothing gives zeros, and
    NaN in its query, center, width or gradient spoils nothing.
    Differentiable in query, key, value, center and width.

    Args:
        query: [B, H, T, D]. float32, float16, bfloat16 or float64; key and value have the same dtype.
        key: [B, H_kv, S, D]. Any outer strides, last stride 1; so for query and value. H_kv divides H, and H / H_kv
            heads that follow one another share a head of keys and values (grouped heads; with 1, multi-query).
        value: [B, H_kv, S, Dv]. Keys and values left of the smallest `first` and right of the largest `visible` of a
            head's rows may hold anything. Those between must be finite: others may spoil other rows of their head.
        center: [B, 1 or H, T]. Aligned source position of each row, 1-based; 1 = shared by the heads.
            float32, or float64 if query is; so for width.
        width: [B, 1 or H, T]. Standard deviation of the prior, positive.
        visible: int32 [B, 1 or H, T]. How many leading source positions each row may use; more than S counts as S.
            Padding is expressed here: right-padded keys by the sentence length, padded rows by 0.
        first: int32 [B, 1 or H, T]. How many leading positions each row may not use: a window begins behind it, and
            what lies left of it costs nothing. None means 0.
        prior: 'gaussian' −½((j−c)/w)²; 'laplace' −√2·|j−c|/w (the Gaussian's standard deviation); 'linear'
            log max(2⁻¹⁰, 1 − |j−c|/(2w)); 'none'. Laplace and linear are our reading of the paper's ablation, which
            does not define them. Widths below 2⁻⁴⁰ act as 2⁻⁴⁰.
        scale: factor of the dot products; None means D^−½.
        dropout_p: probability of dropping a normalised weight.
        seed: of the dropout; an int, a 0-d int64 tensor on query's device, or None to draw one from torch.
        return_logsumexp: return the logarithm of each row's normaliser, log Σ_j exp(scale · q·k_j + log prior), too;
            differentiable, from before dropout. See `merge`.
        backend: 'auto', or the name of the only one that may be used; see `backends()`.

    Returns:
        The context [B, H, T, Dv], dense in [B, T, H, Dv] memory; with `return_logsumexp` a named tuple of it and the
        logsumexp [B, H, T], of center's dtype, −∞ for rows that see nothing. Big outputs of native reuse the memory of
        earlier ones that nobody holds any more, and cannot be resized in place: up to 256 MB are kept, or as many
        megabytes as the environment variable GMA_POOL_MB says.
    """
    check_is_tensor("query", query)
    if first is not None or return_logsumexp:
        check_tensors(query, key, center, width, visible, value, first=first)
        needed = _needed(query, key, first, return_logsumexp)
        forward = operators_of(choose_backend(backend, query.device, query.dtype, needed)).general_forward
        index, scale = prior_and_scale(query, prior, scale)
        settings = (dropout_seed(query, dropout_p, seed), index, scale, float(dropout_p))
        context, logsumexp = forward(query, key, value, center, width, visible, first, None, None, *settings)
        if not return_logsumexp:
            return context
        whole = whole_logsumexp(logsumexp, prior, center, width, visible, first, key.shape[2])
        return ContextAndLogsumexp(context, whole)
    name = choose_backend(backend, query.device, query.dtype)
    if name in WITHOUT_GROUPS and is_grouped(query, key):
        name = choose_backend(backend, query.device, query.dtype, ("grouped heads",))
    # the extension's kernels check all tensors themselves, and checking twice would slow a decoding step down
    checked_by_kernel = name in ("native", "cuda") and type(query) is Tensor and not is_compiling()
    if not checked_by_kernel:
        check_tensors(query, key, center, width, visible, value)
    try:
        index, scale = prior_and_scale(query, prior, scale)
        drop_seed = dropout_seed(query, dropout_p, seed)
        forward = operators_of(name).forward
        return forward(query, key, value, center, width, visible, drop_seed, index, scale, float(dropout_p))[0]
    except Exception:
        if checked_by_kernel:
            explain_refusal(query, key, center, width, visible, value)
        raise


@overload
def gaussian_attention_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    cu_query: Tensor,
    cu_key: Tensor,
    *,
    first: Tensor | None = None,
    prior: str = "gaussian",
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor | None = None,
    return_logsumexp: Literal[False] = False,
    backend: str = "auto",
) -> Tensor: ...


@overload
def gaussian_attention_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    cu_query: Tensor,
    cu_key: Tensor,
    *,
    first: Tensor | None = None,
    prior: str = "gaussian",
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor | None = None,
    return_logsumexp: Literal[True],
    backend: str = "auto",
) -> ContextAndLogsumexp: ...


def gaussian_attention_packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    cu_query: Tensor,
    cu_key: Tensor,
    *,
    first: Tensor | None = None,
    prior: str = "gaussian",
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor | None = None,
    return_logsumexp: bool = False,
    backend: str = "auto",
) -> Tensor | ContextAndLogsumexp:
    """`gaussian_attention` of sentences that lie one behind the other, without padding: N rows and M source positions.

    Sentence b has the rows cu_query[b] … cu_query[b + 1] − 1 and the source positions cu_key[b] … cu_key[b + 1] − 1.
    center, visible and first count positions in their own sentence, from 1, and dropout drops the same weights as in a
    padded batch of the same sentences.

    Args:
        query: [N, H, D]; any outer strides, last stride 1, as of key and value.
        key: [M, H_kv, D]
        value: [M, H_kv, Dv]
        center, width, visible, first: [N, 1 or H]
        cu_query: int32 [sentences + 1], on query's device: 0, and where each sentence ends; the last is N.
        cu_key: the same for keys; the last is M.

    Returns:
        The context [N, H, Dv], or with `return_logsumexp` a named tuple of it and the logsumexp [N, H].
    """
    check_packed_tensors(query, key, value, center, width, visible, first, cu_query, cu_key)
    needed = ("packed batches", *_needed(query, key, first, return_logsumexp))
    forward = operators_of(choose_backend(backend, query.device, query.dtype, needed)).general_forward
    index, scale = prior_and_scale(query, prior, scale)
    settings = (dropout_seed(query, dropout_p, seed), index, scale, float(dropout_p))
    # one long sentence, whose rows the offsets part
    matrices = (x.transpose(0, 1)[None] for x in (query, key, value))
    center, width, visible = (x.T[None] for x in (center, width, visible))
    first = None if first is None else first.T[None]
    context, logsumexp = forward(*matrices, center, width, visible, first, cu_query, cu_key, *settings)
    context = context[0].transpose(0, 1)
    if not return_logsumexp:
        return context
    # with the size given, a GPU need not be waited for
    keys = torch.repeat_interleave(cu_key.diff(), cu_query.diff(), output_size=query.shape[0])
    whole = whole_logsumexp(logsumexp, prior, center, width, visible, first, keys)
    return ContextAndLogsumexp(context, whole[0].T)


def _needed(query: Tensor, key: Tensor, first: Tensor | None, return_logsumexp: bool) -> tuple[str, ...]:
    """What a call asks a backend for, of FEATURES."""
    asked = {"grouped heads": is_grouped(query, key), "first": first is not None, "logsumexp": return_logsumexp}
    return tuple(feature for feature, wanted in asked.items() if wanted)


def attention_weights(
    query: Tensor,
    key: Tensor,
    center: Tensor,
    width: Tensor,
    visible: Tensor,
    *,
    first: Tensor | None = None,
    prior: str = "gaussian",
    scale: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """The weights `gaussian_attention` uses, before dropout: [B, H, T, S] in query's dtype, 0 where a row sees nothing.

    For inspection, and for losses on alignments: differentiable, and of size T×S by nature. Arguments as there.
    """
    check_tensors(query, key, center, width, visible, first=first)
    index, scale = prior_and_scale(query, prior, scale)
    operators = operators_of(choose_backend(backend, query.device, query.dtype, _needed(query, key, first, False)))
    if first is None:
        return operators.weights(query, key, center, width, visible, index, scale)
    return operators.general_weights(query, key, center, width, visible, first, index, scale)
