"""How many source words are read between two written words: a wait-k reads one at a time, others in bursts."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gma.metrics.alignment import Link

# steps as large as the last one are counted together
LARGEST = 5


class StepSizes(NamedTuple):
    """Of g(i) − g(i−1) over all words, g(0) = 0; `shares` of 0, 1, … and of `LARGEST` or more."""

    mean: float
    deviation: float
    shares: tuple[float, ...]
    words: int


def step_sizes(delays: Iterable[Sequence[float]]) -> StepSizes:
    """Of sentences, each given by g(i), the source words read when each word was written."""
    steps = np.concatenate([np.diff(np.asarray(sentence, float), prepend=0.0) for sentence in delays] or [np.empty(0)])
    if not len(steps):
        raise ValueError("no word was written in any sentence; expected at least one")
    counts = np.bincount(np.minimum(steps, LARGEST).astype(int), minlength=LARGEST + 1)
    return StepSizes(float(steps.mean()), float(steps.std()), tuple((counts / len(steps)).tolist()), len(steps))


def monotone_delays(links: Iterable[Link], target_words: int) -> list[int]:
    """g(i) of writing every word as soon as its aligned source words, and those of all words before it, were read."""
    needed = [0] * target_words
    for source, target in links:
        needed[target] = max(needed[target], source + 1)
    # the first word needs at least one
    return np.maximum.accumulate([1, *needed])[1:].tolist()
