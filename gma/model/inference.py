"""How a loaded model is decoded; not saved with it."""

from typing import NamedTuple

ENGINES = ("auto", "native", "torch")
WEIGHTS = ("float32", "bfloat16", "int8")


class Inference(NamedTuple):
    """
    Attributes:
        engine: 'native' (C++ on the CPU), 'torch', or 'auto' for the first of them that can.
        weights: what the native engine packs them into.
    """

    engine: str = "auto"
    weights: str = "float32"


def checked_inference(engine: str, weights: str) -> Inference:
    for name, given, choices in (("engine", engine, ENGINES), ("weights", weights, WEIGHTS)):
        if given not in choices:
            raise ValueError(f"{name} is {given!r}; expected one of {', '.join(map(repr, choices))}")
    return Inference(engine, weights)
