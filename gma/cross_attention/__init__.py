"""The policies: ways of attending to a source that is still arriving."""

from gma.cross_attention.base import CrossAttention
from gma.cross_attention.gaussian import GaussianCrossAttention
from gma.cross_attention.offline import OfflineCrossAttention

POLICIES: dict[str, type[CrossAttention]] = {"gaussian": GaussianCrossAttention, "offline": OfflineCrossAttention}

__all__ = ["POLICIES", "CrossAttention", "GaussianCrossAttention", "OfflineCrossAttention"]
