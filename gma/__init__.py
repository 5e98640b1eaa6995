"""Simultaneous translation with Gaussian multi-head attention.

Every name is imported when it is first used: the attention module loads no translator, and `gma --help` no torch.

>>> import gma
>>> model = gma.load("de-en")
>>> gma.translate(model, ["Ich glaube nicht, dass Tom heute kommen wird."], delta=4.0)[0].text
"I don't think Tom will come today."
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gma import metrics
    from gma.attention import Alignment, GaussianMultiheadAttention, SourceCache
    from gma.decoding.streaming import Emission, Stream, StreamingTranslator
    from gma.decoding.translate import translate
    from gma.evaluation.evaluate import evaluate
    from gma.model.directory import load
    from gma.model.transformer import Transformer

__version__ = version("gma")

__all__ = [
    "Alignment",
    "Emission",
    "GaussianMultiheadAttention",
    "SourceCache",
    "Stream",
    "StreamingTranslator",
    "Transformer",
    "evaluate",
    "load",
    "metrics",
    "translate",
]

_HOMES = {
    "Alignment": "gma.attention",
    "Emission": "gma.decoding.streaming",
    "GaussianMultiheadAttention": "gma.attention",
    "SourceCache": "gma.attention",
    "Stream": "gma.decoding.streaming",
    "StreamingTranslator": "gma.decoding.streaming",
    "Transformer": "gma.model.transformer",
    "evaluate": "gma.evaluation.evaluate",
    "load": "gma.model.directory",
    "translate": "gma.decoding.translate",
}


def __getattr__(name: str) -> Any:
    if name == "metrics":
        return import_module("gma.metrics")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
