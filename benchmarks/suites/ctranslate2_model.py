"""Our Transformer for CTranslate2: the same shapes and weights, without the policy, which it does not know."""

from pathlib import Path

import ctranslate2
import numpy
import torch
from torch import Tensor, nn

from gma.model.transformer import FeedForward, Transformer
from gma.text.vocabulary import BOS, EOS, UNK

POSITIONS = 1024


def translator(model: Transformer, folder: Path, compute_type: str, threads: int) -> ctranslate2.Translator:
    save(model, folder)
    return ctranslate2.Translator(
        str(folder), device="cpu", compute_type=compute_type, inter_threads=1, intra_threads=threads
    )


def words(tokens: list[int]) -> list[str]:
    return [f"<{token}>" for token in tokens]


@torch.no_grad()
def save(model: Transformer, folder: Path) -> None:
    encoder, decoder = model.encoder.layers, model.decoder.layers
    spec = ctranslate2.specs.TransformerSpec.from_config(
        (len(encoder), len(decoder)), decoder[0].cross_attention.heads, pre_norm=False
    )
    positions = model.encoder.embed.positions(POSITIONS).float()
    for part, ours in ((spec.encoder, model.encoder), (spec.decoder, model.decoder)):
        part.scale_embeddings = True
        embeddings = part.embeddings[0] if isinstance(part.embeddings, list) else part.embeddings
        embeddings.weight = _array(ours.embed.tokens.weight)
        part.position_encodings.encodings = _array(positions)
    for theirs, layer in zip(spec.encoder.layer, encoder):
        _attention(theirs.self_attention, [layer.self_attention.input, layer.self_attention.output])
        _norm(theirs.self_attention.layer_norm, layer.self_attention_norm)
        _feed_forward(theirs.ffn, layer.feed_forward)
    for theirs, layer in zip(spec.decoder.layer, decoder):
        cross = layer.cross_attention
        _attention(theirs.self_attention, [layer.self_attention.input, layer.self_attention.output])
        _norm(theirs.self_attention.layer_norm, layer.self_attention_norm)
        _attention(theirs.attention, [cross.query, cross.memory, cross.output])
        _norm(theirs.attention.layer_norm, layer.cross_attention_norm)
        _feed_forward(theirs.ffn, layer.feed_forward)
    spec.decoder.projection.weight = _array(model.project.weight)
    spec.decoder.projection.bias = numpy.zeros(model.project.out_features, dtype=numpy.float32)
    sizes = (model.encoder.embed.tokens.num_embeddings, model.project.out_features)
    spec.register_source_vocabulary(words(list(range(sizes[0]))))
    spec.register_target_vocabulary(words(list(range(sizes[1]))))
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = words([BOS, EOS, UNK])
    spec.config.decoder_start_token = words([BOS])[0]
    spec.config.add_source_eos = spec.config.add_source_bos = False
    spec.validate()
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def _array(tensor: Tensor) -> numpy.ndarray:
    return tensor.detach().float().contiguous().numpy()


def _linear(theirs, ours: nn.Linear) -> None:
    theirs.weight, theirs.bias = _array(ours.weight), _array(ours.bias)


def _norm(theirs, ours: nn.LayerNorm) -> None:
    theirs.gamma, theirs.beta = _array(ours.weight), _array(ours.bias)


def _attention(theirs, ours: list[nn.Linear]) -> None:
    for their, our in zip(theirs.linear, ours, strict=True):
        _linear(their, our)


def _feed_forward(theirs, ours: FeedForward) -> None:
    _linear(theirs.linear_0, ours.expand)
    _linear(theirs.linear_1, ours.contract)
    _norm(theirs.layer_norm, ours.norm)
