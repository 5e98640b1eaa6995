"""Streams as their users treat them: odd text, wrong calls, streams that are forgotten, and their neighbours."""

import contextlib
import gc
import math
import random
import subprocess
import sys
import threading

import pytest
import torch

from gma.decoding import streaming
from gma.decoding.streaming import Emission, StreamError, StreamingTranslator, StreamsRefused
from gma.decoding.translate import translate
from gma.text.vocabulary import EOS
from gma.text.words import LONGEST_WORD
from tests.support.small_models import random_text, small_loaded, small_model


@pytest.fixture(scope="module")
def loaded():
    return small_loaded(small_model(0, delta=1.0), delta=1.0)


@pytest.fixture
def translator(loaded):
    return StreamingTranslator(loaded)


def words(emissions) -> list[str]:
    return [emission.word for emission in emissions]


def buffers(translator) -> int:
    """Bytes held by the batch."""
    batch = translator._batch
    caches = (*batch._encoder_caches, *batch._self_caches, *batch._cross_caches)
    alignments = [x for alignment in batch._alignments if alignment for x in alignment]
    tensors = [batch._hidden, batch._query, *alignments, *(x for cache in caches for x in (cache.key, cache.value))]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (["ab", "", "c", "", " d", ""], "abc d"),
        (["  ", "\t", "ab  ", " \n ", "c"], "ab c"),
        (["a\u00a0b\u2028c"], "a b c"),
        (["жук 日本語 ", "🦋 a"], "жук 日本語 🦋 a"),
        (["\ud800 a\udcff b"], "\ud800 a\udcff b"),
        (["a\x00b \x1b[31m c"], "a\x00b \x1b[31m c"),
    ],
)
def test_odd_text_gives_what_the_same_words_give_at_once(loaded, translator, parts, text):
    stream = translator.open()
    emissions = [emission for part in parts for emission in stream.push(part)]
    assert words([*emissions, *stream.finish()]) == list(translate(loaded, [text])[0].words)
    assert stream.arrived_words == len(text.split())


@pytest.mark.parametrize("parts", [[], [""], [" ", "\n\t "]], ids=str)
@pytest.mark.parametrize("delta", [-9.0, 1.0, math.inf])
def test_no_words_give_none(translator, parts, delta):
    stream = translator.open(delta)
    assert [stream.push(part) for part in parts] == [[] for _ in parts]
    assert stream.finish() == []
    assert stream.ended
    assert translator.streams == 0


def test_half_a_word_is_not_heard(translator):
    stream = translator.open(-5.0)
    assert stream.push("a") == []
    assert stream.arrived_words == 0
    assert stream.push(" ")
    assert stream.arrived_words == 1


@pytest.mark.parametrize("text", [b"ab ", None, 7, ["ab"]])
def test_text_that_is_no_text(translator, text):
    stream = translator.open()
    with pytest.raises(TypeError, match=r"text is of type .*expected str"):
        stream.push(text)
    assert stream.push("ab ") is not None


def test_after_the_end(translator):
    stream = translator.open()
    stream.push("ab c ")
    stream.finish()
    with pytest.raises(StreamError, match=r"finished.*open another"):
        stream.push("d ")
    with pytest.raises(StreamError, match=r"finished.*open another"):
        stream.finish()
    assert stream.poll() == []
    stream.close()
    stream.close()
    with pytest.raises(StreamError, match="closed"):
        stream.push("d ")


@pytest.mark.parametrize(("delta", "error"), [("1", TypeError), (True, TypeError), (math.nan, ValueError)])
def test_a_delta_that_is_none(translator, delta, error):
    with pytest.raises(error, match="delta is"):
        translator.open(delta)


@pytest.mark.parametrize("beam", [0, -1, 1.5, True])
def test_a_beam_that_is_none(translator, beam):
    with pytest.raises(ValueError, match="beam is"):
        translator.open(beam=beam)


def test_a_stream_of_another_translator(loaded, translator):
    with pytest.raises(StreamError, match="another translator"):
        translator.push_many({StreamingTranslator(loaded).open(): "a "})


def test_a_refused_text_costs_its_own_stream_and_is_named(loaded, translator):
    first, closed, last = streams = [translator.open() for _ in range(3)]
    closed.close()
    emissions = translator.push_many({first: "ab ", last: "c "})
    for bad, reason in (("de ", "closed"), (7, "expected str"), ("b" * 5000, "more than 4,096")):
        stream = closed if bad == "de " else translator.open()
        with pytest.raises(StreamsRefused, match=rf"^stream 2 of 3: .*{reason}") as refused:
            translator.push_many({first: "c ", stream: bad, last: "ab "})
        assert refused.value.refused.keys() == {stream}
        assert refused.value.emissions.keys() == {first, last}
        emissions = {one: emissions[one] + refused.value.emissions[one] for one in (first, last)}
        assert stream.arrived_words == 0
        stream.close()
    with pytest.raises(StreamsRefused, match=r"^stream 2 of 3: the stream is closed"):
        translator.finish_many(streams)
    assert first.ended
    assert last.ended
    with pytest.raises(StreamError, match=r"^the stream is closed"):
        closed.push("ab ")


def test_a_source_that_never_ends_is_refused_and_disturbs_no_one(loaded):
    translator = StreamingTranslator(loaded, longest=60)
    one, endless = translator.open(), translator.open(2.0)
    emissions = one.push("ab c ")
    with pytest.raises(StreamError, match=r"10,001 tokens.*at most 60"):
        endless.push("a " * 10_000)
    for _ in range(59):
        endless.push("a ")
    with pytest.raises(StreamError, match="61 tokens"):
        endless.push("a ")
    # nor is a word begun that could not be finished
    with pytest.raises(StreamError, match="61 tokens"):
        endless.push("a")
    assert endless.arrived_words == 59
    assert words([*emissions, *one.push("de"), *one.finish()]) == list(translate(loaded, ["ab c de"])[0].words)
    endless.finish()
    assert buffers(translator) == 0


def test_a_word_without_an_end_is_refused_before_it_fills_the_memory(loaded):
    stream = StreamingTranslator(loaded, longest=5000).open()
    stream.push("a " + "b" * LONGEST_WORD)
    for text in ("b", "b ", "c " * 3 + "b" * (LONGEST_WORD + 1)):
        with pytest.raises(StreamError, match=r"more than 4,096 characters; expected words with white space"):
            stream.push(text)
    assert stream.arrived_words == 1


def test_a_long_sentence_leaves_no_large_buffers_behind(loaded):
    """Though the translator is never idle."""
    translator = StreamingTranslator(loaded, longest=5000)
    steady = translator.open()
    steady.push("ab c ")
    before = buffers(translator)
    for _ in range(2):
        with translator.open() as long:
            long.push("a " * 4000)
            assert buffers(translator) > 50 * before
        assert buffers(translator) < 3 * before
    assert words([*steady.push("de"), *steady.finish()])[-1:] == list(translate(loaded, ["ab c de"])[0].words)[-1:]


@pytest.mark.slow
def test_ten_thousand_words(loaded):
    translator = StreamingTranslator(loaded, longest=10_001)
    text = " ".join(random.Random(0).choices("abcdef", k=10_000))
    stream = translator.open(1.0)
    emissions = [*stream.push(text), *stream.finish()]
    assert words(emissions) == list(translate(loaded, [text], delta=1.0)[0].words)


def test_an_end_chosen_early_ends_the_stream(loaded, translator):
    handle = loaded.model.project.register_forward_hook(
        lambda module, inputs, logits: logits.index_fill(1, torch.tensor([EOS]), math.inf)
    )
    try:
        stream = translator.open(-5.0)
        assert stream.push("ab ") == []
        assert stream.ended
        assert translator.streams == 0
        assert stream.push("c d " * 5_000) == []
        assert stream.finish() == []
        with pytest.raises(StreamError, match="finished"):
            stream.push("e")
    finally:
        handle.remove()


def test_a_loop_ends_even_if_the_source_does_not(translator):
    stream = translator.open(-1e6)
    emissions = stream.push("a ")
    assert stream.ended
    assert not stream.hypothesis.complete
    assert 0 < len(stream.hypothesis.tokens) <= 20
    assert all(emission.source_words == 0 for emission in emissions)


def test_forgotten_and_closed_streams_give_back_their_place(loaded, translator):
    generator = random.Random(0)
    assert buffers(translator) == 0
    for way in ("forget", "close", "leave"):
        streams = [translator.open(1.0) for _ in range(5)]
        translator.push_many({stream: random_text(generator) + " " for stream in streams})
        assert translator.streams > 0
        assert buffers(translator) > 0
        if way == "close":
            [stream.close() for stream in streams]
        elif way == "leave":
            with contextlib.ExitStack() as stack:
                [stack.enter_context(stream) for stream in streams]
        elif way == "forget":
            del streams
            gc.collect()
        assert translator.streams == 0
        assert buffers(translator) == 0


def test_a_stream_that_is_forgotten_in_the_middle_of_a_step(translator, monkeypatch):
    kept, forgotten = translator.open(1.0), translator.open(1.0)
    forgotten.push("ab ")
    advance, doomed = translator._batch.advance, [forgotten]
    del forgotten

    def forget(slots):
        doomed.clear()
        return advance(slots)

    monkeypatch.setattr(translator._batch, "advance", forget)
    kept.push("ab c ")
    assert translator.streams == 1 - kept.ended
    kept.finish()
    assert translator.streams == 0


def test_an_interrupted_step_closes_the_streams_and_the_translator_goes_on(loaded, translator, monkeypatch):
    streams = [translator.open(1.0, beam=2) for _ in range(2)]
    monkeypatch.setattr(loaded.model.decoder.layers[1].feed_forward, "forward", interrupt)
    with pytest.raises(KeyboardInterrupt):
        translator.push_many(dict.fromkeys(streams, "ab c de f "))
    monkeypatch.undo()
    for stream in streams:
        with pytest.raises(StreamError, match="closed"):
            stream.finish()
    assert buffers(translator) == 0
    stream = translator.open()
    assert words([*stream.push("ab c"), *stream.finish()]) == list(translate(loaded, ["ab c"])[0].words)


def interrupt(hidden):
    raise KeyboardInterrupt


def test_neighbours_that_come_and_go_change_nothing(loaded, translator):
    generator = random.Random(3)
    texts = [random_text(generator) for _ in range(5)]
    expected = [list(translation.words) for translation in translate(loaded, texts, delta=0.6)]
    for text, alone in zip(texts, expected):
        stream, written = translator.open(0.6), []
        for word in text.split():
            neighbour = translator.open(generator.choice([-2.0, 0.0, 3.0, math.inf]))
            neighbour.push(random_text(generator, 3))
            if generator.random() < 0.5:
                neighbour.finish()
            elif generator.random() < 0.5:
                neighbour.close()
            written += stream.push(f"{word} ")
        assert words([*written, *stream.finish()]) == alone


def test_what_others_set_going_is_kept_for_its_stream(loaded):
    translator = StreamingTranslator(loaded)
    first, second = translator.open(0.6), translator.open(0.6)
    emissions = translator.push_many({first: "ab c de ", second: "ab c de "})
    assert emissions[first] == emissions[second]
    rest = translator.finish_many([first, second])
    assert words([*emissions[first], *rest[first]]) == list(translate(loaded, ["ab c de"], delta=0.6)[0].words)
    assert first.poll() == []


def test_what_is_waited_for(translator):
    offline = translator.open(math.inf)
    offline.push("a b ")
    assert offline.awaited_tokens == math.inf
    stream = translator.open(3.0)
    stream.push("a ")
    assert stream.arrived_tokens == 1
    assert stream.awaited_tokens > 1
    stream.finish()
    assert stream.awaited_tokens == 0


def test_several_threads(loaded, translator):
    generator = random.Random(5)
    texts = [random_text(generator) for _ in range(6)]
    expected = [list(translation.words) for translation in translate(loaded, texts, delta=0.6)]
    written: dict[int, list[str]] = {}

    def speak(index):
        stream = translator.open(0.6)
        emissions = [emission for word in texts[index].split() for emission in stream.push(f"{word} ")]
        written[index] = words([*emissions, *stream.finish()])

    threads = [threading.Thread(target=speak, args=(index,)) for index in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [written[index] for index in range(len(texts))] == expected


def test_asking_while_another_thread_writes_loses_nothing(loaded, translator, monkeypatch):
    text = "ab c de f"
    stream, asked, threads = translator.open(0.6), [], []

    def while_asked(*fields):
        threads.append(threading.Thread(target=lambda: asked.extend(stream.poll())))
        threads[-1].start()
        # long enough for one that does not wait for the step to end
        threads[-1].join(0.1)
        return Emission(*fields)

    monkeypatch.setattr(streaming, "Emission", while_asked)
    emissions = [*stream.push(text), *stream.finish()]
    for thread in threads:
        thread.join()
    written = sorted([*emissions, *asked], key=lambda emission: emission.index)
    assert words(written) == list(translate(loaded, [text], delta=0.6)[0].words)
    assert written


def test_importing_the_package_does_not_load_the_translator():
    code = "import sys, gma; assert 'gma.decoding.streaming' not in sys.modules; gma.StreamingTranslator; gma.Emission"
    subprocess.run([sys.executable, "-c", code], check=True)
