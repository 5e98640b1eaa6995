"""Gaussian multi-head attention as a drop-in replacement for `torch.nn.MultiheadAttention`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import gma_kernels
from gma.attention.alignment import Aligner, Alignment, check_choice, window_start
from gma.attention.arguments import (
    check_alignment,
    check_features,
    check_is_tensor,
    check_lengths,
    check_query_key_value,
    check_shape,
    checked_key_heads,
    checked_window,
)
from gma.attention.masks import leading_lengths
from gma.attention.nested import attend_nested, refuse_beside_nested
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
        num_kv_heads: heads of keys and values, a divisor of num_heads: num_heads / num_kv_heads heads that follow one
            another share one (grouped heads; 1 is multi-query attention); None for as many as num_heads. Projections
            are then the separate ones of `torch.nn.MultiheadAttention`, those of key and value smaller.
        window: how many source words a row sees before the one it stands on, which is ⌊p⌋, or the last that it sees if
            that comes first; None for all. A `SourceCache` forgets the words before the window.
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
        num_kv_heads: int | None = None,
        window: int | None = None,
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
        self.num_kv_heads, self.window = checked_key_heads(num_kv_heads, num_heads), checked_window(window)
        if self.num_kv_heads < num_heads:
            self._make_grouped_projections()
        self.prior, self.share_heads, self.backend = prior, share_heads, backend
        self.aligner = Aligner(
            embed_dim, 1 if share_heads else num_heads, delta, width_rule, positions, convention, device, dtype
        )

    def _make_grouped_projections(self) -> None:
        """Put separate projections, those of key and value of num_kv_heads heads, in the place of the base class's."""
        like, size = self.out_proj.weight, self.num_kv_heads * self.head_dim
        self.register_parameter("in_proj_weight", None)
        self.q_proj_weight = nn.Parameter(like.new_empty(self.embed_dim, self.embed_dim))
        self.k_proj_weight = nn.Parameter(like.new_empty(size, self.kdim))
        self.v_proj_weight = nn.Parameter(like.new_empty(size, self.vdim))
        if self.in_proj_bias is not None:
            self.in_proj_bias = nn.Parameter(like.new_empty(self.embed_dim + 2 * size))
        self._reset_parameters()

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
            f"{self.embed_dim}, {self.num_heads}, num_kv_heads={self.num_kv_heads}, window={self.window}, "
            f"prior={self.prior!r}, share_heads={self.share_heads}, backend={self.backend!r}"
        )

    @classmethod
    def from_multihead_attention(cls, module: nn.MultiheadAttention, **options: Any) -> "GaussianMultiheadAttention":
        """A Gaussian attention with the projections of a trained `torch.nn.MultiheadAttention`, copied.

        With `num_kv_heads` those of key and value are the means over the heads that come to share one, a beginning
        from which to train on.
        """
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
        trained = module.state_dict()
        grouped = copy.num_kv_heads < copy.num_heads
        copy.load_state_dict({**copy.state_dict(), **(copy._group_means(trained) if grouped else trained)})
        for name, parameter in module.named_parameters():
            separate = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
            for own in separate if grouped and name == "in_proj_weight" else (name,):
                copy.get_parameter(own).requires_grad_(parameter.requires_grad)
        return copy.train(module.training)

    def _group_means(self, trained: dict[str, Tensor]) -> dict[str, Tensor]:
        """The state of a `torch.nn.MultiheadAttention`, one head of keys and values for each group of heads."""

        def means(x: Tensor) -> Tensor:
            return x.unflatten(0, (self.num_kv_heads, -1, self.head_dim)).mean(dim=1).flatten(0, 1)

        state = dict(trained)
        if "in_proj_weight" in state:
            query, key, value = state.pop("in_proj_weight").chunk(3)
            state.update(q_proj_weight=query, k_proj_weight=key, v_proj_weight=value)
        state.update({name: means(state[name]) for name in ("k_proj_weight", "v_proj_weight")})
        if "in_proj_bias" in state:
            query, key, value = state["in_proj_bias"].chunk(3)
            state["in_proj_bias"] = torch.cat((query, means(key), means(value)))
        return state

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
            query: [T, B, E], [B, T, E] with `batch_first`, or [T, E] without a batch; key and value likewise. Or all
                three nested, in the jagged layout, with `batch_first`, no mask and need_weights=False.
            key_padding_mask: [B, S] or [S]; padding on the right only.
            attn_mask: [T, S] or [B·H, T, S]; must keep a leading prefix of each row.
            is_causal: a hint, needs `attn_mask`, changes nothing.
            alignment: use this one instead of predicting it. The masks still apply.

        Returns:
            The output in query's shape, and the weights before dropout ([B, T, S], or [B, H, T, S] with
            `average_attn_weights=False`), or None unless `need_weights`.
        """
        if any(isinstance(x, Tensor) and x.is_nested for x in (query, key, value)):
            refuse_beside_nested(key_padding_mask=key_padding_mask, attn_mask=attn_mask, alignment=alignment)
            if need_weights or is_causal:
                name = "need_weights" if need_weights else "is_causal"
                raise ValueError(f"{name} is True; expected False with nested tensors, which share no T and S")
            return attend_nested(self, query, key, value), None
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is True and attn_mask is None; is_causal is a hint about a mask: pass the mask")
        check_query_key_value(self, query, key, value)
        if alignment is not None:
            check_alignment(alignment)
        batched = query.dim() == 3
        query, key, value = (self.rows_after_batch(x) for x in (query, key, value))
        lengths = self._source_lengths(key, key_padding_mask)
        limit = lengths[:, None, None]
        if attn_mask is not None:
            limit = torch.minimum(limit, self._row_limits(attn_mask, query, key))

        query = self.project_query(query)
        if alignment is None:
            alignment = self.aligner(query * self.head_dim**-0.5, lengths)
        query, (key, value) = self.split_heads(query), (self.split_heads(x) for x in self.project_source(key, value))
        visible = torch.minimum(alignment.visible, limit)
        place = (alignment.center, alignment.width, visible)
        first = self.first_visible(alignment.center, visible)

        context = gma_kernels.gaussian_attention(
            query,
            key,
            value,
            *place,
            first=first,
            prior=self.prior,
            dropout_p=self.dropout if self.training else 0.0,
            backend=self.backend,
        )
        output = self.out_proj(context.transpose(1, 2).flatten(2))
        output = self.batch_after_rows(output, batched)
        if not need_weights:
            return output, None
        weights = gma_kernels.attention_weights(query, key, *place, first=first, prior=self.prior, backend=self.backend)
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
        check_features("query", query, self.embed_dim)
        query = self.rows_after_batch(query)
        batch, outputs = query.shape[0], 1 if self.share_heads else self.num_heads
        check_lengths("source_lengths", source_lengths, batch)
        if previous is not None:
            check_shape("previous", previous, (batch, outputs))
        return self.aligner(self.project_query(query) * self.head_dim**-0.5, source_lengths, previous)

    def first_visible(self, center: Tensor, visible: Tensor) -> Tensor | None:
        """How many leading source words the window hides from each row, int32 [B, 1 or H, T]; None without a window.

        center, visible: of an `Alignment`, [B, 1 or H, T].
        """
        return None if self.window is None else window_start(center, visible, self.window)

    def project_query(self, query: Tensor) -> Tensor:
        """[..., E] → [..., E], all heads side by side"""
        return linear(query, *self._projection(0))

    def project_source(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """[..., features] → [..., H_kv · D] each"""
        return linear(key, *self._projection(1)), linear(value, *self._projection(2))

    def _projection(self, which: int) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of query (0), key (1) or value (2)."""
        of_query, of_source = self.embed_dim, self.num_kv_heads * self.head_dim
        begin = of_query + (which - 1) * of_source if which else 0
        size = of_source if which else of_query
        weight: Tensor = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[which]
        if self.in_proj_weight is not None:
            weight = self.in_proj_weight.narrow(0, begin, size)
        return weight, None if self.in_proj_bias is None else self.in_proj_bias.narrow(0, begin, size)

    def rows_after_batch(self, x: Tensor) -> Tensor:
        """[B, N, E] from whatever layout the module was made for."""
        if x.dim() == 2:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def batch_after_rows(self, x: Tensor, batched: bool) -> Tensor:
        """[B, N, E] → the layout the module was made for."""
        if not batched:
            return x.squeeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def split_heads(self, x: Tensor) -> Tensor:
        """[B, N, H · D] → [B, H, N, D], a view; so for the heads of keys and values."""
        return x.unflatten(2, (-1, self.head_dim)).transpose(1, 2)

    def _source_lengths(self, key: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """int32 [B]"""
        batch, length, _ = key.shape
        if key_padding_mask is None:
            return torch.full((batch,), length, dtype=torch.int32, device=key.device)
        check_is_tensor("key_padding_mask", key_padding_mask)
        mask = key_padding_mask.unsqueeze(0) if key_padding_mask.dim() == 1 else key_padding_mask
        if mask.shape != (batch, length):
            shape = tuple(key_padding_mask.shape)
            raise ValueError(f"key_padding_mask has shape {shape}; expected [{batch}, {length}] to fit key")
        return leading_lengths(mask, "key_padding_mask")

    def _row_limits(self, attn_mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """int32 [1, 1, T] or [B, H, T]"""
        check_is_tensor("attn_mask", attn_mask)
        batch, rows, length = query.shape[0], query.shape[1], key.shape[1]
        together = (rows, length)
        each = (batch * self.num_heads, rows, length)
        if attn_mask.shape != together and attn_mask.shape != each:
            shape = tuple(attn_mask.shape)
            raise ValueError(f"attn_mask has shape {shape}; expected {list(together)} or {list(each)}")
        return leading_lengths(attn_mask, "attn_mask").reshape(-1, 1 if attn_mask.dim() == 2 else self.num_heads, rows)
