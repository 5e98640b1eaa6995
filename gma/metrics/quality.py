"""BLEU and chrF as sacreBLEU computes them, each with the signature that makes the number reproducible."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

# hypothesis length, reference length, then matched and all n-grams of orders 1 to 4
BLEU_STATISTICS = 10


class QualityScore(NamedTuple):
    """A corpus score in percent; `lowercase` says whether both sides were lower-cased first."""

    metric: str
    score: float
    signature: str
    lowercase: bool

    @property
    def label(self) -> str:
        return f"{self.metric} (lower-cased)" if self.lowercase else self.metric


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False, tokenize: str = "13a"
) -> QualityScore:
    """Corpus BLEU against one reference per sentence; `tokenize="none"` for text that is tokenised already."""
    _check_texts(hypotheses, references)
    return _corpus_score(_bleu(lowercase, tokenize), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> QualityScore:
    """Corpus chrF against one reference per sentence."""
    _check_texts(hypotheses, references)
    return _corpus_score(CHRF(lowercase=lowercase), hypotheses, references)


def bleu_statistics(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False, tokenize: str = "13a"
) -> np.ndarray:
    """What corpus BLEU sums over sentences: [N, 10] int64, columns as in `BLEU_STATISTICS`."""
    _check_texts(hypotheses, references)
    metric = _bleu(lowercase, tokenize, effective_order=True)
    scores = (metric.sentence_score(*pair) for pair in _with_reference_lists(hypotheses, references))
    rows = [[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores]
    return np.array(rows, dtype=np.int64).reshape(-1, BLEU_STATISTICS)


def bleu_from_statistics(sums: Sequence[float] | np.ndarray) -> float:
    """Corpus BLEU, in percent, from the column sums [10] of `bleu_statistics`."""
    hypothesis_length, reference_length, *ngrams = (int(value) for value in sums)
    orders = len(ngrams) // 2
    score = BLEU.compute_bleu(
        ngrams[:orders], ngrams[orders:], hypothesis_length, reference_length, smooth_method="exp"
    )
    return score.score


def _bleu(lowercase: bool, tokenize: str, effective_order: bool = False) -> BLEU:
    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"tokenize={tokenize!r} is unknown: expected one of {', '.join(sorted(BLEU.TOKENIZERS))}")
    # force: without it sacreBLEU warns about tokenised text even where that was asked for
    return BLEU(lowercase=lowercase, tokenize=tokenize, effective_order=effective_order, force=True)


def _corpus_score(metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> QualityScore:
    score = metric.corpus_score(hypotheses, [references])
    return QualityScore(score.name, score.score, str(metric.get_signature()), metric.lowercase)


def _with_reference_lists(hypotheses: Sequence[str], references: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    return ((hypothesis, [reference]) for hypothesis, reference in zip(hypotheses, references))


def _check_texts(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    for name, texts in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(texts, str):
            raise TypeError(f"{name} must be a list of sentences, got one string: wrap it in a list")
        for number, text in enumerate(texts, start=1):
            if not isinstance(text, str):
                raise TypeError(f"{name} must hold strings, got {type(text).__name__} for sentence {number}")
    if len(hypotheses) != len(references):
        raise ValueError(f"got {len(hypotheses)} hypotheses for {len(references)} references: expected one for each")
    if not hypotheses:
        raise ValueError("hypotheses is empty: a score needs at least one sentence")
