"""The decoding batch for a model's policy."""

from gma.decoding.incremental import IncrementalBatch
from gma.decoding.unit_batch import UnitBatch
from gma.model.transformer import Transformer


def open_batch(model: Transformer) -> IncrementalBatch:
    return IncrementalBatch(model) if model.segmenter is None else UnitBatch(model, model.segmenter)
