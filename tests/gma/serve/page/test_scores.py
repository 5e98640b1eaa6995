"""Scores in the browser are those of sacreBLEU and of gma.metrics."""

import random

import pytest
import sacrebleu
from playwright.sync_api import expect

from gma.metrics.latency import latency
from tests.support.browser import end_sentence, translation, type_words
from tests.support.delay_sequences import policy_sentence

WORDS = [
    "the",
    "a",
    "cat",
    "dog's",
    "sat,",
    "on",
    "mat.",
    "3.5%",
    "(well)",
    "it's",
    "no!",
    "U.S.",
    "1,000",
    "ever-green",
    "&",
    "co;",
    "naïve",
    "über",
]


@pytest.fixture(scope="module")
def scores(chromium, server):
    """Calls a function of scores.js."""
    page = chromium.new_page()
    page.goto(server)
    yield lambda name, *given: page.evaluate(
        "([name, given]) => import('/scores.js').then((scores) => scores[name](...given))", [name, list(given)]
    )
    page.close()


def test_bleu_is_that_of_sacrebleu(scores):
    generator = random.Random(3)
    for _ in range(25):
        pairs = []
        for _ in range(generator.randint(1, 4)):
            reference = generator.choices(WORDS, k=generator.randint(3, 14))
            hypothesis = [word for word in reference if generator.random() > 0.2] + generator.choices(WORDS, k=2)
            pairs.append((" ".join(hypothesis), " ".join(reference)))
        hypotheses, references = zip(*pairs)
        expected = sacrebleu.corpus_bleu(list(hypotheses), [list(references)]).score
        assert scores("bleu", pairs) == pytest.approx(expected, abs=1e-6)


def test_lagging_is_that_of_the_library(scores):
    for seed in range(25):
        sentence = policy_sentence(seed)
        found = latency(sentence.delays, sentence.source_length, len(sentence.delays))
        assert scores("averageLagging", sentence.delays, sentence.source_length, len(sentence.delays)) == (
            pytest.approx(found.al)
        )


def test_a_reference_is_scored_sentence_by_sentence_and_in_all(page):
    type_words(page, "Ich habe gestern meinen alten Freund im Park getroffen.")
    end_sentence(page)
    type_words(page, "Guten Morgen.")
    end_sentence(page)
    first = " ".join(translation(page)[: page.evaluate("gma.panes[0].transcript.sentences[0].written.length")])
    expect(page.locator(".score").first).to_contain_text("AL")
    expect(page.locator(".score").first).not_to_contain_text("BLEU")
    page.locator("summary", has_text="Score").click()
    page.get_by_label("Reference translation").fill(first)
    expect(page.locator(".score").first).to_contain_text("BLEU 100.0")
    expect(page.locator(".score").nth(1)).not_to_contain_text("BLEU")
    expect(page.locator(".scores")).to_contain_text("BLEU 100.0 of 1 sentence,")
    page.get_by_label("Reference translation").fill(f"{first}\nSomething else entirely")
    expect(page.locator(".scores")).to_contain_text("of 2 sentences")
    expect(page.locator(".score").nth(1)).to_contain_text("BLEU 0.0")
