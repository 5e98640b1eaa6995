"""A latency that changes while a stream runs, a translation begun elsewhere, and a stream that fails beside others."""

import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gma.decoding import ensemble
from gma.decoding import hypothesis as decoded
from gma.decoding.streaming import StreamError, StreamFailed, StreamingTranslator
from tests.support.small_models import SHARING, random_text, small_loaded, small_model

POLICIES = [*({"sharing": sharing} for sharing in SHARING), {"policy": "wait_k"}, {"positions": "absolute"}]
MODELS = [small_loaded(small_model(seed, **policy), **policy) for seed, policy in enumerate(POLICIES)]


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch):
    """Random models seldom end by themselves."""
    monkeypatch.setattr(decoded, "length_limit", lambda needed: needed + 5)


def latencies(loaded) -> list[float]:
    return [1.0, 2.0, 4.0, math.inf] if loaded.model.policy.latency_symbol == "k" else [-1.0, 0.3, 1.0, 2.5, math.inf]


def content(emissions) -> list[tuple]:
    return [(one.word, one.index, one.source_words, one.needed_end, one.pieces) for one in emissions]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6))
def test_words_before_a_change_are_those_of_the_old_latency_and_words_after_it_of_the_new(seed):
    """Whether it waits or not: as if it had been known from the beginning from which word on what is kept."""
    generator = random.Random(seed)
    loaded = generator.choice(MODELS)
    text, (old, new) = random_text(generator, 12), generator.choices(latencies(loaded), k=2)
    translator = StreamingTranslator(loaded)
    stream, neighbour = translator.open(old), translator.open(new)
    neighbour.push(random_text(generator, 4) + " ")
    words, emissions, place = text.split(), [], None
    moved = generator.randrange(len(words) + 1)
    for count, word in enumerate(words):
        if count == moved and not stream.ended:
            place = stream.change_latency(new)
            assert stream.delta == new
            assert place >= len(emissions)
        emissions += stream.push(f"{word} ")
    emissions += stream.finish()

    planned = StreamingTranslator(loaded).open(old)
    if place is not None:
        planned.change_latency(new, place)
    assert content(planned.push(text) + planned.finish()) == content(emissions)
    assert planned.hypothesis.needed == stream.hypothesis.needed

    unchanged = StreamingTranslator(loaded).open(old)
    before = unchanged.push(text) + unchanged.finish()
    count = len(before) if place is None else place
    assert content(before)[:count] == content(emissions)[:count]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6))
def test_a_translation_that_was_begun_elsewhere_goes_on_where_it_stopped(seed):
    generator = random.Random(seed)
    loaded = generator.choice(MODELS)
    text, delta = random_text(generator, 12), generator.choice(latencies(loaded))
    first = StreamingTranslator(loaded).open(delta)
    emissions = first.push(text) + first.finish()
    count = generator.randrange(len(emissions) + 1)
    given = [piece for one in emissions[:count] for piece in one.pieces]
    second = StreamingTranslator(loaded).open(delta, written=given)
    cut = generator.randrange(len(text) + 1)
    rest = second.push(text[:cut]) + second.push(text[cut:]) + second.finish()
    assert content(rest) == content(emissions[count:])
    assert second.delays == first.delays


def test_a_change_reaches_a_stream_that_waits():
    loaded = MODELS[0]
    stream = StreamingTranslator(loaded).open(math.inf)
    assert stream.push("ab c de f ") == []
    stream.delta = -1.0
    assert stream.push("")
    with pytest.raises(ValueError, match="nan"):
        stream.delta = math.nan
    assert stream.delta == -1.0


@pytest.mark.parametrize("written", [[2], [10**6], [-1], ["a"], [True]])
def test_given_tokens_that_are_none(written):
    with pytest.raises(StreamError, match="written holds"):
        StreamingTranslator(MODELS[0]).open(written=written)


def run(loaded, texts, translator=None):
    translator = translator or StreamingTranslator(loaded)
    streams, found = [translator.open(1.0) for _ in texts], [[] for _ in texts]
    for step in range(13):
        going = {
            stream: f"{text.split()[step]} "
            for stream, text in zip(streams, texts)
            if step < len(text.split()) and stream.error is None
        }
        for stream, emissions in translator.push_many(going).items():
            found[streams.index(stream)] += content(emissions)
    for stream, emissions in translator.finish_many([one for one in streams if one.error is None]).items():
        found[streams.index(stream)] += content(emissions)
    return found, streams


def injected(monkeypatch, poison: int, accidents: int = 0) -> list[int]:
    """Let a step fail whose source holds a certain token, or the first ones that do; sizes of those that failed."""
    open_batch, failed = ensemble.open_batch, []

    def opened(model):
        batch = open_batch(model)
        push = batch.push

        def fail(tokens):
            if any(poison in new for new in tokens.values()) and (not accidents or len(failed) < accidents):
                failed.append(len(tokens))
                raise RuntimeError("injected")
            return push(tokens)

        batch.push = fail
        return batch

    monkeypatch.setattr(ensemble, "open_batch", opened)
    return failed


def fifty(loaded) -> tuple[list[str], int]:
    generator = random.Random(1)
    texts = [random_text(generator, 12).replace("q", "a") for _ in range(50)]
    texts[17] = "ab c q d e"
    return texts, loaded.tokenizer.source.encode_word("q")[0]


def test_a_stream_that_fails_costs_itself_and_no_other(monkeypatch):
    loaded = small_loaded(small_model(0))
    texts, poison = fifty(loaded)
    expected, _ = run(loaded, texts)
    failed = injected(monkeypatch, poison)
    found, streams = run(loaded, texts)
    assert failed[0] > 20
    assert [number for number, stream in enumerate(streams) if stream.error] == [17]
    assert found[:17] + found[18:] == expected[:17] + expected[18:]
    with pytest.raises(StreamFailed, match="injected"):
        streams[17].push("a ")


def test_an_accident_costs_nobody(monkeypatch):
    loaded = small_loaded(small_model(0))
    texts, poison = fifty(loaded)
    expected, _ = run(loaded, texts)
    failed = injected(monkeypatch, poison, accidents=1)
    found, streams = run(loaded, texts)
    assert failed
    assert found == expected
    assert not any(stream.error for stream in streams)


def test_changed_latencies_are_kept_when_a_neighbour_fails(monkeypatch):
    loaded = MODELS[0]
    injected(monkeypatch, loaded.tokenizer.source.encode_word("q")[0])
    generator = random.Random(7)
    for _ in range(20):
        text = random_text(generator, 10).replace("q", "a")
        found = []
        for fails in (False, True):
            translator = StreamingTranslator(loaded)
            stream, emissions = translator.open(0.3), []
            for place, word in enumerate(text.split()):
                if place == 2 and not stream.ended:
                    stream.delta = 2.5
                if place == 4 and fails:
                    with pytest.raises(StreamFailed, match="failed twice"):
                        translator.open(1.0).push("ab q ")
                emissions += stream.push(f"{word} ")
            found.append(content(emissions + stream.finish()))
        assert found[0] == found[1]
