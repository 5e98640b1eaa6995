"""Full-sentence attention: wait for everything."""

from typing import ClassVar

from torch import Tensor

from gma.attention.alignment import Alignment, without_prior
from gma.policies.base import CrossAttention, Source


class OfflineCrossAttention(CrossAttention):
    """Plain attention to the whole source: g_i = |x|."""

    name: ClassVar = "offline"
    summary: ClassVar = "wait for the whole sentence"
    can_be_segmented: ClassVar = True

    def align(
        self, query: Tensor, source: Source, previous: Tensor | None = None, delta: float | Tensor | None = None
    ) -> Alignment:
        visible = source.lengths.int()[:, None, None].expand(-1, 1, query.shape[1])
        return without_prior(query, visible)
