"""The policies: ways of attending to a source that is still arriving."""

from gma.policies.base import CrossAttention, LatencyError, Look, Source
from gma.policies.gain import GainCrossAttention
from gma.policies.gaussian import GaussianCrossAttention
from gma.policies.itst import TransportCrossAttention
from gma.policies.meaning_units import MeaningUnits, Segmenter
from gma.policies.monotonic import MonotonicCrossAttention
from gma.policies.offline import OfflineCrossAttention
from gma.policies.wait_k import WaitKCrossAttention

# what a model can be trained with; meaning units are put on top of a trained one
POLICIES: dict[str, type[CrossAttention]] = {
    policy.name: policy
    for policy in (
        GaussianCrossAttention,
        GainCrossAttention,
        WaitKCrossAttention,
        MonotonicCrossAttention,
        TransportCrossAttention,
        OfflineCrossAttention,
    )
}

__all__ = [
    "POLICIES",
    "CrossAttention",
    "GainCrossAttention",
    "GaussianCrossAttention",
    "LatencyError",
    "Look",
    "MeaningUnits",
    "MonotonicCrossAttention",
    "OfflineCrossAttention",
    "Segmenter",
    "Source",
    "TransportCrossAttention",
    "WaitKCrossAttention",
]
