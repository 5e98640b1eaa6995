"""Alignment error rate, gold links read in time, and the two file formats."""

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gma.metrics import (
    GoldLinks,
    alignment_error_rate,
    corpus_alignment_error_rate,
    corpus_gold_coverage,
    gold_coverage,
    parse_links,
    read_links,
)

link_sets = st.frozensets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


def test_worked_example():
    """Och and Ney (2003): of A's four links two are sure, one is only possible, one is wrong."""
    sure = {(0, 0), (1, 1), (2, 2)}
    possible = sure | {(3, 2), (4, 4)}
    hypothesis = {(0, 0), (1, 1), (3, 2), (5, 5)}
    assert alignment_error_rate(hypothesis, sure, possible) == pytest.approx(1 - (2 + 3) / (4 + 3))


@given(link_sets, link_sets, link_sets)
def test_range_and_extremes(hypothesis, sure, possible):
    rate = alignment_error_rate(hypothesis, sure, possible)
    assert 0 <= rate <= 1
    assert alignment_error_rate(sure, sure, possible) == 0
    assert rate == alignment_error_rate(hypothesis, sure, possible | sure)
    if hypothesis and not hypothesis & (sure | possible):
        assert rate == 1


@given(link_sets, link_sets)
def test_without_possible_links_it_is_one_minus_f(hypothesis, sure):
    if hypothesis or sure:
        f_score = 2 * len(hypothesis & sure) / (len(hypothesis) + len(sure))
        assert alignment_error_rate(hypothesis, sure, ()) == pytest.approx(1 - f_score)


@given(link_sets, link_sets, link_sets)
def test_a_possible_link_costs_nothing_and_a_wrong_one_does(hypothesis, sure, possible):
    rate = alignment_error_rate(hypothesis, sure, possible)
    more_possible = alignment_error_rate(hypothesis | {(9, 9)}, sure, possible | {(9, 9)})
    wrong = alignment_error_rate(hypothesis | {(9, 9)}, sure, possible)
    assert more_possible <= rate + 1e-12
    assert wrong > rate or rate == 1 or not (hypothesis | sure)


def test_nothing_to_find_and_nothing_claimed():
    assert alignment_error_rate(set(), set(), set()) == 0


def test_corpus_rate_sums_counts_over_sentences():
    """A long sentence weighs more: not the mean of the sentence rates."""
    gold = [
        GoldLinks(frozenset({(0, 0)}), frozenset({(0, 0)})),
        GoldLinks(frozenset((i, i) for i in range(9)), frozenset()),
    ]
    hypotheses = [{(0, 1)}, {(i, i) for i in range(9)}]
    scores = corpus_alignment_error_rate(hypotheses, gold)
    assert scores.error_rate == pytest.approx(1 - 18 / 20)
    assert (scores.precision, scores.recall, scores.links) == (0.9, 0.9, 10)
    shifted = [{(i, 20 * s + j) for i, j in links} for s, links in enumerate(hypotheses)]
    merged_sure = {(i, 20 * s + j) for s, (sure, _) in enumerate(gold) for i, j in sure}
    assert scores.error_rate == pytest.approx(alignment_error_rate(set().union(*shifted), merged_sure, ()))


def test_corpora_of_different_sizes():
    with pytest.raises(ValueError, match="2 hypotheses for 1 gold"):
        corpus_alignment_error_rate([set(), set()], [(set(), set())])


class TestGoldCoverage:
    def test_every_sure_source_word_must_have_been_read(self):
        sure = {(0, 0), (3, 1), (1, 1), (2, 3)}
        assert gold_coverage([1, 3, 3, 3], sure) == (2, 3)
        assert gold_coverage([1, 4, 4, 4], sure).share == 1
        assert gold_coverage([0, 0, 0, 0], sure).share == 0

    def test_reading_everything_covers_everything_and_more_reading_never_less(self):
        sure = {(5, 0), (0, 2), (4, 4)}
        shares = [gold_coverage([min(6, i + k) for i in range(5)], sure).share for k in range(8)]
        assert shares == sorted(shares)
        assert shares[-1] == 1

    def test_corpus_sums(self):
        assert corpus_gold_coverage([[1], [1, 1]], [{(0, 0)}, {(1, 0), (0, 1)}]) == (2, 3)

    def test_no_sure_link(self):
        assert math.isnan(gold_coverage([1, 2], set()).share)

    def test_wrong_calls(self):
        with pytest.raises(ValueError, match=r"target word 3 .* 2 delays"):
            gold_coverage([1, 2], {(0, 3)})
        with pytest.raises(ValueError, match="1 sentences for 2 sets"):
            corpus_gold_coverage([[1]], [set(), set()])


class TestFormats:
    def test_pharaoh_and_talp(self):
        assert parse_links("0-0 2-1\n") == ({(0, 0), (2, 1)}, {(0, 0), (2, 1)})
        assert parse_links("1-1 2p3", one_based=True) == ({(0, 0)}, {(0, 0), (1, 2)})
        assert parse_links(" \n") == (set(), set())

    @given(link_sets, link_sets, st.booleans())
    def test_round_trip(self, sure, possible, one_based):
        start = int(one_based)
        links = [f"{i + start}-{j + start}" for i, j in sure] + [f"{i + start}p{j + start}" for i, j in possible]
        assert parse_links(" ".join(links), one_based=one_based) == (sure, possible | sure)

    def test_a_file_keeps_its_empty_lines(self, tmp_path):
        (tmp_path / "links").write_text("0-0\n\n1p1\n")
        assert [len(links.possible) for links in read_links(tmp_path / "links")] == [1, 0, 1]

    @pytest.mark.parametrize("link", ["1", "a-b", "1-2-3", "-1-2", "1:2", "1-", "1P2", "١-٢"])
    def test_damaged_links_are_named_with_file_and_line(self, link, tmp_path):
        (tmp_path / "links").write_text(f"0-0\n1-1 {link}\n", encoding="utf-8")
        with pytest.raises(ValueError, match=rf"links, line 2: '{link}' is not a link"):
            read_links(tmp_path / "links")

    def test_a_file_from_zero_is_not_one_based(self):
        with pytest.raises(ValueError, match="'0-1' counts from 0"):
            parse_links("0-1", one_based=True)


@pytest.mark.skipif("GMA_DATA" not in os.environ, reason="GMA_DATA does not name a data folder with rwth-de-en-gold/")
@pytest.mark.parametrize(
    ("aligner", "published"),
    [
        # error rate, precision and recall in percent
        ("fastalign.test.deen.talp", (28.5, 71.3, 71.8)),
        ("fastalign.test.deen.union.talp", (31.8, 61.4, 77.0)),
        ("giza.test.deen.union.talp", (20.9, 80.2, 78.1)),
    ],
)
def test_published_error_rates_on_the_gold_set(aligner, published):
    folder = Path(os.environ["GMA_DATA"]) / "rwth-de-en-gold"
    gold = read_links(folder / "test.talp", one_based=True)
    scores = corpus_alignment_error_rate([links.sure for links in read_links(folder / aligner)], gold)
    assert [100 * value for value in scores[:3]] == pytest.approx(published, abs=0.1)
