"""Which engine decodes: the native one where it can, PyTorch everywhere else."""

import os

from gma.decoding.batch import Batch, SearchableBatch
from gma.decoding.incremental import IncrementalBatch
from gma.decoding.native_batch import NativeBatch
from gma.decoding.packed_model import POLICY_NUMBERS, hindrance
from gma.decoding.unit_batch import UnitBatch
from gma.errors import UserError
from gma.model.inference import ENGINES, WEIGHTS, Inference
from gma.model.transformer import Transformer
from gma.policies import CrossAttention
from gma_kernels import engine

VARIABLE = "GMA_ENGINE"


class EngineError(UserError, ValueError):
    """A way of decoding that was asked for and cannot be had."""


def open_batch(model: Transformer) -> Batch:
    """The decoding batch for the model's policy."""
    batch = open_searchable_batch(model)
    return batch if model.segmenter is None else UnitBatch(batch, model.segmenter)


def open_searchable_batch(model: Transformer) -> SearchableBatch:
    """The same without meaning units."""
    if chosen_engine(model) == "native":
        return NativeBatch(model, model.inference.weights)
    return IncrementalBatch(model)


def has_engine(policy: type[CrossAttention]) -> bool:
    """Whether the native engine, where there is one, decodes with a policy."""
    return policy in POLICY_NUMBERS


def description() -> str:
    """Which engine serves float32 models on the CPU here, and why."""
    wanted = os.environ.get(VARIABLE) or "auto"
    available, reason = engine.status()
    if wanted == "torch":
        return f"torch, by {VARIABLE}"
    if not available:
        return f"torch; the native one is missing: {reason}"
    return f"native ({engine.decoding_level()}; weights {', '.join(WEIGHTS)}); torch where it cannot serve"


def chosen_engine(model: Transformer) -> str:
    """'native' or 'torch': what the model asks for, then what the environment does, then what is possible."""
    wanted, weights = model.inference
    if wanted == "auto":
        wanted = os.environ.get(VARIABLE) or "auto"
        if wanted not in ENGINES:
            raise EngineError(f"{VARIABLE} is {wanted!r}; expected one of {', '.join(ENGINES)}")
    reason = hindrance(model)
    if wanted == "native" and reason:
        raise EngineError(f"engine 'native' cannot serve here: {reason}; use 'auto'")
    chosen = "torch" if wanted == "torch" or reason else "native"
    if chosen == "torch" and weights != Inference().weights:
        raise EngineError(
            f"weights are {weights!r}, which only the native engine has: {reason or 'PyTorch was asked for'}; "
            "leave the weights at 'float32'"
        )
    return chosen
