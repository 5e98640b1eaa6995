"""Translation by meaning units: streams, batches and a loop that starts every prefix from scratch give the same."""

import random
from typing import NamedTuple

import pytest
import torch

from gma.decoding import hypothesis
from gma.decoding.engine import open_batch
from gma.decoding.greedy import greedy
from gma.decoding.hypothesis import Hypothesis
from gma.decoding.streaming import StreamingTranslator
from gma.decoding.translate import translate
from gma.decoding.unit_batch import UnitBatch
from gma.errors import UserError
from gma.evaluation import forced
from gma.policies import LatencyError, OfflineCrossAttention, Segmenter
from gma.text.rules import TextRules
from gma.text.tokenizer import Tokenizer
from gma.text.vocabulary import BOS, END_OF_WORD, EOS, BpeVocabulary
from tests.contracts.test_stream_parity import (
    CUTS,
    LARGEST_EXCUSED_SHARE,
    MARGIN,
    assert_words_follow_from_tokens,
    by_words,
    stream,
)
from tests.support.small_models import SOURCE_VOCABULARY, letters, random_text, small_loaded, small_model

THRESHOLDS = (0.2, 0.4, 0.5, 0.6, 0.8)
SENTENCES = 40
ALONE = 8  # of them are streamed with no one else in the batch, too


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch):
    """Random models seldom end by themselves."""
    monkeypatch.setattr(hypothesis, "length_limit", lambda needed: needed + 8)


def small_mu(seed: int, dtype=torch.float64):
    """A random model whose translations end now and then, and a random segmenter whose scores are spread out."""
    model = small_model(seed, dtype, policy="offline")
    loaded = small_loaded(model, policy="offline")
    # of several pieces, the last of which says that the word has ended
    known = letters(SOURCE_VOCABULARY)[:-1]
    pieces = [*known, END_OF_WORD, *(letter + END_OF_WORD for letter in known)]
    source = BpeVocabulary(pieces, [(letter, END_OF_WORD) for letter in known], TextRules())
    loaded = loaded._replace(tokenizer=Tokenizer(source, loaded.tokenizer.target))
    segmenter = Segmenter(source, 32, hidden=16).to(dtype)
    tokens = torch.randint(4, SOURCE_VOCABULARY, (64, 8))
    with torch.no_grad():
        states = model.encoder(tokens, torch.full((64,), 8))
        hidden = model.decoder(tokens, states, torch.full((64,), 8))[-1].hidden
        mean = hidden.mean(dim=(0, 1))
        # what all states have in common decides nothing
        end = model.project.weight[EOS]
        end -= mean * (end @ mean) / (mean @ mean)
        end *= 20.0
        segmenter.output.weight *= 20.0
        segmenter.output.bias -= segmenter.logits(states).median()
    model.use_segmenter(segmenter)
    return loaded


class FromScratch(NamedTuple):
    tokens: list[int]
    needed: list[int]
    complete: bool
    margin: float  # the smallest of all decisions


@torch.no_grad()
def from_scratch(loaded, text: str, threshold: float) -> FromScratch:
    """The definition: every prefix is encoded anew, every step runs the whole decoder."""
    model, vocabulary = loaded.model, loaded.tokenizer.source
    words = [vocabulary.encode_word(word) for word in text.split()]
    committed, needed = [], []
    margin = torch.inf
    for count in range(1, len(words) + 2):
        heard = [token for word in words[:count] for token in word]
        is_last = count > len(words)
        if not is_last:
            state = model.encoder(torch.tensor([heard]), torch.tensor([len(heard)]))[0, -1]
            score = model.segmenter(state).item()
            margin = min(margin, abs(score - threshold))
            if score < threshold:
                continue
        source = torch.tensor([[*heard, EOS]])
        while True:
            target = torch.tensor([[BOS, *committed]])
            logits = model(source, torch.tensor([source.shape[1]]), target).logits[0, -1]
            best = logits.topk(2)
            margin = min(margin, (best.values[0] - best.values[1]).item())
            token = best.indices[0].item()
            if token == EOS and not is_last:
                break
            needed.append(len(heard) + is_last)
            if token == EOS:
                return FromScratch(committed, needed, True, margin)
            if len(needed) > hypothesis.length_limit(max(needed)):
                return FromScratch(committed, needed, False, margin)
            committed.append(token)
    raise AssertionError("the last prefix ends the translation")


def is_same(hypothesis: Hypothesis, expected: FromScratch) -> bool:
    return (hypothesis.tokens, hypothesis.needed, hypothesis.complete) == expected[:3]


class Outcome(NamedTuple):
    excused: int  # sentences that differ from the loop, each because rounding decides
    several: int  # sentences that were written in more than one unit
    complete: int


def outcome(dtype, seed: int, count: int) -> Outcome:
    """Check every way of translating against the loop."""
    generator = random.Random(seed)
    loaded = small_mu(seed, dtype)
    translator = StreamingTranslator(loaded)
    texts = [random_text(generator) for _ in range(count)]
    thresholds = [generator.choice(THRESHOLDS) for _ in texts]
    expected = [from_scratch(loaded, text, threshold) for text, threshold in zip(texts, thresholds)]

    mixed = generator.choices(CUTS, k=count)
    ways = [stream(translator, texts, thresholds, cuts, generator, 1.0) for cuts in ([by_words] * count, mixed)]
    ways.append(stream(translator, texts, thresholds, mixed[::-1], generator, 0.5))
    for way in ways:
        for text, streamed in zip(texts, way):
            assert_words_follow_from_tokens(loaded, text, streamed)
    assert translator.streams == 0
    hypotheses = [[streamed.hypothesis for streamed in row] for row in zip(*ways)]
    for row, text, threshold in zip(hypotheses[:ALONE], texts, thresholds):
        row.append(stream(translator, [text], [threshold], [by_words], generator, 1.0)[0].hypothesis)
    sources = [[*loaded.tokenizer.source.encode(text), EOS] for text in texts]
    for threshold in THRESHOLDS:
        chosen = [index for index in range(count) if thresholds[index] == threshold]
        batched = greedy(loaded.model, [sources[index] for index in chosen], delta=threshold, slots=5)
        for index, one in zip(chosen, batched):
            hypotheses[index].append(one)

    excused = 0
    for row, sentence in zip(hypotheses, expected):
        same = all(is_same(hypothesis, sentence) for hypothesis in row)
        assert same or sentence.margin < MARGIN
        excused += not same
    return Outcome(
        excused,
        sum(len(set(sentence.needed)) > 1 for sentence in expected),
        sum(sentence.complete for sentence in expected),
    )


def test_float64_without_exception():
    found = outcome(torch.float64, 0, SENTENCES)
    assert found.excused == 0
    # units that add to others, and translations that end by themselves and that do not
    assert found.several > SENTENCES / 6
    assert SENTENCES / 4 < found.complete < SENTENCES


def test_float32_unless_rounding_decides():
    found = outcome(torch.float32, 2, SENTENCES)
    assert found.excused <= LARGEST_EXCUSED_SHARE * SENTENCES
    assert found.several > SENTENCES / 6


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_many_sentences(dtype):
    models, count = 9, 64
    found = [outcome(dtype, seed, count) for seed in range(3, 3 + models)]
    excused = sum(one.excused for one in found)
    assert excused <= (0 if dtype == torch.float64 else LARGEST_EXCUSED_SHARE * models * count)
    assert sum(one.several for one in found) > models * count / 20


def test_a_unit_is_written_when_its_last_word_has_arrived():
    """A classifier that ends a unit with every word, and one that never does."""
    loaded = small_mu(0)
    translator = StreamingTranslator(loaded)
    with torch.no_grad():
        loaded.model.segmenter.output.weight.zero_()
        loaded.model.segmenter.output.bias.fill_(2.0)
    words = ["ab", "cd", "efg"]
    with translator.open(0.5) as sentence:
        written = [sentence.push(f"{word} ") for word in words]
        assert any(written[:-1])
        assert all(
            emission.source_words == emission.arrived_words == place
            for place, emissions in enumerate(written, start=1)
            for emission in emissions
        )
    with torch.no_grad():
        loaded.model.segmenter.output.bias.fill_(-2.0)
    with translator.open(0.5) as sentence:
        assert not any(sentence.push(f"{word} ") for word in words)
        assert sentence.awaited_tokens == sentence.arrived_tokens + 1
        assert all(emission.source_words == 3 for emission in sentence.finish())
    # nothing is committed, so it is what the model writes of the whole source
    whole = translate(loaded, [" ".join(words)], delta=0.5)[0]
    offline = small_mu(0).model
    offline.policy = OfflineCrossAttention
    source = [*loaded.tokenizer.source.encode(" ".join(words)), EOS]
    assert whole.tokens == greedy(offline, [source])[0].tokens


def test_the_threshold_is_between_0_and_1():
    loaded = small_mu(0)
    for wrong in (0.0, 1.0, -1.0, 3.0, torch.inf):
        with pytest.raises(LatencyError, match=r"θ is .*; expected a number between 0 and 1"):
            StreamingTranslator(loaded).open(wrong)
        with pytest.raises(LatencyError, match="expected a number between 0 and 1"):
            translate(loaded, ["a"], delta=wrong)
    configured, asked = (translate(loaded, ["ab c defg"], delta=delta)[0] for delta in (None, 0.5))
    assert (configured.tokens, configured.needed) == (asked.tokens, asked.needed)


def test_there_is_nothing_to_search():
    loaded = small_mu(0)
    with pytest.raises(UserError, match=r"at θ = 0\.4 this model writes while .* Use beam 1$"):
        translate(loaded, ["a"], delta=0.4, beam=2)
    with pytest.raises(ValueError, match="use beam 1"):
        StreamingTranslator(loaded).open(beam=2)


@pytest.mark.parametrize(
    ("attention", "encoder", "message"),
    [
        ({"policy": "gaussian"}, "causal", "policy is 'gaussian'; expected 'offline'"),
        ({"policy": "offline"}, "bidirectional", "encoder is bidirectional.* expected a causal one"),
    ],
)
def test_models_that_cannot_translate_by_units(attention, encoder, message):
    model = small_model(0, encoder=encoder, **attention)
    with pytest.raises(UserError, match=message):
        model.use_segmenter(Segmenter(small_mu(0).tokenizer.source, 32))


def test_a_given_translation_belongs_to_no_unit():
    with pytest.raises(UserError, match="look at the offline model"):
        forced.read(small_mu(0), ["a b"], ["c d"])


def test_source_after_the_end():
    loaded = small_mu(0)
    batch = open_batch(loaded.model)
    assert isinstance(batch, UnitBatch)
    slot = batch.open()
    batch.push({slot: [4, EOS]})
    with pytest.raises(ValueError, match="after the end of its source"):
        batch.push({slot: [5]})
