"""The attention of a sentence that has ended is the one it was written with."""

import json
import random

import numpy as np
import pytest
import torch
from websockets.sync.client import connect

from gma.decoding import hypothesis
from gma.decoding.streaming import StreamingTranslator
from gma.decoding.talk import Arrived, Ended, Written
from gma.evaluation import forced
from gma.model import directory
from gma.serve import looks
from gma.text.vocabulary import BOS, EOS
from tests.support.serving import HASTE, served
from tests.support.small_models import random_text, small_loaded, small_model

TEXT = "Ich habe gestern meinen alten Freund im Park getroffen."


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch):
    """Random models seldom end by themselves."""
    monkeypatch.setattr(hypothesis, "length_limit", lambda needed: needed + 5)


@pytest.fixture(scope="module")
def loaded():
    return small_loaded(small_model(3, delta=1.0), delta=1.0)


def spoken(loaded, text: str, changes: dict[int, float]):
    """Pieces of either side's words, the words, and the end, of one sentence whose latency changes on its way."""
    events = []
    with StreamingTranslator(loaded).open_talk(1.0) as talk:
        for place, word in enumerate(text.split()):
            if place in changes:
                talk.change_latency(changes[place])
            events += talk.push(f"{word} ")
        events += talk.end()
    source, target = ([one.pieces for one in events if isinstance(one, kind)] for kind in (Arrived, Written))
    return source, target, [one for one in events if isinstance(one, Written)], events[-1]


def test_it_is_the_posterior_of_a_forced_pass():
    loaded = directory.load(directory.find("de-en"))
    source, target, words, ended = spoken(loaded, TEXT, {})
    found = np.array(looks.attention(loaded, source, target, ended.latencies))
    [pair] = forced.read(loaded, [TEXT], [" ".join(word.word for word in words)], delta=1.0)
    assert pair.target_pieces == tuple(map(len, target))
    columns = np.cumsum([0, *pair.source_pieces])
    rows = np.cumsum([0, *pair.target_pieces])
    assert found.shape == (pair.layers, len(target), len(source) + 1)
    for layer, row, column in np.ndindex(found.shape):
        until = columns[column + 1] if column < len(source) else columns[-1] + 1
        weights = pair.posterior[layer, rows[row] : rows[row + 1], columns[column] : until]
        assert abs(found[layer, row, column] - 100 * weights.sum(axis=1).mean()) <= 0.51
    assert (abs(found.sum(axis=2) - 100) <= 0.5 * found.shape[2]).all()


@pytest.mark.parametrize("policy", ["gaussian", "wait_k"])
def test_every_row_keeps_the_latency_it_was_written_with(policy):
    loaded = small_loaded(small_model(5, policy=policy, delta=(1.0, 4.0)), policy=policy, delta=(1.0, 4.0))
    generator = random.Random(1)
    changed = 0
    for _ in range(6):
        source, target, words, ended = spoken(loaded, random_text(generator, 12), {2: 3.0, 5: 1.0, 7: 4.0})
        assert isinstance(ended, Ended)
        weights = np.array(looks.attention(loaded, source, target, ended.latencies))
        for row, word in enumerate(words):
            assert not weights[:, row, word.source_words : -1].any()
        # what decides where a row looks has gone through the attention of all rows before it
        tokens = [piece for pieces in source for piece in pieces]
        delta = torch.empty(1, len(ended.hypothesis.tokens), dtype=torch.float64)
        for place, latency in ended.latencies:
            delta[:, place:] = latency
        output, _ = loaded.model.look(
            torch.tensor([[*tokens, EOS]]),
            torch.tensor([len(tokens) + 1]),
            torch.tensor([[BOS, *ended.hypothesis.tokens[:-1]]]),
            delta,
        )
        needed = torch.stack([layer.visible for layer in output.alignments]).amax(dim=(0, 1, 2)).tolist()
        assert needed == ended.hypothesis.needed[: len(needed)]
        changed += len(ended.latencies) > 1
    assert changed >= 3


def received(url: str, text: str, *, attention: bool) -> list[dict]:
    """What a speaker is sent until the attention has come, or nothing more does."""
    messages = []
    with connect(url.replace("http", "ws") + "/v1/stream") as socket:
        socket.send(json.dumps({"type": "hello", "v": 1, "attention": attention}))
        socket.send(json.dumps({"type": "text", "seq": 1, "text": text}))
        socket.send(json.dumps({"type": "end", "seq": 2}))
        try:
            while not messages or messages[-1]["type"] != "attention":
                messages.append(json.loads(socket.recv(20 if attention else 0.5)))
        except TimeoutError:
            assert not attention
    return messages


def test_it_is_sent_to_whoever_asks_for_it(loaded):
    with served(loaded) as (url, _):
        messages = received(url, "abc de fgh", attention=True)
        assert messages[-1]["sentence"] == 0
        assert "n" not in messages[-1]
        words = [word for one in messages if one["type"] == "words" for word in one["words"]]
        assert np.array(messages[-1]["weights"]).shape == (2, len(words), 4)
        assert not any(one["type"] == "attention" for one in received(url, "abc de fgh", attention=False))


def test_of_long_sentences_it_is_not_computed(loaded, monkeypatch):
    asked = []
    monkeypatch.setattr(looks, "attention", lambda *given: asked.append(given) or [])
    with served(loaded, HASTE.model_copy(update={"attention_words": 3})) as (url, _):
        received(url, "abc de\nabc", attention=True)
        assert [len(given[1]) for given in asked]
        assert all(max(len(given[1]), len(given[2])) <= 3 for given in asked)
