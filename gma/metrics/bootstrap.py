"""Paired bootstrap resampling (Koehn 2004): is one system's score really different from another's?"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from gma.metrics.quality import bleu_from_statistics, bleu_statistics

RESAMPLES = 1000
# sacreBLEU's default seed, so that both draw the same test sets
SEED = 12345
# resamples drawn at once are limited to this many sentence draws: 32 MB
DRAWS_AT_ONCE = 1 << 22


class BootstrapDifference(NamedTuple):
    """`difference` = system − baseline on the whole test set, `low`–`high` its confidence interval.

    `p_value` is two-sided: the share of resamples whose difference strays from their mean by at least `difference`,
    that is, how often chance alone would do as much.
    """

    baseline: float
    system: float
    difference: float
    low: float
    high: float
    p_value: float
    confidence: float
    resamples: int
    seed: int


def paired_bootstrap(
    baseline: np.ndarray,
    system: np.ndarray,
    score: Callable[[np.ndarray], float],
    *,
    resamples: int = RESAMPLES,
    confidence: float = 0.95,
    seed: int = SEED,
) -> BootstrapDifference:
    """Compares two systems by a score of summed sentence statistics.

    baseline, system: [N, K] statistics of the same N sentences; score: column sums [K] → number.
    """
    baseline, system = np.asarray(baseline, np.float64), np.asarray(system, np.float64)
    if baseline.ndim != 2 or baseline.shape != system.shape or not len(baseline):
        raise ValueError(
            f"baseline and system must be statistics [sentences, K] of the same sentences, at least one, got shapes "
            f"{list(baseline.shape)} and {list(system.shape)}"
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}: 1000 or more give a usable interval")
    sums = resampled_sums(np.hstack([baseline, system]), resamples, seed)
    columns = baseline.shape[1]
    differences = np.array([score(row[columns:]) - score(row[:columns]) for row in sums])
    low, high = np.quantile(differences, [(1 - confidence) / 2, (1 + confidence) / 2])
    before, after = score(baseline.sum(0)), score(system.sum(0))
    # ≥, and one more on both sides: a system compared with itself has p = 1, and p is never 0
    extreme = np.sum(np.abs(differences - differences.mean()) >= abs(after - before))
    return BootstrapDifference(
        baseline=float(before),
        system=float(after),
        difference=float(after - before),
        low=float(low),
        high=float(high),
        p_value=float((extreme + 1) / (resamples + 1)),
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )


def paired_bootstrap_bleu(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
    resamples: int = RESAMPLES,
    confidence: float = 0.95,
    seed: int = SEED,
) -> BootstrapDifference:
    """The difference in corpus BLEU of two systems' translations of the same sentences."""
    first, second = (
        bleu_statistics(hypotheses, references, lowercase=lowercase, tokenize=tokenize)
        for hypotheses in (baseline, system)
    )
    return paired_bootstrap(first, second, bleu_from_statistics, resamples=resamples, confidence=confidence, seed=seed)


def paired_bootstrap_mean(
    baseline: Sequence[float],
    system: Sequence[float],
    *,
    resamples: int = RESAMPLES,
    confidence: float = 0.95,
    seed: int = SEED,
) -> BootstrapDifference:
    """The difference in the mean of a sentence score, such as AL."""
    first, second = (np.asarray(values, np.float64).reshape(-1, 1) for values in (baseline, system))
    for name, values in (("baseline", first), ("system", second)):
        if not np.isfinite(values).all():
            raise ValueError(f"{name} must hold finite numbers, got {values[~np.isfinite(values)][0]}")
    return paired_bootstrap(
        first, second, lambda sums: sums[0] / len(first), resamples=resamples, confidence=confidence, seed=seed
    )


def resampled_sums(statistics: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Column sums [resamples, K] over test sets drawn with replacement from `statistics` [N, K]."""
    sentences = len(statistics)
    generator = np.random.default_rng(seed)
    at_once = max(1, DRAWS_AT_ONCE // sentences)
    parts = []
    for start in range(0, resamples, at_once):
        rows = min(at_once, resamples - start)
        drawn = generator.integers(sentences, size=(rows, sentences))
        # how often each sentence was drawn, so that the sums are one matrix product
        drawn += sentences * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * sentences).reshape(rows, sentences)
        parts.append(counts.astype(np.float64) @ statistics)
    return np.concatenate(parts)
