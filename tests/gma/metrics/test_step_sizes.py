"""Steps between written words, counted by hand and by definition."""

import pytest

from gma.corpus import generated
from gma.metrics.step_sizes import LARGEST, monotone_delays, step_sizes


def test_steps_of_two_sentences():
    found = step_sizes([[3, 4, 4, 9], [1]])
    assert found.words == 5
    assert found.shares == pytest.approx((1 / 5, 2 / 5, 0, 1 / 5, 0, 1 / 5))  # 3, 1, 0, 5 and 1
    assert found.mean == pytest.approx(2.0)
    assert found.deviation == pytest.approx((16 / 5) ** 0.5)
    assert len(found.shares) == LARGEST + 1


def test_wait_k_has_three_sizes():
    k, length, written = 5, 9, 8
    found = step_sizes([[min(k + i, length) for i in range(written)]])
    assert found.shares == pytest.approx((3 / 8, 4 / 8, 0, 0, 0, 1 / 8))


def test_nothing_written():
    with pytest.raises(ValueError, match="expected at least one"):
        step_sizes([[], []])


def test_the_true_alignment_reads_what_every_word_and_those_before_it_need():
    for pair in generated.generate(50, seed=3):
        words = len(pair.target.split())
        expected = [max([1, *(source + 1 for source, target in pair.alignment if target <= i)]) for i in range(words)]
        assert monotone_delays(pair.alignment, words) == expected
