"""Attention with a learned position prior: one operator, several implementations that agree."""

from gma_kernels.api import attention_weights, gaussian_attention, gaussian_attention_packed
from gma_kernels.backends import BackendStatus, BackendUnavailable, backends
from gma_kernels.logsumexp import ContextAndLogsumexp, merge
from gma_kernels.moments import PositionMoments, position_moments

__all__ = [
    "BackendStatus",
    "BackendUnavailable",
    "ContextAndLogsumexp",
    "PositionMoments",
    "attention_weights",
    "backends",
    "gaussian_attention",
    "gaussian_attention_packed",
    "merge",
    "position_moments",
]
