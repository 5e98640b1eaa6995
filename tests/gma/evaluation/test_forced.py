"""Alignments read off a model: the reading itself, and that forcing shows what translating does."""

import numpy as np
import pytest

from gma.corpus import generated
from gma.decoding.incremental import IncrementalBatch
from gma.errors import UserError
from gma.evaluation import forced
from gma.evaluation.forced import ForcedPair
from gma.model import directory
from gma.text.vocabulary import EOS
from gma.text.words import pieces_per_word, word_delays
from tests.support import tiny_model, tiny_run

PAIRS = generated.generate(40, seed=5)
SOURCES, TARGETS = [pair.source for pair in PAIRS], [pair.target for pair in PAIRS]


@pytest.fixture(scope="module", params=["word", "bpe"])
def loaded(tmp_path_factory, request):
    more = tiny_model.BPE if request.param == "bpe" else ()
    corpus = tiny_run.make_corpus(tmp_path_factory.mktemp("corpus"), *more)
    return directory.load(tiny_model.make(tmp_path_factory.mktemp("model"), corpus, *more))


def made_up(positions=(1.0, 1.0), posterior=None, source_pieces=(1, 2, 1), target_pieces=(1,)) -> ForcedPair:
    columns = sum(source_pieces) + 1
    posterior = np.full((1, len(positions), columns), 1 / columns) if posterior is None else np.array([posterior])
    one = np.array([positions])
    return ForcedPair(source_pieces, target_pieces, (9,) * columns, (9,) * one.size, one, one, posterior, one, ())


@pytest.mark.parametrize(
    ("position", "word"), [(1.0, 0), (1.49, 0), (1.5, 1), (2.5, 1), (3.49, 1), (3.5, 2), (4.9, 2), (5.0, 2), (99.0, 2)]
)
def test_a_position_means_the_nearest_word(position, word):
    """Pieces 2 and 3 are of word 1; the end of the sentence, and what lies past it, is no word."""
    assert made_up(positions=(position, 9.0)).links_by_position(0) == {(word, 0)}


def test_the_largest_weight_is_never_the_end_of_the_sentence():
    row = [0.1, 0.0, 0.2, 0.1, 0.6]
    assert made_up(posterior=[row, row]).links_by_posterior(0) == {(1, 0)}


def test_a_word_has_the_links_of_all_its_pieces():
    pair = made_up(positions=(1.0, 4.0, 9.0), target_pieces=(2,))
    assert pair.links_by_position(0) == {(0, 0), (2, 0)}
    assert pair.gold_tokens(frozenset({(1, 0)})) == [(1, 0), (2, 0), (1, 1), (2, 1)]


def test_every_target_word_is_linked_to_a_source_word(loaded):
    for pair, read in zip(PAIRS, forced.read(loaded, SOURCES, TARGETS)):
        lengths = len(pair.source.split()), len(pair.target.split())
        assert (len(read.source_pieces), len(read.target_pieces), len(read.delays)) == (*lengths, lengths[1])
        for layer in range(read.layers):
            for links in (read.links_by_position(layer), read.links_by_posterior(layer)):
                assert {target for _, target in links} == set(range(lengths[1]))
                assert {source for source, _ in links} <= set(range(lengths[0]))


def test_batches_change_nothing(loaded, monkeypatch):
    counted = []
    together = forced.read(loaded, SOURCES, TARGETS, delta=1.0, progress=counted.append)
    assert sum(counted) == len(SOURCES)
    monkeypatch.setattr(forced, "TOKENS", 1)
    for one, other in zip(together, forced.read(loaded, SOURCES, TARGETS, delta=1.0)):
        assert one.source_tokens == other.source_tokens
        np.testing.assert_allclose(one.positions, other.positions, rtol=1e-5)
        np.testing.assert_allclose(one.posterior, other.posterior, atol=1e-5)
        assert one.posterior.shape == (2, len(one.target_tokens), len(one.source_tokens))


@pytest.mark.parametrize("delta", [0.0, 1.0, 3.0, float("inf")])
def test_a_forced_model_waits_and_looks_as_one_that_is_decoding(loaded, delta):
    source, target = loaded.tokenizer.source, loaded.tokenizer.target
    pairs = forced.read(loaded, SOURCES, TARGETS, delta=delta)
    batch = IncrementalBatch(loaded.model)
    slots = [batch.open(delta) for _ in pairs]
    batch.push({slot: [*source.encode(text), EOS] for slot, text in zip(slots, SOURCES)})
    needed, positions = [[] for _ in pairs], [[] for _ in pairs]
    while scores := batch.advance():
        for row, slot in enumerate(scores.slots):
            needed[slot].append(scores.needed[row])
            positions[slot].append(scores.positions[row])
        written = [pairs[slot].target_tokens[len(needed[slot]) - 1] for slot in scores.slots]
        batch.write(scores.slots, written)
    for slot, pair in enumerate(pairs):
        assert pair.needed.tolist() == needed[slot]
        np.testing.assert_allclose(pair.positions.T, positions[slot], rtol=1e-4)
        pieces = pieces_per_word(source.encode(SOURCES[slot]), source)
        assert list(pair.delays) == word_delays(pieces, pair.target_tokens[:-1], needed[slot], target)


def test_nothing_is_heard_too_late_with_everything_heard(loaded):
    for read in forced.read(loaded, SOURCES[:5], TARGETS[:5], delta=float("inf")):
        assert set(read.delays) == {len(read.source_pieces)}


def test_the_diagonal():
    assert forced.diagonal(4, 4) == {(0, 0), (1, 1), (2, 2), (3, 3)}
    for source in range(1, 30):
        for target in range(1, 30):
            links = forced.diagonal(source, target)
            assert sorted(i for _, i in links) == list(range(target))
            columns = [j for _, j in sorted((i, j) for j, i in links)]
            assert columns == sorted(columns)
            # turned round by 180 degrees it is itself, up to rounding
            assert all(abs(j + columns[-1 - i] - (source - 1)) <= 1 for i, j in enumerate(columns))


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [(["a"], [], "1 sources and 0 targets"), (["a", " "], ["b", "c"], "source 2"), (["a"], [""], "target 1 has no")],
)
def test_wrong_pairs(loaded, sources, targets, message):
    with pytest.raises((UserError, ValueError), match=message):
        forced.read(loaded, sources, targets)
