"""The policies: ways of attending to a source that is still arriving."""

from gma.cross_attention.base import CrossAttention, LatencyError, Source
from gma.cross_attention.gaussian import GaussianCrossAttention
from gma.cross_attention.monotonic import MonotonicCrossAttention
from gma.cross_attention.offline import OfflineCrossAttention
from gma.cross_attention.wait_k import WaitKCrossAttention

POLICIES: dict[str, type[CrossAttention]] = {
    policy.name: policy
    for policy in (GaussianCrossAttention, WaitKCrossAttention, MonotonicCrossAttention, OfflineCrossAttention)
}

__all__ = [
    "POLICIES",
    "CrossAttention",
    "GaussianCrossAttention",
    "LatencyError",
    "MonotonicCrossAttention",
    "OfflineCrossAttention",
    "Source",
    "WaitKCrossAttention",
]
