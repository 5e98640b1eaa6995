"""Models packed for the native decoding engine: once, and again only when their weights have changed."""

import weakref
from typing import Any

import torch

from gma.attention.alignment import WIDTHS_PER_POSITION
from gma.model.transformer import Transformer
from gma.policies import (
    CrossAttention,
    GainCrossAttention,
    GaussianCrossAttention,
    MeaningUnits,
    OfflineCrossAttention,
    WaitKCrossAttention,
)
from gma.text.vocabulary import EOS
from gma_kernels import engine

# the engine's numbers for them
POLICY_NUMBERS: dict[type[CrossAttention], int] = {
    GaussianCrossAttention: 0,
    WaitKCrossAttention: 1,
    OfflineCrossAttention: 2,
    MeaningUnits: 2,
    GainCrossAttention: 3,
}
PRIOR_NUMBERS = {"gaussian": 0, "laplace": 1, "linear": 2, "none": 3}

_packed: "weakref.WeakKeyDictionary[Transformer, tuple[tuple, engine.PackedModel]]" = weakref.WeakKeyDictionary()


def hindrance(model: Transformer) -> str | None:
    """Why the engine cannot decode with a model; None if it can."""
    available, reason = engine.status()
    if not available:
        return f"the native backend is missing: {reason}"
    if model.policy not in POLICY_NUMBERS:
        return f"the policy {model.policy.name!r} decodes with PyTorch"
    weight, backend = model.project.weight, model.decoder.layers[0].cross_attention.backend
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return f"the model is {weight.dtype} on {weight.device}, and the engine wants float32 on the CPU"
    if backend not in ("auto", "native"):
        return f"attention.backend is {backend!r}"
    return None


def packed(model: Transformer, weights: str) -> engine.PackedModel:
    """The model for the engine, packed again if it has changed since the last time."""
    state = model.state_dict(keep_vars=True)
    signature = (weights, engine.simd_level(), *((t.data_ptr(), t._version) for t in state.values()))
    known = _packed.get(model)
    if known is None or known[0] != signature:
        tensors = {name: tensor.detach().contiguous() for name, tensor in state.items()}
        known = signature, engine.PackedModel(_settings(model), tensors, weights)
        _packed[model] = known
    return known[1]


def _settings(model: Transformer) -> dict[str, Any]:
    encoder, decoder = model.encoder, model.decoder
    attention, feed_forward = decoder.layers[0].cross_attention, decoder.layers[0].feed_forward
    settings = {
        "width": model.project.in_features,
        "heads": attention.heads,
        "feed_forward": feed_forward.expand.out_features,
        "encoder_layers": len(encoder.layers),
        "decoder_layers": len(decoder.layers),
        "source_vocabulary": encoder.embed.tokens.num_embeddings,
        "target_vocabulary": decoder.embed.tokens.num_embeddings,
        "end_token": EOS,
        "causal": encoder.causal,
        "policy": POLICY_NUMBERS[model.policy],
        "prior": PRIOR_NUMBERS[attention.prior],
        "alignments": 1,
        "shares_layers": decoder.shares_layers,
        "absolute_positions": False,
        "reference_convention": False,
        "width_factor": 1.0,
        "catch_up": 0.0,
    }
    if isinstance(attention, GaussianCrossAttention) and attention.aligner is not None:
        aligner = attention.aligner
        settings |= {
            "alignments": aligner.step.output.out_features,
            "absolute_positions": aligner.positions == "absolute",
            "reference_convention": aligner.convention == "reference",
            "width_factor": WIDTHS_PER_POSITION.get(aligner.width_rule, 0.0),
        }
    if isinstance(attention, WaitKCrossAttention):
        settings["catch_up"] = attention.catch_up
    return settings
