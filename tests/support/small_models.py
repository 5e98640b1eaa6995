"""Small random models and sentences for the tests of the Transformer and of decoding."""

import random

import torch

from gma.config.settings import AttentionSettings, Config, DataSettings, ModelSettings
from gma.model.directory import Loaded
from gma.model.transformer import Transformer
from gma.text.rules import TextRules
from gma.text.tokenizer import Tokenizer
from gma.text.vocabulary import EOS, BpeVocabulary

SOURCE_VOCABULARY, TARGET_VOCABULARY = 40, 50
SHARING = ("heads", "none", "layers", "all")


def small_settings(encoder="causal") -> ModelSettings:
    return ModelSettings(
        preset="custom", width=32, feed_forward=48, heads=4, encoder_layers=2, decoder_layers=2, encoder=encoder
    )


def small_model(seed: int, dtype=torch.float64, encoder="causal", **attention) -> Transformer:
    """Two layers a side. Weights are enlarged, so that steps and scores differ well from row to row; not those of
    predicted widths: a prior of σ = 0.1, which they would reach, multiplies the rounding of a position by 1/σ²."""
    torch.manual_seed(seed)
    model = Transformer(small_settings(encoder), AttentionSettings(**attention), SOURCE_VOCABULARY, TARGET_VOCABULARY)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "aligner.width" not in name:
                parameter.mul_(1.5)
    return model.to(dtype).eval()


def random_source(generator: random.Random, longest: int = 12) -> list[int]:
    return [generator.randrange(4, SOURCE_VOCABULARY) for _ in range(generator.randrange(longest))] + [EOS]


def small_loaded(model: Transformer, encoder="causal", **attention) -> Loaded:
    """A small model, the settings it was made with, and a tokenizer with a piece for every letter."""
    source, target = (
        BpeVocabulary([letter + end for letter in letters(size) for end in ("", "</w>")], [], TextRules())
        for size in (SOURCE_VOCABULARY, TARGET_VOCABULARY)
    )
    config = Config(
        model=small_settings(encoder), attention=AttentionSettings(**attention), data=DataSettings(joint=False)
    )
    return Loaded(model, config, Tokenizer(source, target), {})


def letters(vocabulary: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[: (vocabulary - 4) // 2]


def random_text(generator: random.Random, longest: int = 8) -> str:
    """At least a word; here and there one with an unknown letter, and odd white space."""
    known = letters(SOURCE_VOCABULARY)
    words = (
        "".join(generator.choices(known, k=generator.choice((1, 1, 2, 3)))) + generator.choice(["", "", "", "", "ж"])
        for _ in range(generator.randint(1, longest))
    )
    return "".join(word + generator.choice([" ", " ", "  ", "\t", "\u2003"]) for word in words).rstrip()
