"""Sources that are still growing, as one attention module sees them: translating before all of a sentence is there."""

import math

import torch
from torch import Tensor

import gma_kernels
from gma.attention.alignment import UNKNOWN_LENGTH, Alignment
from gma.attention.arguments import can_look_at, check_alignment, check_features, check_lengths, check_shape
from gma.attention.key_value_cache import KeyValueCache
from gma.attention.module import GaussianMultiheadAttention

# words in a sentence below which forgetting would cost more than it frees
FEW = 64


class SourceCache:
    """Keys and values of sources that grow word by word, computed once for each word. For inference: no gradients.

    If the module has a `window` and incremental positions, rows come in order and never look back beyond it: words that
    no later row can see are forgotten, and a stream of any length runs in bounded memory.

    >>> import torch
    >>> from gma import GaussianMultiheadAttention, SourceCache
    >>> attention = GaussianMultiheadAttention(16, 2, batch_first=True, window=8).eval()
    >>> cache = SourceCache(attention, batch=1)
    >>> for row in torch.randn(3, 1, 1, 16):
    ...     alignment = cache.align(row)
    ...     while cache.arrived < alignment.visible.max():
    ...         cache.push(torch.randn(1, 1, 16))  # here: the encoder's state of another word
    ...     output = cache.attend(row, alignment)
    >>> output.shape
    torch.Size([1, 1, 16])

    Attributes:
        arrived: [B], how many words each source has.
        forgotten: [B], how many leading words of each are no longer there.
        position: [B, 1 or H], where the last row stood that has attended; NaN before the first.
    """

    def __init__(self, attention: GaussianMultiheadAttention, batch: int):
        if not isinstance(attention, GaussianMultiheadAttention):
            raise TypeError(f"attention is a {type(attention).__name__}; expected a gma.GaussianMultiheadAttention")
        if attention.training and attention.dropout:
            raise ValueError("attention is in training mode; expected attention.eval(): a cache knows no dropout")
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise ValueError(f"batch is {batch!r}; expected a number of sentences, 1 or more")
        self.attention = attention
        weight = attention.out_proj.weight.detach()
        self._kept = KeyValueCache(attention.num_kv_heads, attention.head_dim, weight)
        self.arrived = torch.zeros(batch, dtype=torch.int64, device=weight.device)
        self.forgotten = torch.zeros_like(self.arrived)
        outputs = 1 if attention.share_heads else attention.num_heads
        self.position = weight.new_full((batch, outputs), math.nan, dtype=torch.float64)

    @property
    def room(self) -> int:
        """Words that there is memory for, in every sentence."""
        return self._kept.room

    @torch.no_grad()
    def push(self, key: Tensor, value: Tensor | None = None, lengths: Tensor | None = None) -> None:
        """Give the sources n more words.

        Args:
            key: [n, B, E], [B, n, E] with `batch_first`, or [n, E] without a batch, as to the module.
            value: the same; None for the key itself.
            lengths: [B], how many of them each source gets, the rest is padding; None for all n.
        """
        value = key if value is None else value
        attention, batch = self.attention, len(self.arrived)
        keys = self._sentences("key", key, attention.kdim)
        check_features("value", value, attention.vdim)
        if key.shape[:-1] != value.shape[:-1]:
            raise ValueError(f"value has shape {tuple(value.shape)}; expected as many rows as key, {tuple(key.shape)}")
        words = keys.shape[1]
        if lengths is None:
            lengths = torch.full_like(self.arrived, words)
        check_lengths("lengths", lengths, batch)
        if can_look_at(lengths) and (lengths > words).any():
            raise ValueError(f"lengths has {int(lengths.max())}; expected {words} at most, the words that key has")
        if not words:
            return
        start = self.arrived - self.forgotten
        self._kept.reserve(batch, int(start.max()) + words)
        projected = (
            x.to(self._kept.key.dtype) for x in attention.project_source(keys, attention.rows_after_batch(value))
        )
        parts = (x.unflatten(2, (-1, attention.head_dim)) for x in projected)
        self._kept.write(torch.arange(batch, device=start.device), start, *parts)
        self.arrived = self.arrived + lengths

    @torch.no_grad()
    def align(self, query: Tensor, ended: bool | Tensor = False) -> Alignment:
        """Where the next rows stand, and by `visible` how many words each waits for.

        Args:
            query: as to the module.
            ended: whether no more words will come, for all sources or for each, bool [B].
        """
        if isinstance(ended, Tensor):
            check_shape("ended", ended, (len(self.arrived),))
            lengths = torch.where(ended.bool(), self.arrived, UNKNOWN_LENGTH)
        else:
            lengths = self.arrived if ended else torch.full_like(self.arrived, UNKNOWN_LENGTH)
        self._sentences("query", query, self.attention.embed_dim)
        return self.attention.align(query, lengths, previous=self.position)

    @torch.no_grad()
    def attend(self, query: Tensor, alignment: Alignment) -> Tensor:
        """The module's output for `query`, in its shape, where every row sees the words that have come.

        alignment: of these rows, which are those after the last that have attended.
        """
        attention = self.attention
        check_alignment(alignment)
        rows = self._sentences("query", query, attention.embed_dim)
        center, visible = alignment.center, alignment.visible
        first = attention.first_visible(center, visible)
        self._check_order(visible, first)
        key, value = self._kept.key.transpose(1, 2), self._kept.value.transpose(1, 2)
        gone = self.forgotten[:, None, None]
        context = gma_kernels.gaussian_attention(
            attention.split_heads(attention.project_query(rows)).to(key.dtype),
            key,
            value,
            center - gone.to(center.dtype),
            alignment.width,
            (visible - gone).clamp(min=0).int(),
            first=None if first is None else (first - gone).clamp(min=0).int(),
            prior=attention.prior,
            backend=attention.backend,
        )
        if first is not None and first.shape[2] and attention.aligner.positions == "incremental":
            self._forget(torch.maximum(first[:, :, -1].amin(dim=1), self.forgotten))
        if alignment.position is not None and alignment.position.shape[2]:  # a user's own may lack it
            self.position = alignment.position[:, :, -1]
        output = attention.out_proj(context.transpose(1, 2).flatten(2))
        return attention.batch_after_rows(output, query.dim() == 3)

    def _sentences(self, name: str, x: Tensor, features: int) -> Tensor:
        """[B, N, features] from the module's layout."""
        check_features(name, x, features)
        x, batch = self.attention.rows_after_batch(x), len(self.arrived)
        if x.shape[0] != batch:
            raise ValueError(f"{name} has batch size {x.shape[0]}; expected {batch}: the cache was made for so many")
        return x

    def _check_order(self, visible: Tensor, first: Tensor | None) -> None:
        """Refuse rows that see words that are not there."""
        if not can_look_at(visible):
            return
        late = visible > self.arrived[:, None, None]
        if late.any():
            b, _, row = late.nonzero()[0].tolist()
            raise ValueError(
                f"row {row} of sentence {b} waits for {int(visible[b, :, row].max())} source words, and "
                f"{int(self.arrived[b])} have come; push more, or align it with ended=True if there are no more"
            )
        if first is None:
            return
        early = (first < self.forgotten[:, None, None]) & (visible > first)
        if early.any():
            b, _, row = early.nonzero()[0].tolist()
            raise ValueError(
                f"row {row} of sentence {b} sees source words behind {int(first[b, :, row].min())}, and the first "
                f"{int(self.forgotten[b])} are forgotten; expected rows in order, as align gives their positions"
            )

    def _forget(self, unseen: Tensor) -> None:
        """Forget words once they are half of what is there. unseen: [B], how many leading ones no later row can see."""
        held, kept = (int((self.arrived - gone).max()) for gone in (self.forgotten, unseen))
        if held < FEW or 2 * kept > held:
            return
        self._kept.drop(unseen - self.forgotten)
        self._kept.give_back(kept)
        self.forgotten = unseen
