"""Translating texts: order, empty lines, length limits, and beams that make no sense."""

import math
import random

import pytest

from gma.decoding import greedy
from gma.decoding.incremental import IncrementalBatch
from gma.decoding.native_batch import NativeBatch
from gma.decoding.translate import translate
from gma.errors import UserError
from gma.text.words import word_delays
from tests.support.small_models import random_text, small_loaded, small_model


@pytest.fixture(scope="module")
def loaded():
    return small_loaded(small_model(0, delta=1.0), delta=1.0)


@pytest.fixture(scope="module")
def texts():
    generator = random.Random(0)
    return [random_text(generator) for _ in range(12)]


def test_each_text_gets_its_own_translation(loaded, texts):
    finished = []
    together = translate(loaded, texts, delta=0.6, progress=finished.append)
    assert sum(finished) == len(texts)
    for text, translation in zip(texts[:5], together):
        alone = translate(loaded, [text], delta=0.6, slots=1)[0]
        assert (translation.text, translation.delays, translation.tokens) == (alone.text, alone.delays, alone.tokens)
        assert translation.text.split() == list(translation.words)
        pieces = [len(loaded.tokenizer.source.encode_word(word)) for word in text.split()]
        target = loaded.tokenizer.target
        assert list(translation.delays) == word_delays(pieces, translation.tokens, translation.needed, target)
        assert translation.source_tokens == sum(pieces) + 1
        assert len(translation.seconds) == len(translation.words)
        assert list(translation.seconds) == sorted(translation.seconds)
        assert len(translation.needed) == len(translation.positions) == len(translation.tokens) + 1


def test_texts_without_words(loaded):
    finished = []
    assert [each.text for each in translate(loaded, ["", " \t", "\u2003"], progress=finished.append)] == [""] * 3
    assert sum(finished) == 3
    assert translate(loaded, []) == []


def test_a_long_source_shares_the_batch_with_few(loaded, texts, monkeypatch):
    sizes = []
    monkeypatch.setattr(greedy, "LONG_SOURCE", 30)
    for batch in (IncrementalBatch, NativeBatch):
        reserve = batch.reserve
        monkeypatch.setattr(
            batch, "reserve", lambda batch, slots, reserve=reserve: (sizes.append(slots), reserve(batch, slots))[1]
        )
    long = " ".join("ab" for _ in range(40))
    expected = translate(loaded, [long], delta=0.6)[0]
    sizes.clear()
    translations = translate(loaded, [*texts[:3], long, *texts[3:]], delta=0.6, slots=12)
    assert translations[3].tokens == expected.tokens
    assert translations[0].tokens == translate(loaded, texts[:1], delta=0.6)[0].tokens
    assert min(sizes) <= 12 * 30 // 81 < max(sizes)


def test_every_sentence_is_in_one_portion():
    generator = random.Random(0)
    lengths = [generator.choice([5, 700, 1025, 5_000, 70_000]) for _ in range(300)]
    seen = []
    for indices, slots in greedy.portions(lengths, 64):
        seen += indices
        longest = max(lengths[index] for index in indices)
        assert slots == 1 or slots * longest <= 64 * greedy.LONG_SOURCE
        assert longest <= greedy.LONG_SOURCE or len(indices) <= slots
    assert sorted(seen) == list(range(300))


@pytest.mark.parametrize(
    ("delta", "beam", "message"),
    [
        (None, 2, "at δ = 1 this model writes while the source is still arriving"),
        (3.0, 4, "δ = 3"),
        (None, 0, "beam is 0"),
        (None, 1.5, "beam is 1.5"),
    ],
)
def test_a_beam_that_makes_no_sense(loaded, delta, beam, message):
    with pytest.raises(UserError, match=message):
        translate(loaded, ["ab"], delta=delta, beam=beam)


@pytest.mark.parametrize(
    ("attention", "advice"),
    [
        ({"policy": "wait_k", "delta": 3.0}, "or k = inf to wait"),
        ({"policy": "gain", "delta": 0.2}, "or θ = 0 to wait"),
        ({"policy": "itst", "delta": 0.5}, "or θ = inf to wait"),
        ({"policy": "monotonic"}, "Use beam 1$"),
    ],
)
def test_who_asks_for_a_beam_too_early_is_told_the_latency_at_which_it_can_be_had(attention, advice):
    model = small_loaded(small_model(0, **attention), **attention)
    with pytest.raises(UserError, match=advice):
        translate(model, ["ab"], beam=2)


def test_a_beam_where_the_whole_source_is_awaited(loaded, texts):
    for translation, text in zip(translate(loaded, texts[:3], delta=math.inf, beam=3), texts):
        assert set(translation.delays) <= {len(text.split())}
        assert len(translation.seconds) == len(translation.words)


def test_a_sentence_without_end_is_refused(loaded, monkeypatch):
    monkeypatch.setattr("gma.decoding.translate.LONGEST_ALONE", 20)
    with pytest.raises(UserError, match=r"begins with 'a a a a.*41 tokens; expected at most 20"):
        translate(loaded, ["ab c", "a " * 40])
