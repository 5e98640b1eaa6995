"""Small random models and sentences for the tests of the Transformer and of decoding."""

import random

import torch

from gma.settings import AttentionSettings, ModelSettings
from gma.tokenizer import EOS
from gma.transformer import Transformer

SOURCE_VOCABULARY, TARGET_VOCABULARY = 40, 50
SHARING = ("heads", "none", "layers", "all")


def small_model(seed: int, dtype=torch.float64, encoder="causal", **attention) -> Transformer:
    """Two layers a side. Weights are enlarged, so that steps and scores differ well from row to row."""
    torch.manual_seed(seed)
    settings = ModelSettings(
        preset="custom", width=32, feed_forward=48, heads=4, encoder_layers=2, decoder_layers=2, encoder=encoder
    )
    model = Transformer(settings, AttentionSettings(**attention), SOURCE_VOCABULARY, TARGET_VOCABULARY)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.5)
    return model.to(dtype).eval()


def random_source(generator: random.Random, longest: int = 12) -> list[int]:
    return [generator.randrange(4, SOURCE_VOCABULARY) for _ in range(generator.randrange(longest))] + [EOS]
