"""Nothing that is typed is lost in silence: long words, words behind the model's own end, and bad neighbours."""

import subprocess
import sys
import time
import warnings

import pytest

from gma import StreamingTranslator
from gma.decoding.streaming import StreamsRefused
from gma.decoding.talk import Arrived, Ended, Written
from gma.decoding.translate import translate, translate_lines
from gma.errors import Caution
from gma.model import directory

GOOD = ("Guten Morgen!", "Wie geht es dir?", "Ich habe Hunger.", "Das ist ein Buch.", "Ich bin müde.")
# the shipped model ends its translation after the eighth or ninth word
EARLY = "Wir verdanken dem Mond nicht nur schöne Vollmondnächte und manchmal auch dunkle Neumondnächte am Horizont."
BAD = {
    "a word of 5,000 characters": "a" * 5000,
    "one among others": f"Ich habe {'ä' * 5000} Hunger.",
    "full-width": "Ａ" * 4097,
    "a hundred thousand": "x" * 100_000,
    "no letter": "😀" * 5000,
    "accents": "e\u0301" * 5000,
    "zero width": "\u200b" * 5000,
    "three of them": " ".join(["ß" * 4097] * 3),
}


@pytest.fixture(scope="module")
def loaded():
    return directory.load(directory.find("de-en"))


@pytest.fixture(scope="module")
def plain(loaded) -> list[str]:
    return translate_lines(loaded, GOOD, delta=2.0)


def _lines(bad: str) -> list[str]:
    return [*GOOD[:3], bad, *GOOD[3:]]


@pytest.mark.parametrize("name", BAD)
def test_a_line_with_a_word_that_is_none_costs_no_other(loaded, plain, name):
    lines = translate_lines(loaded, _lines(BAD[name]), delta=2.0)
    assert lines[:3] + lines[4:] == plain
    talk = StreamingTranslator(loaded).open_talk(2.0)
    begun = time.perf_counter()
    events = talk.push("".join(f"{line}\n" for line in _lines(BAD[name])))
    assert time.perf_counter() - begun < 20
    written: dict[str, str] = {}
    for event in events:
        if isinstance(event, Arrived | Written):
            side = written.setdefault(f"{type(event).__name__} {event.sentence}", "")
            written[f"{type(event).__name__} {event.sentence}"] = f"{side} {event.word}".strip()
    last = max(event.sentence for event in events if isinstance(event, Ended))
    assert [written[f"Written {place}"] for place in (0, 1, 2, last - 1, last)] == plain
    assert written[f"Arrived {last}"] == GOOD[-1]


@pytest.mark.parametrize("command", ["translate", "stream"])
def test_the_command_line_names_the_word_and_its_line(plain, command):
    text = "".join(f"{line}\n" for line in _lines(BAD["one among others"]))
    done = subprocess.run(
        [sys.executable, "-m", "gma", command, "--delta=2"], input=text, capture_output=True, text=True, timeout=240
    )
    lines = [line.rstrip() for line in done.stdout.split("\n")]
    assert done.returncode == 0
    assert lines[:3] + lines[4:6] == plain
    assert lines[3]
    assert "line 4: 'ääääääääääääääääääää'… has 5,000 characters and is left out" in done.stderr


@pytest.mark.parametrize("bad", [7, None, b"Ja. ", "a" * 5000, "a" * 5000 + " ", "ja " * 2000])
@pytest.mark.parametrize("place", [0, 2])
def test_a_text_that_is_none_is_refused_by_its_stream_and_the_others_are_served(loaded, bad, place):
    translator = StreamingTranslator(loaded)
    streams = [translator.open(2.0) for _ in range(3)]
    texts = dict.fromkeys(streams, "Guten Morgen! ")
    texts[streams[place]] = bad
    with pytest.raises(StreamsRefused, match=f"^stream {place + 1} of 3: .*The others were served") as refused:
        translator.push_many(texts)
    others = [stream for stream in streams if stream is not streams[place]]
    assert list(refused.value.refused) == [streams[place]]
    rest = translator.finish_many(others)
    for stream in others:
        words = [emission.word for emission in refused.value.emissions[stream] + rest[stream]]
        assert words == ["Good", "morning."]
    assert [emission.word for emission in streams[place].push("Guten Morgen!") + streams[place].finish()] == [
        "Good",
        "morning.",
    ]


@pytest.mark.parametrize("delta", [0.5, 2.0, 4.0])
def test_what_follows_the_model_s_own_end_is_translated_too(loaded, delta):
    (alone,) = translate(loaded, [EARLY], delta=delta)
    assert alone.used_words < len(EARLY.split())
    with StreamingTranslator(loaded).open_talk(delta) as talk:
        events = talk.push(EARLY) + talk.end()
    ended = [event for event in events if isinstance(event, Ended)]
    assert ended[0].reason == "model"
    assert ended[0].source_words == alone.used_words
    assert sum(event.source_words for event in ended) == len(EARLY.split())
    words = [event.word for event in events if isinstance(event, Written)]
    assert len(words) > len(alone.words)
    assert translate_lines(loaded, [EARLY], delta=delta) == [" ".join(words)]


@pytest.mark.parametrize("way", ["word by word", "at once"])
def test_a_stream_says_that_it_does_not_translate_the_rest(loaded, way):
    stream = StreamingTranslator(loaded).open(2.0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for text in EARLY.split() if way == "word by word" else [EARLY]:
            stream.push(f"{text} ")
        stream.push("Und mehr.")
        stream.finish()
    (warning,) = said
    assert warning.category is Caution
    assert f"after {len(EARLY.split()) - stream.unread_words} source words" in str(warning.message) or way != "at once"


def test_a_stream_that_is_heard_to_its_end_says_nothing(loaded):
    with warnings.catch_warnings(), StreamingTranslator(loaded).open(2.0) as stream:
        warnings.simplefilter("error")
        stream.push("Guten Morgen! 😀 ")
        stream.finish()
