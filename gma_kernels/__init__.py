"""Attention with a learned position prior: one operator, several implementations that agree."""

from gma_kernels.api import attention_weights, gaussian_attention
from gma_kernels.backends import BackendStatus, BackendUnavailable, backends

__all__ = ["BackendStatus", "BackendUnavailable", "attention_weights", "backends", "gaussian_attention"]
