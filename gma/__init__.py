"""Simultaneous translation with Gaussian multi-head attention."""

from importlib.metadata import version
from typing import TYPE_CHECKING

from gma.attention.alignment import Alignment
from gma.attention.module import GaussianMultiheadAttention

if TYPE_CHECKING:
    from gma.decoding.streaming import Emission, Stream, StreamingTranslator

__version__ = version("gma")

__all__ = ["Alignment", "Emission", "GaussianMultiheadAttention", "Stream", "StreamingTranslator"]

_STREAMING = ("Emission", "Stream", "StreamingTranslator")


def __getattr__(name: str):
    # on first use: whoever wants the attention module alone need not load the translator
    if name in _STREAMING:
        from gma.decoding import streaming

        return getattr(streaming, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
