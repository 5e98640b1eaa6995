"""The drop-in attention module, what it is made of, and the self-attention and caches of the models around it."""

from gma.attention.alignment import Alignment
from gma.attention.module import GaussianMultiheadAttention
from gma.attention.source_cache import SourceCache

__all__ = ["Alignment", "GaussianMultiheadAttention", "SourceCache"]
