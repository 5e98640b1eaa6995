"""Beam search: greedy with one hypothesis, exhaustive with enough of them."""

import itertools
import math
import random

import pytest
import torch

from gma.config.settings import AttentionSettings, ModelSettings
from gma.decoding.beam import beam_search, complete
from gma.decoding.greedy import greedy
from gma.decoding.hypothesis import Hypothesis
from gma.decoding.incremental import IncrementalBatch
from gma.decoding.streaming import StreamingTranslator
from gma.model.transformer import Transformer
from gma.text.vocabulary import BOS, EOS
from tests.support.small_models import random_source, random_text, small_loaded, small_model

TINY_VOCABULARY = 5
STEPS = 4
POLICIES = [
    {"policy": "offline"},
    {"policy": "gaussian", "delta": math.inf},
    {"policy": "gaussian", "sharing": "none"},
    {"policy": "wait_k", "delta": 2},
    {"policy": "monotonic", "energy_bias": 0.5},
    {"policy": "monotonic", "monotonic": "hard", "energy_bias": 0.5},
]


def tiny_model(seed: int, **attention) -> Transformer:
    torch.manual_seed(seed)
    settings = ModelSettings(preset="custom", width=8, feed_forward=8, heads=2, encoder_layers=1, decoder_layers=2)
    return Transformer(settings, AttentionSettings(**attention), 10, TINY_VOCABULARY).double().eval()


def mean_likelihood(model, source, tokens, begun: int = 0) -> float:
    """Of tokens that end in EOS, from step `begun` on."""
    output = model(torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([[BOS, *tokens[:-1]]]))
    chosen = output.logits[0].log_softmax(dim=1)[range(len(tokens)), tokens]
    return chosen[begun:].mean().item()


def all_ends(begun: list[int]) -> list[list[int]]:
    words = [token for token in range(TINY_VOCABULARY) if token != EOS]
    return [
        [*begun, *end, EOS] for count in range(STEPS - len(begun)) for end in itertools.product(words, repeat=count)
    ]


@pytest.fixture
def _few_steps(monkeypatch):
    for module in ("hypothesis", "beam"):
        monkeypatch.setattr(f"gma.decoding.{module}.length_limit", lambda needed: STEPS - 1)


@pytest.mark.usefixtures("_few_steps")
@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_best_of_all_translations(policy, seed):
    model = tiny_model(seed, **policy)
    sources = [[4, 7, EOS], [5, EOS], [9, 8, 6, 4, EOS]]
    # more than there are hypotheses of any length
    found = beam_search(model, sources, width=4**STEPS, slots=4**STEPS * 2)
    for source, one in zip(sources, found):
        best = max(all_ends([]), key=lambda tokens: mean_likelihood(model, source, tokens))
        assert [*one.tokens, EOS] == best
        assert len(one.needed) == len(one.positions) == len(one.seconds) == len(best)


@pytest.mark.usefixtures("_few_steps")
def test_a_translation_that_was_begun_is_continued_in_the_best_way():
    model = tiny_model(0, delta=0.0)
    source, begun = [4, 7, 9, EOS], [3]
    batch = IncrementalBatch(model)
    slot = batch.open()
    batch.push({slot: source})
    scores = batch.advance()
    hypothesis = Hypothesis()
    hypothesis.step(begun[0], scores.needed[0], scores.positions[0], scores.widths[0])
    batch.write([slot], begun)
    found = complete(batch, {slot: hypothesis}, width=4**STEPS)[slot]
    assert [*found.tokens, EOS] == max(
        all_ends(begun), key=lambda tokens: mean_likelihood(model, source, tokens, len(begun))
    )
    assert hypothesis.tokens == begun
    assert list(batch.sentences) == [slot]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_one_hypothesis_is_greedy_search(policy):
    generator = random.Random(0)
    model = small_model(1, **policy)
    sources = [random_source(generator) for _ in range(6)]
    for one, other in zip(beam_search(model, sources, width=1, slots=4), greedy(model, sources)):
        assert (one.tokens, one.needed, one.complete) == (other.tokens, other.needed, other.complete)
        torch.testing.assert_close(torch.tensor(one.positions), torch.tensor(other.positions))


def test_what_else_is_in_the_batch_changes_nothing():
    generator = random.Random(0)
    model = small_model(2, policy="offline")
    sources = [random_source(generator, 6) for _ in range(8)]
    together = beam_search(model, sources, width=3)
    alone = [beam_search(model, [source], width=3)[0] for source in sources]
    assert [hypothesis.tokens for hypothesis in together] == [hypothesis.tokens for hypothesis in alone]


def test_a_stream_searches_only_what_it_has_not_written():
    generator = random.Random(1)
    translator = StreamingTranslator(small_loaded(small_model(0)))
    for _ in range(4):
        text = random_text(generator)
        greedy_stream, other, beam_stream = translator.open(0.6), translator.open(1.0), translator.open(0.6, beam=3)
        before = greedy_stream.push(f"{text} ")
        other.push("ab c")
        assert [emission.word for emission in beam_stream.push(f"{text} ")] == [emission.word for emission in before]
        begun = list(beam_stream.hypothesis.tokens)
        emissions = [*before, *beam_stream.finish()]
        assert beam_stream.hypothesis.tokens[: len(begun)] == begun
        assert [emission.word for emission in emissions] == translator.tokenizer.target.words(
            beam_stream.hypothesis.tokens
        )
        greedy_stream.finish()
        other.finish()
    assert translator.streams == 0
