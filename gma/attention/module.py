"""Gaussian multi-head attention as a drop-in replacement for `torch.nn.MultiheadAttention`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import gma_kernels
from gma.attention.alignment import Aligner, Alignment, check_choice
from gma.attention.masks import leading_lengths
from gma_kernels.backends import NAMES as BACKENDS
from gma_kernels.contract import LARGEST_HEAD, PRIORS


class GaussianMultiheadAttention(nn.MultiheadAttention):
    """Multi-head attention whose weights carry a Gaussian prior at a predicted, monotone source position.

    Takes and returns what `torch.nn.MultiheadAttention` does, with the same parameters, names and defaults, and adds
    an `aligner`. For every query row it predicts how far to move along the keys, multiplies the attention with a
    Gaussian centred there, and lets the row see the keys up to that position plus `delta` only.

    Where it differs from `torch.nn.MultiheadAttention`: masks and padding must keep a leading prefix of the source (and
    hold 0 and −inf if floating point); a row that may see nothing gives the output projection's bias, not NaN;
    returned weights are those before dropout; a head has at most 256 features.

    Its own arguments stand behind those of `torch.nn.MultiheadAttention`.

    Args:
        delta: how many source words to hear past the aligned position; `float("inf")` for all.
        prior: 'gaussian', 'laplace', 'linear' or 'none'; see `gma_kernels.gaussian_attention`.
        width_rule: 'whole', 'half', 'third' or 'predicted'; for this and the next two see `Aligner`.
        positions: 'incremental' or 'absolute'.
        share_heads: one alignment for all heads (the paper's), or one per head.
        convention: 'paper' or 'reference'.
        backend: of the attention operator; see `gma_kernels.backends()`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        delta: float = 1.0,
        prior: str = "gaussian",
        width_rule: str = "half",
        positions: str = "incremental",
        share_heads: bool = True,
        convention: str = "paper",
        backend: str = "auto",
    ):
        if add_bias_kv or add_zero_attn:
            name = "add_bias_kv" if add_bias_kv else "add_zero_attn"
            raise ValueError(f"{name} is True; expected False: an extra key has no source position to align with")
        check_choice("prior", prior, PRIORS)
        check_choice("backend", backend, ("auto", *BACKENDS))
        if not isinstance(dropout, int | float) or not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout is {dropout!r}; expected a number, 0 <= dropout < 1")
        super().__init__(
            embed_dim, num_heads, dropout, bias, False, False, kdim, vdim, batch_first, device=device, dtype=dtype
        )
        if self.head_dim > LARGEST_HEAD:
            raise ValueError(f"a head has {self.head_dim} features; expected {LARGEST_HEAD} at most: use more heads")
        self.prior, self.share_heads, self.backend = prior, share_heads, backend
        self.aligner = Aligner(
            embed_dim, 1 if share_heads else num_heads, delta, width_rule, positions, convention, device, dtype
        )

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        # TransformerEncoderLayer has a fast path that computes plain attention from the weights and never calls
        # forward; it is not taken when the projections are declared separate
        self._qkv_same_embed_dim = False
        if hasattr(self, "aligner"):  # not yet when the base class calls this
            self.aligner.reset_parameters()

    def extra_repr(self) -> str:
        return (
            f"{self.embed_dim}, {self.num_heads}, prior={self.prior!r}, share_heads={self.share_heads}, "
            f"backend={self.backend!r}"
        )

    @classmethod
    def from_multihead_attention(cls, module: nn.MultiheadAttention, **options: Any) -> "GaussianMultiheadAttention":
        """A Gaussian attention with the projections of a trained `torch.nn.MultiheadAttention`, copied."""
        if not isinstance(module, nn.MultiheadAttention) or isinstance(module, cls):
            raise TypeError(
                f"module is a {type(module).__name__}; expected a torch.nn.MultiheadAttention "
                "(a Gaussian one is copied by copy.deepcopy)"
            )
        weight = module.out_proj.weight
        copy = cls(
            module.embed_dim,
            module.num_heads,
            module.dropout,
            module.in_proj_bias is not None,
            module.bias_k is not None,
            module.add_zero_attn,
            module.kdim,
            module.vdim,
            module.batch_first,
            weight.device,
            weight.dtype,
            **options,
        )
        copy.load_state_dict({**copy.state_dict(), **module.state_dict()})
        for name, parameter in module.named_parameters():
            copy.get_parameter(name).requires_grad_(parameter.requires_grad)
        return copy.train(module.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        alignment: Alignment | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from `query` to `key` and `value`, as `torch.nn.MultiheadAttention.forward`.

        Args:
            query: [T, B, E], [B, T, E] with `batch_first`, or [T, E] without a batch; key and value likewise.
            key_padding_mask: [B, S] or [S]; padding on the right only.
            attn_mask: [T, S] or [B·H, T, S]; must keep a leading prefix of each row.
            is_causal: a hint, needs `attn_mask`, changes nothing.
            alignment: use this one instead of predicting it. The masks still apply.

        Returns:
            The output in query's shape, and the weights before dropout ([B, T, S], or [B, H, T, S] with
            `average_attn_weights=False`), or None unless `need_weights`.
        """
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is True and attn_mask is None; is_causal is a hint about a mask: pass the mask")
        self._check_inputs(query, key, value)
        if alignment is not None and not isinstance(alignment, Alignment):
            raise TypeError(f"alignment is a {type(alignment).__name__}; expected a gma.Alignment or None")
        batched = query.dim() == 3
        query, key, value = (self._rows_after_batch(x) for x in (query, key, value))
        lengths = self._source_lengths(key, key_padding_mask)
        limit = lengths[:, None, None]
        if attn_mask is not None:
            limit = torch.minimum(limit, self._row_limits(attn_mask, query, key))

        (query_weight, key_weight, value_weight), (query_bias, key_bias, value_bias) = self._input_projections()
        query = linear(query, query_weight, query_bias)  # [B, T, E]
        if alignment is None:
            alignment = self.aligner(query * self.head_dim**-0.5, lengths)
        query = self._split_heads(query)
        key = self._split_heads(linear(key, key_weight, key_bias))
        value = self._split_heads(linear(value, value_weight, value_bias))
        center, width, visible = alignment.center, alignment.width, torch.minimum(alignment.visible, limit)

        context = gma_kernels.gaussian_attention(
            query,
            key,
            value,
            center,
            width,
            visible,
            prior=self.prior,
            dropout_p=self.dropout if self.training else 0.0,
            backend=self.backend,
        )
        output = self.out_proj(context.transpose(1, 2).flatten(2))
        if not batched:
            output = output.squeeze(0)
        elif not self.batch_first:
            output = output.transpose(0, 1)
        if not need_weights:
            return output, None
        weights = gma_kernels.attention_weights(
            query, key, center, width, visible, prior=self.prior, backend=self.backend
        )
        if average_attn_weights:
            weights = weights.mean(dim=1)
        return output, weights if batched else weights.squeeze(0)

    def align(self, query: Tensor, source_lengths: Tensor, *, previous: Tensor | None = None) -> Alignment:
        """The alignment `forward` would use for `query`, for sources of these lengths.

        Args:
            query: as in `forward`.
            source_lengths: [B], integer; [1] without a batch.
            previous: [B, 1 or H], `position[..., -1]` of the rows before these, to go on from there; None at the start.
                Absolute positions do not depend on it.

        Returns:
            An `Alignment` of [B, 1 or H, T] tensors, with B = 1 without a batch.
        """
        self._check_features("query", query, self.embed_dim)
        query = self._rows_after_batch(query)
        batch, outputs = query.shape[0], 1 if self.share_heads else self.num_heads
        _check_shape("source_lengths", source_lengths, (batch,))
        if source_lengths.is_floating_point() or source_lengths.dtype == torch.bool:
            raise TypeError(f"source_lengths has dtype {source_lengths.dtype}; expected integers")
        # elsewhere a look at the values would make the device wait
        if source_lengths.device.type == "cpu" and not torch.compiler.is_compiling() and (source_lengths < 0).any():
            raise ValueError(f"source_lengths has {int(source_lengths.min())}; expected lengths, 0 or more")
        if previous is not None:
            _check_shape("previous", previous, (batch, outputs))
        (query_weight, _, _), (query_bias, _, _) = self._input_projections()
        query = linear(query, query_weight, query_bias)
        return self.aligner(query * self.head_dim**-0.5, source_lengths, previous)

    def _input_projections(self) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
        """Weights and biases of the projections of query, key and value."""
        weights: tuple[Tensor, ...] = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        if self.in_proj_bias is None:
            return weights, (None, None, None)
        return weights, self.in_proj_bias.chunk(3)

    def _rows_after_batch(self, x: Tensor) -> Tensor:
        """[B, N, E] from whatever layout the module was made for."""
        if x.dim() == 2:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _split_heads(self, x: Tensor) -> Tensor:
        """[B, N, E] → [B, H, N, D], a view."""
        return x.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _source_lengths(self, key: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """int32 [B]"""
        batch, length, _ = key.shape
        if key_padding_mask is None:
            return torch.full((batch,), length, dtype=torch.int32, device=key.device)
        _check_is_tensor("key_padding_mask", key_padding_mask)
        mask = key_padding_mask.unsqueeze(0) if key_padding_mask.dim() == 1 else key_padding_mask
        if mask.shape != (batch, length):
            shape = tuple(key_padding_mask.shape)
            raise ValueError(f"key_padding_mask has shape {shape}; expected [{batch}, {length}] to fit key")
        return leading_lengths(mask, "key_padding_mask")

    def _row_limits(self, attn_mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """int32 [1, 1, T] or [B, H, T]"""
        _check_is_tensor("attn_mask", attn_mask)
        batch, rows, length = query.shape[0], query.shape[1], key.shape[1]
        together = (rows, length)
        each = (batch * self.num_heads, rows, length)
        if attn_mask.shape != together and attn_mask.shape != each:
            shape = tuple(attn_mask.shape)
            raise ValueError(f"attn_mask has shape {shape}; expected {list(together)} or {list(each)}")
        return leading_lengths(attn_mask, "attn_mask").reshape(-1, 1 if attn_mask.dim() == 2 else self.num_heads, rows)

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        self._check_features("query", query, self.embed_dim)
        self._check_features("key", key, self.kdim)
        self._check_features("value", value, self.vdim)
        batch_dim = 0 if self.batch_first else 1
        for name, x in (("key", key), ("value", value)):
            if x.dim() != query.dim():
                raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {query.dim()} dimensions like query")
            if x.dim() == 3 and x.shape[batch_dim] != query.shape[batch_dim]:
                batch = query.shape[batch_dim]
                raise ValueError(f"{name} has batch size {x.shape[batch_dim]}; expected {batch} like query")
        if key.shape[:-1] != value.shape[:-1]:
            raise ValueError(f"value has shape {tuple(value.shape)}; expected as many rows as key, {tuple(key.shape)}")

    @staticmethod
    def _check_features(name: str, x: Tensor, features: int) -> None:
        _check_is_tensor(name, x)
        if x.is_nested:
            raise TypeError(
                f"{name} is a nested tensor; expected a padded one: in a torch.nn.TransformerEncoder, set "
                "use_nested_tensor = False"
            )
        if x.dim() not in (2, 3):
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected 3 dimensions, or 2 without a batch")
        if x.shape[-1] != features:
            raise ValueError(f"{name} has {x.shape[-1]} features; expected {features}")


def _check_is_tensor(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; expected a torch.Tensor")


def _check_shape(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    _check_is_tensor(name, x)
    if x.shape != shape:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {list(shape)}")
