"""Which engine decodes: the native one where it can, PyTorch everywhere else."""

import os

from gma.decoding.batch import Batch, SearchableBatch
from gma.decoding.incremental import IncrementalBatch
from gma.decoding.native_batch import NativeBatch
from gma.decoding.packed_model import hindrance
from gma.decoding.unit_batch import UnitBatch
from gma.errors import UserError
from gma.model.inference import ENGINES, Inference
from gma.model.transformer import Transformer

VARIABLE = "GMA_ENGINE"


class EngineError(UserError, ValueError):
    """A way of decoding that was asked for and cannot be had."""


def open_batch(model: Transformer) -> Batch:
    """What the model's policy is decoded with."""
    batch = open_searchable_batch(model)
    return batch if model.segmenter is None else UnitBatch(batch, model.segmenter)


def open_searchable_batch(model: Transformer) -> SearchableBatch:
    """One that waits for no meaning units."""
    if chosen_engine(model) == "native":
        return NativeBatch(model, model.inference.weights)
    return IncrementalBatch(model)


def chosen_engine(model: Transformer) -> str:
    """'native' or 'torch': what the model asks for, then what the environment does, then what is possible."""
    engine, weights = model.inference
    if engine == "auto":
        engine = os.environ.get(VARIABLE) or "auto"
        if engine not in ENGINES:
            raise EngineError(f"{VARIABLE} is {engine!r}; expected one of {', '.join(ENGINES)}")
    reason = hindrance(model)
    if engine == "native" and reason:
        raise EngineError(f"engine 'native' cannot serve here: {reason}; use 'auto'")
    chosen = "torch" if engine == "torch" or reason else "native"
    if chosen == "torch" and weights != Inference().weights:
        raise EngineError(
            f"weights are {weights!r}, which only the native engine has: {reason or 'PyTorch was asked for'}; "
            "leave the weights at 'float32'"
        )
    return chosen
