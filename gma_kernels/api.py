"""The public functions: they validate, choose a backend and call its operator."""

from torch import Tensor
from torch.compiler import is_compiling

from gma_kernels.arguments import check_is_tensor, check_tensors, dropout_seed, explain_refusal, prior_and_scale
from gma_kernels.backends import choose_backend
from gma_kernels.registry import operators_of


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
        value: [B, H, S, Dv]. Keys and values that no row sees may hold anything. Those that some row sees must be
            finite: others may spoil other rows of their head.
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
        backend: 'auto', or the name of the only one that may be used; see `backends()`.

    Returns:
        [B, H, T, Dv], dense in [B, T, H, Dv] memory. Big outputs of native reuse the memory of earlier ones that
        nobody holds any more, and cannot be resized in place: up to 256 MB are kept, or as many megabytes as the
        environment variable GMA_POOL_MB says.
    """
    check_is_tensor("query", query)
    name = choose_backend(backend, query.device, query.dtype)
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

    For inspection, and for losses on alignments: differentiable, and of size T×S by nature. Arguments as there.
    """
    check_tensors(query, key, center, width, visible)
    index, scale = prior_and_scale(query, prior, scale)
    operators = operators_of(choose_backend(backend, query.device, query.dtype))
    return operators.weights(query, key, center, width, visible, index, scale)
