"""Simultaneous translation with Gaussian multi-head attention."""

from importlib.metadata import version

from gma.alignment import Alignment
from gma.attention import GaussianMultiheadAttention

__version__ = version("gma")

__all__ = ["Alignment", "GaussianMultiheadAttention"]
