"""How far a translation lags behind its source, for one sentence and for a corpus.

D_i = g(i) is the number of source units read when target unit i was written, n the source length, m the hypothesis
length, r the reference length.

AL    1/τ Σ_{i≤τ} (D_i − (i−1)·n/r), τ = the first i with D_i ≥ n, else m
LAAL  AL with max(m, r) for r
AP    Σ_i D_i / (n·r)
DAL   g'_1 = D_1, g'_i = max(D_i, g'_{i−1} + n/m); mean of g'_i − (i−1)·n/m
CW    g(m) / #{i : g(i) > g(i−1)}, g(0) = 0: what was read, as the paper has it; the authors' script divides |x|
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

CONVENTIONS = ("word", "paper")


class Latency(NamedTuple):
    """Average lagging, its length-adaptive form, average proportion, differentiable average lagging, consecutive wait.

    All in source units, except `ap`, which is a share: 1 is reading everything first, and a hypothesis longer than
    its reference may exceed it.
    """

    al: float
    laal: float
    ap: float
    dal: float
    cw: float


class CorpusLatency(NamedTuple):
    """Means over sentences. Scores of one convention are not comparable with those of the other."""

    al: float
    laal: float
    ap: float
    dal: float
    cw: float
    convention: str
    sentences: int
    empty: int

    @property
    def label(self) -> str:
        """What every printed score has to say beside its number."""
        unit = {
            "word": "words, |Y| = reference length, no end-of-sentence token",
            "paper": "model tokens with end-of-sentence, |Y| = hypothesis length",
        }[self.convention]
        hypotheses = "hypothesis" if self.empty == 1 else "hypotheses"
        return (
            f"{self.convention} convention ({unit}); {self.empty} empty {hypotheses} counted as offline; CW divides "
            "what was read, where the authors' script divides |x|"
        )


def latency(delays: Sequence[float], source_length: float, reference_length: float) -> Latency:
    """Latency of one sentence, in whatever unit it is given: words, model tokens, milliseconds of speech.

    `delays[i]` is the source read when target unit i was written; it may exceed `source_length` when it includes time
    spent computing. An empty hypothesis counts as having waited for the whole source and not as fast.
    """
    values = _checked_delays(delays)
    n = _checked_length("source_length", source_length)
    r = _checked_length("reference_length", reference_length)
    if not values:
        return Latency(al=n, laal=n, ap=1.0, dal=n, cw=n)
    m = len(values)
    return Latency(
        al=_average_lagging(values, n, r),
        laal=_average_lagging(values, n, max(m, r)),
        ap=sum(values) / (n * r),
        dal=_differentiable_average_lagging(values, n),
        cw=_consecutive_wait(values),
    )


def sentence_latencies(
    delays: Iterable[Sequence[float]],
    source_lengths: Iterable[float],
    reference_lengths: Iterable[float] | None = None,
    *,
    convention: str,
) -> list[Latency]:
    """`latency` of every sentence under a convention.

    `word`:  delays and lengths count words of the plain text, without end-of-sentence; |Y| = `reference_lengths`.
    `paper`: they count model tokens, the end-of-sentence token on both sides included; |Y| = the hypothesis length, so
             LAAL equals AL and no reference lengths are taken. A hypothesis of nothing but its end token is empty.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"convention={convention!r} is unknown: expected one of {', '.join(CONVENTIONS)}")
    delays, source_lengths = list(delays), list(source_lengths)
    if convention == "word":
        if reference_lengths is None:
            raise ValueError("convention='word' needs reference_lengths (words of each reference), got None")
        reference_lengths = list(reference_lengths)
    else:
        if reference_lengths is not None:
            raise ValueError(
                "convention='paper' takes |Y| from the hypothesis: leave reference_lengths out, or ask for 'word'"
            )
        delays = [() if _is_empty(values, convention) else values for values in delays]
        reference_lengths = [max(1, len(values)) for values in delays]
    counts = {"delays": len(delays), "source_lengths": len(source_lengths), "reference_lengths": len(reference_lengths)}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{count} {name}" for name, count in counts.items())
        raise ValueError(f"one entry per sentence is expected in each argument, got {found}")
    scores = []
    for number, sentence in enumerate(zip(delays, source_lengths, reference_lengths), start=1):
        try:
            scores.append(latency(*sentence))
        except (TypeError, ValueError) as error:
            raise type(error)(f"sentence {number}: {error}") from error
    return scores


def corpus_latency(
    delays: Iterable[Sequence[float]],
    source_lengths: Iterable[float],
    reference_lengths: Iterable[float] | None = None,
    *,
    convention: str,
) -> CorpusLatency:
    """The plain mean over sentences, empty hypotheses counted; conventions as in `sentence_latencies`."""
    delays = list(delays)
    scores = sentence_latencies(delays, source_lengths, reference_lengths, convention=convention)
    if not scores:
        raise ValueError("delays is empty: latency needs at least one sentence")
    means = (math.fsum(column) / len(scores) for column in zip(*scores))
    empty = sum(_is_empty(values, convention) for values in delays)
    return CorpusLatency(*Latency._make(means), convention, len(scores), empty)


def _is_empty(delays: Sequence[float], convention: str) -> bool:
    return len(delays) <= (1 if convention == "paper" else 0)


def _checked_delays(delays: Sequence[float]) -> list[float]:
    values = [float(delay) for delay in delays]
    previous = 0.0
    for place, value in enumerate(values, start=1):
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"delays must be finite and at least 0, got {value:g} for target unit {place}")
        if value < previous:
            raise ValueError(
                f"delays must not decrease, got {value:g} after {previous:g} for target unit {place}: what has been "
                "read stays read; pass the running maximum"
            )
        previous = value
    return values


def _checked_length(name: str, value: float) -> float:
    length = float(value)
    if not math.isfinite(length) or length <= 0:
        raise ValueError(f"{name} must be positive and finite, got {length:g}: leave sentences without text out")
    return length


def _average_lagging(delays: list[float], n: float, target_length: float) -> float:
    written = next((i for i, delay in enumerate(delays, start=1) if delay >= n), len(delays))
    rate = n / target_length
    return sum(delay - i * rate for i, delay in enumerate(delays[:written])) / written


def _differentiable_average_lagging(delays: list[float], n: float) -> float:
    rate = n / len(delays)
    total, smoothed = 0.0, -math.inf
    for i, delay in enumerate(delays):
        # writing a unit takes at least its share of the source, so a late start is never made up for
        smoothed = max(delay, smoothed + rate)
        total += smoothed - i * rate
    return total / len(delays)


def _consecutive_wait(delays: list[float]) -> float:
    reads = sum(delay > before for before, delay in zip([0.0, *delays], delays))
    return delays[-1] / reads if reads else 0.0
