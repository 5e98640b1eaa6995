"""Meaning units are what their definition says, and the classifier learns them."""

import pytest
import torch

from gma.corpus import generated
from gma.decoding import hypothesis
from gma.errors import UserError
from gma.model import directory
from gma.policies import Segmenter
from gma.text.vocabulary import BOS, EOS
from gma.training import segmenter, unit_labels
from gma.training.unit_labels import label
from tests.support import tiny_model, tiny_run

TRAINING = (
    "attention.policy=offline",
    "model.width=32",
    "model.dropout=0.0",
    "training.updates=150",
    "training.warmup_updates=50",
    "training.learning_rate=5e-3",
    "training.validate_every=150",
    "training.save_every=150",
    "training.log_every=50",
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_run.make_corpus(tmp_path_factory.mktemp("segmentation") / "corpus")


@pytest.fixture(scope="module")
def random_model(corpus, tmp_path_factory):
    """Ends its sentences often, and so finds many units."""
    loaded = directory.load(tiny_model.make(tmp_path_factory.mktemp("random"), corpus, offline=True, seed=2))
    model = loaded.model.double()
    tokens = torch.randint(4, 100, (64, 8), generator=torch.Generator().manual_seed(0))
    lengths = torch.full((64,), 8)
    with torch.no_grad():
        hidden = model.decoder(tokens, model.encoder(tokens, lengths), lengths)[-1].hidden
        mean, end = hidden.mean(dim=(0, 1)), model.project.weight[EOS]
        # what all states have in common decides nothing
        end -= mean * (end @ mean) / (mean @ mean)
        end *= 10.0
    return loaded


@pytest.fixture(scope="module")
def trained_model(corpus, tmp_path_factory):
    run = tmp_path_factory.mktemp("trained")
    tiny_run.train(corpus, run, *TRAINING)
    loaded = directory.load(run)
    loaded.model.double()
    return loaded


@torch.no_grad()
def translation(model, source: list[int], begun: list[int]) -> tuple[list[int], bool]:
    """Greedy, by a pass over everything at every step; and whether it ended by itself."""
    tokens = list(begun)
    while True:
        logits = model(torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([[BOS, *tokens]])).logits
        best = logits[0, -1].argmax().item()
        if best == EOS:
            return tokens, True
        if len(tokens) == hypothesis.length_limit(len(source)):
            return tokens, False
        tokens.append(best)


def by_definition(model, words: list[tuple[int, ...]]) -> list[bool]:
    whole, _ = translation(model, [*sum(words, ()), EOS], [])
    committed, units = [], []
    for count in range(1, len(words) + 1):
        tokens, ended = translation(model, [*sum(words[:count], ()), EOS], committed)
        units.append(ended and whole[: len(tokens)] == tokens)
        if units[-1]:
            committed = tokens
    return units


@pytest.mark.parametrize("name", ["random_model", pytest.param("trained_model", marks=pytest.mark.slow)])
def test_labels_are_those_of_the_definition(name, request, monkeypatch):
    for module in (hypothesis, unit_labels):
        monkeypatch.setattr(module, "length_limit", lambda needed: needed + 8)
    loaded = request.getfixturevalue(name)
    vocabulary = loaded.tokenizer.source
    texts = [pair.source.split() for pair in generated.generate(30, seed=5)]
    words = [[vocabulary.encode_word(word) for word in text] for text in texts]
    sources = [[*sum(sentence, ()), EOS] for sentence in words]
    told = []
    units = label(loaded.model, sources, vocabulary, slots=7, progress=told.append)
    assert units == [by_definition(loaded.model, sentence) for sentence in words]
    assert sum(told) == len(sources) + sum(map(len, words))
    # before the last word too, and not everywhere
    early = [unit for sentence in units for unit in sentence[:-1]]
    assert 0 < sum(early) < len(early) * 0.9


def test_words_of_several_pieces(corpus, tmp_path):
    """A label for every word, not for every piece; states are those of a word's last piece."""
    pieces = tiny_run.make_corpus(tmp_path / "corpus", *tiny_model.BPE)
    loaded = directory.load(tiny_model.make(tmp_path / "model", pieces, *tiny_model.BPE, offline=True))
    vocabulary = loaded.tokenizer.source
    texts = [pair.source for pair in generated.generate(5, seed=6)]
    sources = [[*vocabulary.encode(text), EOS] for text in texts]
    assert any(len(source) > len(text.split()) + 1 for source, text in zip(sources, texts))
    units = label(loaded.model, sources, vocabulary)
    assert [len(sentence) for sentence in units] == [len(text.split()) for text in texts]
    states = segmenter.word_states(loaded.model, sources, vocabulary)
    for text, found in zip(texts, states):
        for count, state in enumerate(found, start=1):
            heard = vocabulary.encode(" ".join(text.split()[:count]))
            with torch.no_grad():
                alone = loaded.model.encoder(torch.tensor([heard]), torch.tensor([len(heard)]))[0, -1]
            torch.testing.assert_close(state, alone)


def test_the_classifier_learns_what_can_be_learned(random_model):
    """Units end where a linear function of the state is positive: all but a few of unseen words are told right."""
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(10, 16, generator=generator) for _ in range(400)]
    units = [(sentence[:, 0] + sentence[:, 1] > 1.0).tolist() for sentence in states]
    torch.manual_seed(1)
    classifier = Segmenter(random_model.tokenizer.source, 16)
    fit = segmenter.fit(classifier, states, units, seed=0)
    assert (fit.words, fit.held_out_words) == (3600, 400)
    assert fit.precision > 0.95
    assert fit.recall > 0.95
    assert fit.loss < 0.2 * fit.guess
    # a score is the share of words like it that end a unit
    scores, true = classifier(torch.cat(states)), torch.tensor([unit for sentence in units for unit in sentence])
    assert abs(scores.mean().item() - true.double().mean().item()) < 0.02

    torch.manual_seed(1)
    again = Segmenter(random_model.tokenizer.source, 16)
    assert segmenter.fit(again, states, units, seed=0) == fit


def test_one_sentence_is_too_little(random_model):
    with pytest.raises(UserError, match=r"1 sentences .* expected 2 at least"):
        segmenter.fit(Segmenter(random_model.tokenizer.source, 16), [torch.zeros(2, 16)], [[True, False]], seed=0)
