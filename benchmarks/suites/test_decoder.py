"""The decoding engine against CTranslate2 and PyTorch: the same shapes and weights, greedy, 20 source and 40 target
tokens a sentence. CTranslate2 knows no policy: its step is without alignments, which is less work than ours."""

import random
from unittest.mock import patch

import pytest
import torch

from benchmarks.suites.interleave import interleaved
from gma.config.settings import AttentionSettings, ModelSettings
from gma.decoding.greedy import greedy
from gma.model.inference import Inference
from gma.model.transformer import Transformer
from gma.text.vocabulary import EOS

SOURCE, TARGET, ROUNDS = 20, 40, 7
SIZES = {
    "shipped": (
        {"preset": "custom", "width": 256, "feed_forward": 512, "heads": 4, "encoder_layers": 3, "decoder_layers": 2},
        {"width_rule": "predicted"},
        6000,
    ),
    "small": ({"preset": "small"}, {}, 16000),
}


def random_model(size: str) -> Transformer:
    """It never ends a sentence by itself."""
    settings, attention, vocabulary = SIZES[size]
    torch.manual_seed(0)
    model = Transformer(ModelSettings(**settings), AttentionSettings(**attention), vocabulary, vocabulary).eval()
    with torch.no_grad():
        model.project.weight[EOS] = 0.0
    return model


@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize("streams", [1, 64])
@pytest.mark.parametrize("size", SIZES)
def test_decoder(benchmark, tmp_path, size, streams, weights):
    pytest.importorskip("ctranslate2", reason="pip install -r benchmarks/requirements.txt")
    from benchmarks.suites import ctranslate2_model

    model, generator = random_model(size), random.Random(0)
    vocabulary = model.project.out_features
    sources = [[generator.randrange(4, vocabulary) for _ in range(SOURCE)] + [EOS] for _ in range(streams)]
    words = [ctranslate2_model.words(source) for source in sources]
    translator = ctranslate2_model.translator(model, tmp_path, weights, torch.get_num_threads())

    def by_ctranslate2():
        limits = {"min_decoding_length": TARGET, "max_decoding_length": TARGET}
        found = translator.translate_batch(words, beam_size=1, max_batch_size=streams, **limits)
        assert all(len(result.hypotheses[0]) == TARGET for result in found)

    def by(engine: str, weights: str = "float32"):
        model.inference = Inference(engine, weights)
        with patch("gma.decoding.hypothesis.length_limit", lambda needed: TARGET - 1):
            assert all(len(one.needed) == TARGET for one in greedy(model, sources, slots=streams))

    contenders = {
        "CTranslate2": by_ctranslate2,
        "native": lambda: by("native", weights),
        "PyTorch": lambda: by("torch"),
    }
    milliseconds = interleaved(benchmark, contenders, ROUNDS)
    benchmark.extra_info.update(
        suite=f"decoder {size} {streams} {weights}",
        tokens_per_second={name: streams * TARGET / time * 1e3 for name, time in milliseconds.items()},
    )
