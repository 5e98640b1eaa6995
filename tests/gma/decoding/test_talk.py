"""Text without end: sentence by sentence what a stream of its own gives, however it comes and whoever is beside it."""

import random
from dataclasses import replace

import pytest

from gma.decoding import hypothesis
from gma.decoding.streaming import StreamError, StreamingTranslator
from gma.decoding.talk import Arrived, Ended, Held, Written, advance
from gma.text.vocabulary import EOS
from gma.text.words import LONGEST_WORD
from tests.support.small_models import random_text, small_loaded, small_model

SENTENCES = 500
DELTA = 0.6
POLICIES = [{}, {"policy": "wait_k"}, {"policy": "monotonic", "energy_bias": 1.0}, {"policy": "offline"}]


@pytest.fixture(scope="module")
def loaded():
    return small_loaded(small_model(0, delta=1.0), delta=1.0)


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch):
    """Random models seldom end by themselves."""
    monkeypatch.setattr(hypothesis, "length_limit", lambda needed: needed + 5)


@pytest.fixture
def translator(loaded):
    return StreamingTranslator(loaded)


def sentence(generator: random.Random) -> str:
    return random_text(generator).strip() + generator.choice(["!", "?", "?!", " ."])


def endless(generator: random.Random, count: int) -> tuple[list[str], str]:
    """Sentences, and the text that they make."""
    parts = [sentence(generator) for _ in range(count)]
    return parts, "".join(part + generator.choice([" ", "\n", "  ", " \n\n"]) for part in parts)


def cut(text: str, generator: random.Random) -> list[str]:
    places = sorted(generator.choices(range(len(text) + 1), k=len(text) // 7))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)])]


def written(events) -> dict[int, list[tuple]]:
    """Of each sentence: words, what they needed, and their tokens."""
    found: dict[int, list[tuple]] = {}
    for event in events:
        if isinstance(event, Written):
            found.setdefault(event.sentence, []).append((event.word, event.source_words, event.pieces))
    return found


def alone(loaded, texts: list[str], delta) -> list[tuple[list[str], list[tuple], list[int]]]:
    """Source, words and g of a stream for each of them, fifty at a time; where the model ends the translation before
    the source, of another stream for the rest of it."""
    translator, found = StreamingTranslator(loaded), []
    todo = [text.split() for text in texts]
    while todo:
        streams = {translator.open(delta): words for words in todo[:50]}
        begun = translator.push_many({stream: " ".join(words) for stream, words in streams.items()})
        rest, todo = translator.finish_many(streams), todo[50:]
        left = []
        for stream, words in streams.items():
            emissions = [(one.word, one.source_words, one.pieces) for one in begun[stream] + rest[stream]]
            used = max(1, stream.arrived_words - stream.unread_words)
            found.append((words[:used], emissions, stream.hypothesis.needed))
            if used < len(words):
                left.append((len(found), words[used:]))
        # in their order: what is left of a sentence comes before the next one
        for place, words in reversed(left):
            found[place:place] = alone(loaded, [" ".join(words)], delta)
    return found


def test_five_hundred_sentences_are_five_hundred_streams(loaded, translator):
    generator = random.Random(0)
    expected, text = endless(generator, SENTENCES)
    talk, neighbours = translator.open_talk(DELTA), []
    events = []
    for part in cut(text, generator):
        if generator.random() < 0.05 and len(neighbours) < 3:
            neighbours.append(translator.open_talk(generator.choice([-1.0, 2.0])))
        for neighbour in neighbours:
            neighbour.hear(random_text(generator, 3) + generator.choice([" ", ". "]))
        talk.hear(part)
        found = advance({talk: None} | {one: generator.choice([1, 8, None]) for one in neighbours})
        events += found[talk]
        if neighbours and generator.random() < 0.1:
            neighbours.pop(generator.randrange(len(neighbours))).close()
    ended = [event for event in events if isinstance(event, Ended)]
    words = written(events)
    streams = alone(loaded, expected, DELTA)
    assert len(ended) == len(streams) > SENTENCES
    assert [one.reason for one in ended].count("model") == len(streams) - SENTENCES
    for place, (one, (source, emissions, needed)) in enumerate(zip(ended, streams)):
        assert text[slice(*one.source)].split() == source
        assert words.get(place, []) == emissions
        assert one.hypothesis.needed == needed
        assert one.delays == tuple(delay for _, delay, _ in emissions)
    for neighbour in neighbours:
        neighbour.close()
    talk.close()
    assert translator.streams == 0


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_places_on_both_sides(policy):
    loaded = small_loaded(small_model(1, **policy), **policy)
    generator = random.Random(2)
    _, text = endless(generator, 20)
    with StreamingTranslator(loaded).open_talk() as talk:
        events = [event for part in cut(text, generator) for event in talk.push(part)] + talk.end()
    target = " ".join(event.word for event in events if isinstance(event, Written))
    words = text.split()
    heard = [event for event in events if isinstance(event, Arrived)]
    assert [event.word for event in heard] == words == [text[slice(*event.source)] for event in heard]
    arrived = 0
    for event in events:
        if isinstance(event, Arrived):
            arrived += 1
        elif isinstance(event, Written):
            assert target[slice(*event.target)] == event.word
            assert len(text[slice(*event.source)].split()) == event.source_words
            assert event.after <= arrived + 1
        else:
            assert event.words == arrived
            assert len(text[slice(*event.source)].split()) == event.source_words
            assert len(target[slice(*event.target)].split()) == event.target_words


def test_what_ends_a_sentence(translator):
    talk = translator.open_talk(limit=8)
    events = talk.push("ab cd. de\nf g ") + talk.end() + talk.push("a b c d e f, g h ") + talk.push("3. ") + talk.end()
    ended = [event for event in events if isinstance(event, Ended)]
    assert [event.reason for event in ended] == ["punctuation", "line", "end", "limit", "end"]
    assert [event.source_words for event in ended] == [2, 1, 2, 6, 3]
    # neither empty lines nor ends without a word are sentences
    assert talk.end() == talk.push("\n \n") == []


def test_a_talk_goes_on_elsewhere(loaded):
    """From any moment: what had been written is not written again, and the rest is what it would have been."""
    generator = random.Random(3)
    _, text = endless(generator, 12)
    parts = cut(text, generator)
    with StreamingTranslator(loaded).open_talk(DELTA) as talk:
        events = [event for part in parts for event in talk.push(part)] + talk.end()
    for _ in range(25):
        received = generator.randrange(len(events))
        held = hold(events[:received])
        with StreamingTranslator(loaded).open_talk(held=held) as other:
            rest = [event for part in cut(text[held.source :], generator) for event in other.push(part)] + other.end()
        assert told(rest) == told(events[received:])


def told(events) -> list[tuple]:
    """What was written and where; without the source, which another server hears again."""
    return [
        (event.sentence, event.word, event.index, event.source, event.target, event.after)
        if isinstance(event, Written)
        else (event.sentence, event.source, event.target, event.words, event.delays, event.reason)
        for event in events
        if not isinstance(event, Arrived)
    ]


def hold(events) -> Held:
    """What is needed to go on after these events."""
    held = Held(changes=[(0, DELTA)])
    for event in events:
        if isinstance(event, Ended):
            target = event.target.end + 1 if event.target_words else held.target
            held = Held(event.sentence + 1, event.source.end, target, event.words, [], [(0, DELTA)])
        elif isinstance(event, Written):
            held = replace(held, pieces=[*held.pieces, event.pieces])
    return held


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (Held(pieces=[[10_000]]), "target tokens"),
        (Held(pieces=[[-1]]), "target tokens"),
        (Held(pieces=[["a"]]), "target tokens"),
        (Held(pieces=[[EOS]]), "none of them"),
    ],
)
def test_pieces_that_are_none(translator, held, message):
    with pytest.raises(StreamError, match=message):
        translator.open_talk(held=held)
    assert translator.streams == 0


def test_pieces_that_no_translation_has_end_with_the_sentence(translator):
    """Forged: more than the source could ever need."""
    with translator.open_talk(held=Held(pieces=[[5]] * 1000)) as talk:
        events = talk.push("ab! cd e! ")
    assert [event.reason for event in events if isinstance(event, Ended)] == ["punctuation"] * 2


def test_words_that_are_none_are_left_out(translator):
    """And nothing else is, however the text is cut; its memory does not grow with such a word."""
    generator = random.Random(7)
    lines = ["ab c de\n", f"f {'g' * 5000} h\n", f"{'h' * LONGEST_WORD}  {'i' * (LONGEST_WORD + 1)}\t\n", "ab c de\n"]
    text = "".join(lines)
    found = []
    for parts in ([text], list(text), cut(text, generator), [text[:9000], text[9000:]]):
        talk = translator.open_talk()
        events = []
        for part in parts:
            events += talk.push(part)
            assert len(talk.partial) <= LONGEST_WORD + 1
        talk.close()
        found.append(told(events))
        arrived = [event for event in events if isinstance(event, Arrived)]
        assert [text[slice(*event.source)][:LONGEST_WORD] for event in arrived] == [event.word for event in arrived]
        assert "".join(f"{event.word} " for event in arrived).split() == [word[:LONGEST_WORD] for word in text.split()]
        assert [event.word[:2] for event in arrived if not event.pieces] == ["gg", "hh", "ii"]
    assert found[1:] == found[:1] * 3
    with pytest.raises(TypeError, match="expected str"):
        talk.push(b"ab ")


def test_a_closed_talk_costs_the_others_nothing(translator):
    one, closed = translator.open_talk(), translator.open_talk()
    one.hear("ab c ")
    closed.hear("ab c ")
    closed.close()
    with pytest.raises(StreamError, match="closed"):
        advance({one: None, closed: None})
    assert [event.word for event in advance({one: None})[one] if isinstance(event, Arrived)] == ["ab", "c"]


def test_memory_does_not_grow_with_the_text(loaded):
    translator = StreamingTranslator(loaded)
    generator = random.Random(5)
    with translator.open_talk() as talk:
        sizes = []
        for _ in range(60):
            talk.push(sentence(generator) + "\n")
            caches = (*translator._batch._encoder_caches, *translator._batch._cross_caches)
            sizes.append(sum(cache.key.numel() for cache in caches))
    assert max(sizes[30:]) <= max(sizes[:30])
