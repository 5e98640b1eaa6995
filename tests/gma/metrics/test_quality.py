"""BLEU and chrF: sacreBLEU's numbers, signatures, sentence statistics."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu import corpus_bleu, corpus_chrf

from gma.metrics import bleu, bleu_from_statistics, bleu_statistics, chrf

WORDS = ["the", "a", "cat", "dog", "sat", "on", "mat", ".", ",", "Haus"]
texts = st.lists(st.tuples(*[st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)] * 2), min_size=1, max_size=8)


def corpus(sentences: int = 40, seed: int = 0) -> tuple[list[str], list[str]]:
    """References, and hypotheses that have some of their words changed."""
    generator = random.Random(seed)
    references = [" ".join(generator.choices(WORDS, k=generator.randint(3, 15))) for _ in range(sentences)]
    hypotheses = [
        " ".join(word if generator.random() < 0.8 else generator.choice(WORDS) for word in reference.split())
        for reference in references
    ]
    return hypotheses, references


def test_scores_are_sacrebleus():
    hypotheses, references = corpus()
    assert bleu(hypotheses, references).score == corpus_bleu(hypotheses, [references]).score
    assert chrf(hypotheses, references).score == corpus_chrf(hypotheses, [references]).score


def test_signatures_say_what_was_scored():
    hypotheses, references = corpus()
    cased = bleu(hypotheses, references)
    lower = bleu(hypotheses, references, lowercase=True, tokenize="none")
    assert "case:mixed" in cased.signature
    assert "tok:13a" in cased.signature
    assert "version:" in cased.signature
    assert "case:lc" in lower.signature
    assert "tok:none" in lower.signature
    assert (cased.label, lower.label) == ("BLEU", "BLEU (lower-cased)")
    assert chrf(hypotheses, references, lowercase=True).label == "chrF2 (lower-cased)"
    assert "case:lc" in chrf(hypotheses, references, lowercase=True).signature


def test_lowercase_ignores_case():
    hypotheses, references = corpus()
    shouted = [text.upper() for text in hypotheses]
    for metric in (bleu, chrf):
        assert metric(shouted, references).score < metric(hypotheses, references).score
        lowered = metric(hypotheses, references, lowercase=True).score
        assert metric(shouted, references, lowercase=True).score == lowered


@given(texts, st.booleans(), st.sampled_from(["13a", "none"]))
def test_sentence_statistics_sum_to_the_corpus_score(pairs, lowercase, tokenize):
    hypotheses, references = (list(side) for side in zip(*pairs))
    settings = {"lowercase": lowercase, "tokenize": tokenize}
    statistics = bleu_statistics(hypotheses, references, **settings)
    assert statistics.shape == (len(pairs), 10)
    assert statistics.dtype == np.int64
    assert bleu_from_statistics(statistics.sum(0)) == bleu(hypotheses, references, **settings).score


def test_tokenised_text_is_no_reason_to_warn_when_asked_for(caplog):
    texts = ["a b c ."] * 200
    assert bleu(texts, texts, tokenize="none").score == pytest.approx(100)
    assert not caplog.records


@pytest.mark.parametrize("metric", [bleu, chrf, bleu_statistics])
@pytest.mark.parametrize(
    ("hypotheses", "references", "error", "message"),
    [
        ("a b", ["a b"], TypeError, "hypotheses must be a list of sentences, got one string"),
        (["a"], "a", TypeError, "references must be a list"),
        (["a", None], ["a", "b"], TypeError, "got NoneType for sentence 2"),
        (["a"], ["a", "b"], ValueError, "1 hypotheses for 2 references"),
        ([], [], ValueError, "at least one sentence"),
    ],
)
def test_wrong_calls(metric, hypotheses, references, error, message):
    with pytest.raises(error, match=message):
        metric(hypotheses, references)


def test_unknown_tokenizer():
    with pytest.raises(ValueError, match="tokenize='moses' is unknown: expected one of 13a, "):
        bleu(["a"], ["a"], tokenize="moses")
