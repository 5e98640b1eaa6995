"""Latency, quality and alignment scores: plain functions that need no model.

>>> import gma
>>> gma.metrics.latency([1, 2, 3], source_length=3, reference_length=3).al  # each word one source word behind
1.0
>>> gma.metrics.bleu(["a small dog runs fast"], ["a small dog runs away"]).label
'BLEU'
"""

from gma.metrics.alignment import (
    AlignmentScores,
    GoldCoverage,
    GoldLinks,
    alignment_error_rate,
    corpus_alignment_error_rate,
    corpus_gold_coverage,
    gold_coverage,
    parse_links,
    read_links,
)
from gma.metrics.bootstrap import (
    BootstrapDifference,
    paired_bootstrap,
    paired_bootstrap_bleu,
    paired_bootstrap_mean,
)
from gma.metrics.latency import CorpusLatency, Latency, corpus_latency, latency, sentence_latencies
from gma.metrics.quality import QualityScore, bleu, bleu_from_statistics, bleu_statistics, chrf

__all__ = [
    "AlignmentScores",
    "BootstrapDifference",
    "CorpusLatency",
    "GoldCoverage",
    "GoldLinks",
    "Latency",
    "QualityScore",
    "alignment_error_rate",
    "bleu",
    "bleu_from_statistics",
    "bleu_statistics",
    "chrf",
    "corpus_alignment_error_rate",
    "corpus_gold_coverage",
    "corpus_latency",
    "gold_coverage",
    "latency",
    "paired_bootstrap",
    "paired_bootstrap_bleu",
    "paired_bootstrap_mean",
    "parse_links",
    "read_links",
    "sentence_latencies",
]
