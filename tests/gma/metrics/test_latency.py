"""Latency of sentences and corpora: definitions, invariants, conventions and wrong calls."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gma.metrics import Latency, corpus_latency, latency, sentence_latencies
from tests.support.delay_sequences import RECORDED, WORKED, random_sentence

FOUR = ("al", "laal", "ap", "dal")


def four(scores) -> list[float]:
    return [getattr(scores, name) for name in FOUR]


@st.composite
def sentences(draw):
    n, r = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    delays = sorted(draw(st.lists(st.integers(0, n), min_size=1, max_size=40)))
    return delays, n, r


@pytest.mark.parametrize("row", WORKED)
def test_worked_examples(row):
    delays, *expected = row
    assert four(latency(delays, 6, 6)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("row", RECORDED)
def test_values_recorded_from_simuleval(row):
    seed, source_length, reference_length, words, *expected = row
    sentence = random_sentence(seed)
    assert (sentence.source_length, sentence.reference_length, len(sentence.delays)) == (
        source_length,
        reference_length,
        words,
    )
    assert four(latency(*sentence)) == pytest.approx(expected, abs=1e-9, rel=0)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_reading_everything_first_lags_by_the_whole_source(n, m, r):
    scores = latency([n] * m, n, r)
    assert (scores.al, scores.laal, scores.cw) == (n, n, n)
    assert scores.dal == pytest.approx(n)
    assert scores.ap == pytest.approx(m / r)


@given(st.integers(1, 50), st.integers(1, 60))
def test_wait_k_of_equal_length_lags_by_k(n, k):
    """AL of wait-k is k when source, hypothesis and reference are equally long (Ma et al. 2019)."""
    delays = [min(k + i, n) for i in range(n)]
    scores = latency(delays, n, n)
    assert four(scores)[:2] == pytest.approx([min(k, n)] * 2)
    assert scores.dal == pytest.approx(min(k, n))
    assert scores.cw == pytest.approx(n / len(set(delays)))


@given(sentences())
def test_against_the_definitions_written_out(sentence):
    delays, n, r = sentence
    m = len(delays)

    def lagging(target_length):
        tau = min([i for i in range(1, m + 1) if delays[i - 1] >= n], default=m)
        return sum(delays[i - 1] - (i - 1) * n / target_length for i in range(1, tau + 1)) / tau

    # g'_i unrolled: the latest of all earlier delays plus the time it takes to write from there to i
    delayed = [max(delays[j] + (i - j) * n / m for j in range(i + 1)) for i in range(m)]
    reads = [i for i in range(m) if delays[i] > (delays[i - 1] if i else 0)]
    expected = Latency(
        al=lagging(r),
        laal=lagging(max(m, r)),
        ap=sum(delays) / (n * r),
        dal=sum(value - i * n / m for i, value in enumerate(delayed)) / m,
        cw=delays[-1] / len(reads) if reads else 0,
    )
    assert list(latency(delays, n, r)) == pytest.approx(list(expected), abs=1e-9)


@given(sentences(), st.floats(1e-3, 1e3))
def test_unit_of_the_source_does_not_matter(sentence, unit):
    delays, n, r = sentence
    words = latency(delays, n, r)
    scaled = latency([delay * unit for delay in delays], n * unit, r)
    assert scaled.ap == pytest.approx(words.ap)
    for name in ("al", "laal", "dal", "cw"):
        assert getattr(scaled, name) == pytest.approx(getattr(words, name) * unit, abs=1e-9 * max(1, unit))


@given(sentences(), st.integers(0, 39))
def test_waiting_longer_never_lowers_ap_or_dal(sentence, place):
    delays, n, r = sentence
    place %= len(delays)
    later = [*delays[:place], *(max(delay, min(n, delays[place] + 1)) for delay in delays[place:])]
    before, after = latency(delays, n, r), latency(later, n, r)
    assert after.ap >= before.ap
    assert after.dal >= before.dal - 1e-9


@given(sentences())
def test_laal_is_al_unless_the_hypothesis_is_too_long(sentence):
    delays, n, r = sentence
    scores = latency(delays, n, r)
    assert scores.laal >= scores.al
    if len(delays) <= r:
        assert scores.laal == scores.al


def test_consecutive_wait_is_the_mean_length_of_a_read():
    assert latency([2, 2, 5, 5, 6], 8, 5).cw == 6 / 3
    assert latency([0, 0, 4], 4, 3).cw == 4
    assert latency([0, 0], 4, 3).cw == 0


def test_an_empty_hypothesis_counts_as_offline():
    assert latency([], 7, 3) == Latency(al=7, laal=7, ap=1, dal=7, cw=7)


def test_times_beyond_the_source_are_taken():
    """Computation-aware times pass the end of the source."""
    assert latency([7, 9], 6, 2).al == 7


def test_numbers_of_numpy_are_taken():
    delays = [1, 2, 2]
    assert latency(np.array(delays), np.int32(3), np.int64(3)) == latency(delays, 3, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 3, 2], 3, 3), r"must not decrease, got 2 after 3 for target unit 3.*running maximum"),
        (([-1, 2], 3, 3), r"at least 0, got -1 for target unit 1"),
        (([1, math.nan], 3, 3), r"finite and at least 0, got nan for target unit 2"),
        (([1, math.inf], 3, 3), r"got inf for target unit 2"),
        (([1], 0, 3), r"source_length must be positive and finite, got 0"),
        (([], 0, 3), r"source_length must be positive"),
        (([1], 3, 0), r"reference_length must be positive and finite, got 0"),
        (([1], math.inf, 3), r"source_length must be positive and finite, got inf"),
    ],
)
def test_wrong_calls(arguments, message):
    with pytest.raises(ValueError, match=message):
        latency(*arguments)


class TestCorpus:
    DELAYS = ((1, 2, 3), (), (2, 2))
    SOURCES = (3, 5, 2)
    REFERENCES = (3, 4, 1)

    def test_mean_over_sentences_with_the_empty_ones(self):
        scores = corpus_latency(self.DELAYS, self.SOURCES, self.REFERENCES, convention="word")
        sentences = [latency(*sentence) for sentence in zip(self.DELAYS, self.SOURCES, self.REFERENCES)]
        assert scores[:5] == pytest.approx(np.mean(sentences, axis=0))
        assert (scores.convention, scores.sentences, scores.empty) == ("word", 3, 1)
        assert sentence_latencies(self.DELAYS, self.SOURCES, self.REFERENCES, convention="word") == sentences

    def test_paper_convention_divides_by_the_hypothesis(self):
        delays, sources = [[1, 2, 4, 4], [3, 3]], [4, 3]
        scores = corpus_latency(delays, sources, convention="paper")
        first, second = latency(delays[0], 4, 4), latency(delays[1], 3, 2)
        assert scores[:5] == pytest.approx(np.mean([first, second], axis=0))
        assert scores.laal == scores.al
        assert (scores.convention, scores.empty) == ("paper", 0)

    def test_nothing_but_the_end_token_is_empty_in_the_paper_convention(self):
        scores = corpus_latency([[1], [2, 2]], [6, 2], convention="paper")
        assert (scores.empty, scores.al) == (1, (6 + 2) / 2)

    def test_all_empty(self):
        scores = corpus_latency([[], []], [4, 6], [1, 1], convention="word")
        assert scores[:5] == (5, 5, 1, 5, 5)
        assert scores.empty == scores.sentences == 2

    def test_the_label_names_the_convention_and_the_empty_hypotheses(self):
        word = corpus_latency(self.DELAYS, self.SOURCES, self.REFERENCES, convention="word").label
        paper = corpus_latency([[1, 2]], [2], convention="paper").label
        assert word.startswith("word convention (words, |Y| = reference length")
        assert "1 empty hypothesis counted" in word
        assert paper.startswith("paper convention (model tokens with end-of-sentence")
        assert "0 empty hypotheses" in paper
        assert "the authors' script divides |x|" in paper

    @pytest.mark.parametrize(
        ("arguments", "convention", "message"),
        [
            (([[1]], [1], [1]), "words", "convention='words' is unknown: expected one of word, paper"),
            (([[1]], [1]), "word", "needs reference_lengths"),
            (([[1]], [1], [1]), "paper", "leave reference_lengths out"),
            (([[1]], [1, 2], [1]), "word", "got 1 delays, 2 source_lengths, 1 reference_lengths"),
            (([], [], []), "word", "at least one sentence"),
            (([[1], [2, 1]], [2, 2], [2, 2]), "word", "sentence 2: delays must not decrease"),
            (([[1], [1]], [2, 0], [2, 2]), "word", "sentence 2: source_length"),
        ],
    )
    def test_wrong_calls(self, arguments, convention, message):
        with pytest.raises(ValueError, match=message):
            corpus_latency(*arguments, convention=convention)
