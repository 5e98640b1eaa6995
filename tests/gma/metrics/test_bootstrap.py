"""Paired bootstrap resampling: agreement with sacreBLEU, coverage, and determinism."""

import random

import numpy as np
import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest, estimate_ci

from gma.metrics import (
    bleu,
    bleu_from_statistics,
    bleu_statistics,
    bootstrap,
    paired_bootstrap,
    paired_bootstrap_bleu,
    paired_bootstrap_mean,
)
from gma.metrics.bootstrap import resampled_sums

WORDS = [f"word{i}" for i in range(30)]


def system(references: list[str], accuracy: float, seed: int) -> list[str]:
    generator = random.Random(seed)
    return [
        " ".join(word if generator.random() < accuracy else generator.choice(WORDS) for word in reference.split())
        for reference in references
    ]


@pytest.fixture(scope="module")
def references() -> list[str]:
    generator = random.Random(0)
    return [" ".join(generator.choices(WORDS, k=generator.randint(5, 20))) for _ in range(120)]


def test_resamples_are_sacrebleus(references, monkeypatch):
    """The same seed draws the same test sets: sacreBLEU's mean, interval and p-value follow from our sums."""
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    first, second = system(references, 0.7, 1), system(references, 0.72, 2)
    named = [("first", first), ("second", second)]
    _, results = PairedTest(named, {"BLEU": BLEU()}, [references], test_type="bs", n_samples=500, n_jobs=1)()
    expected = results["BLEU"][1]
    scores = [
        np.array([bleu_from_statistics(row) for row in resampled_sums(bleu_statistics(texts, references), 500, 12345)])
        for texts in (first, second)
    ]
    mean, half_width = estimate_ci(scores[1])
    assert expected.mean == pytest.approx(mean)
    assert expected.ci == pytest.approx(half_width)
    distances = np.abs(scores[1] - scores[0])
    real = abs(bleu(second, references).score - bleu(first, references).score)
    assert expected.p_value == ((distances - distances.mean() > real).sum() + 1) / 501


def test_a_clear_difference(references):
    worse, better = system(references, 0.6, 1), system(references, 0.8, 2)
    result = paired_bootstrap_bleu(worse, better, references)
    assert result.baseline == pytest.approx(bleu(worse, references).score)
    assert result.system == pytest.approx(bleu(better, references).score)
    assert result.difference == pytest.approx(result.system - result.baseline)
    assert 0 < result.low < result.difference < result.high
    assert result.p_value < 0.01
    assert (result.resamples, result.confidence) == (1000, 0.95)
    reverse = paired_bootstrap_bleu(better, worse, references)
    assert (reverse.low, reverse.high) == pytest.approx((-result.high, -result.low))
    assert reverse.p_value == result.p_value


def test_a_system_against_itself(references):
    texts = system(references, 0.7, 1)
    result = paired_bootstrap_bleu(texts, texts, references)
    assert (result.difference, result.low, result.high, result.p_value) == (0, 0, 0, 1)


def test_settings_reach_the_score(references):
    shouted = [text.upper() for text in references]
    assert paired_bootstrap_bleu(references, shouted, references, resamples=10).difference == pytest.approx(-100)
    assert paired_bootstrap_bleu(references, shouted, references, lowercase=True, resamples=10).difference == 0


def test_the_seed_decides(references):
    texts = system(references, 0.7, 1), system(references, 0.72, 2)
    first = paired_bootstrap_bleu(*texts, references, seed=1, resamples=200)
    assert first == paired_bootstrap_bleu(*texts, references, seed=1, resamples=200)
    assert first.low != paired_bootstrap_bleu(*texts, references, seed=2, resamples=200).low


def test_drawing_in_parts_changes_nothing(monkeypatch):
    statistics = np.random.default_rng(0).integers(50, size=(37, 4))
    whole = resampled_sums(statistics, 100, 3)
    monkeypatch.setattr(bootstrap, "DRAWS_AT_ONCE", 37 * 7 + 5)
    np.testing.assert_array_equal(resampled_sums(statistics, 100, 3), whole)


def test_every_resample_has_as_many_sentences():
    sums = resampled_sums(np.ones((23, 1)), 50, 0)
    assert (sums == 23).all()


def test_interval_and_p_value_of_a_mean_match_theory():
    """Against Student's interval of the same data, so that no luck of the drawn data enters."""
    generator = np.random.default_rng(0)
    student = 1.984  # 97.5 % point with 99 degrees of freedom
    missed = significant = expected = 0
    for trial in range(200):
        baseline = generator.normal(5, 2, size=100)
        gap = 0.3 + generator.normal(0, 1, size=100)
        error = gap.std(ddof=1) / np.sqrt(len(gap))
        result = paired_bootstrap_mean(baseline, baseline + gap, seed=trial)
        assert result.difference == pytest.approx(gap.mean())
        assert result.high - result.low == pytest.approx(2 * student * error, rel=0.15)
        missed += not result.low <= 0.3 <= result.high
        significant += paired_bootstrap_mean(baseline, baseline + gap - 0.3, seed=trial).p_value < 0.05
        expected += abs(gap.mean() - 0.3) > student * error
    assert missed == pytest.approx(expected, abs=5)
    assert significant == pytest.approx(expected, abs=5)


def test_pairing_counts():
    """The same small gain on every sentence is certain, however different the sentences are."""
    lag = np.random.default_rng(0).normal(5, 4, size=300)
    result = paired_bootstrap_mean(lag, lag + 0.01)
    assert result.low == pytest.approx(0.01)
    assert result.p_value < 0.01


def test_confidence_widens_the_interval():
    generator = np.random.default_rng(0)
    values = generator.normal(size=50), generator.normal(size=50)
    widths = []
    for confidence in (0.5, 0.9, 0.99):
        result = paired_bootstrap_mean(*values, confidence=confidence)
        widths.append(result.high - result.low)
    assert widths == sorted(widths)


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (([1, 2], [1]), {}, r"same sentences.*\[2, 1\] and \[1, 1\]"),
        (([], []), {}, "at least one"),
        (([1], [1]), {"confidence": 95}, "confidence must lie between 0 and 1, got 95"),
        (([1], [1]), {"resamples": 0}, "resamples must be at least 1"),
        (([1, np.nan], [1, 2]), {}, "baseline must hold finite numbers, got nan"),
    ],
)
def test_wrong_calls(arguments, settings, message):
    with pytest.raises(ValueError, match=message):
        paired_bootstrap_mean(*arguments, **settings)


def test_statistics_without_columns():
    with pytest.raises(ValueError, match=r"\[sentences, K\]"):
        paired_bootstrap(np.ones(3), np.ones(3), sum)
