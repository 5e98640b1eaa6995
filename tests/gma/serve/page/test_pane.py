"""Latency: moved while somebody talks, and two of them on one voice."""

import itertools

import pytest
from playwright.sync_api import expect

from gma.policies import POLICIES
from tests.support.browser import end_sentence, expected, german_english, translation, type_words, wait
from tests.support.serving import served
from tests.support.small_models import small_loaded, small_model

FIRST = "Ich habe gestern meinen alten Freund im Park getroffen."


def test_the_latency_is_moved_while_somebody_talks(page):
    usual = page.evaluate("gma.panes[0].transcript.ready.delta.value")
    type_words(page, "Ich habe gestern meinen")
    slider = page.get_by_role("slider", name="Latency of translation 1")
    slider.fill("0.5")
    wait(page, "gma.panes[0].transcript.delta === 0.5")
    expect(page.locator(".pane output")).to_have_text("0.5")
    type_words(page, "alten Freund im Park getroffen.")
    end_sentence(page)
    words = expected(FIRST, usual, {4: 0.5})
    assert translation(page) == [word.word for word in words]
    facts = page.evaluate("gma.panes[0].transcript.sentences[0].written.map((word) => [word.source_words, word.delta])")
    assert [fact[0] for fact in facts] == [word.source_words for word in words]
    assert {delta for _, delta in facts} == {usual, 0.5}
    wait(page, "gma.panes[0].transcript.sentences[0].attention !== null")


def test_two_latencies_translate_one_voice_side_by_side(page):
    page.get_by_role("slider", name="Latency of translation 1").fill("1")
    wait(page, "gma.panes[0].transcript.delta === 1")
    page.get_by_role("button", name="Compare two latencies").click()
    wait(page, "gma.panes[1].transcript.ready !== null")
    deltas = page.evaluate("gma.panes.map(({ transcript }) => transcript.delta)")
    assert deltas[0] == 1
    assert deltas[1] > 4
    type_words(page, FIRST)
    end_sentence(page)
    assert [translation(page, pane) for pane in range(2)] == [
        [word.word for word in expected(FIRST, delta)] for delta in deltas
    ]
    lags = [float(text.split("AL ")[1].split(",")[0]) for text in page.locator(".scores").all_inner_texts()]
    assert lags[0] < lags[1]
    panes = [page.locator(".pane").nth(pane).bounding_box() for pane in range(2)]
    assert panes[0]["y"] == panes[1]["y"]
    assert panes[0]["x"] + panes[0]["width"] <= panes[1]["x"]
    page.get_by_role("button", name="Remove").click()
    expect(page.locator(".pane")).to_have_count(1)
    expect(page.get_by_role("button", name="Compare two latencies")).to_be_focused()
    type_words(page, "Guten Morgen.")
    expect(page.locator(".sentence")).to_have_count(2)


# what `gma segment` makes wraps another model
@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"meaning_units"}))
def test_every_latency_of_the_slider_can_be_kept(visits, policy):
    model = small_model(1, policy=policy)
    with served(small_loaded(model, policy=policy)) as (url, _):
        page = visits.open(url)
        slider = page.locator(".pane input[type=range]")
        if POLICIES[policy].latency_symbol is None:
            expect(slider).to_be_hidden()
            expect(page.get_by_role("button", name="Compare two latencies")).to_be_hidden()
            page.close()
            return
        low, high, step = (float(slider.get_attribute(name)) for name in ("min", "max", "step"))
        for value in itertools.takewhile(lambda value: value <= high, (low + step * count for count in range(60))):
            assert model.latency(round(value, 9)) == round(value, 9)
        slider.fill(str(low + step))
        wait(page, f"Math.abs(gma.panes[0].transcript.delta - {low + step}) < 1e-9")
        page.close()


def test_the_slider_goes_over_what_the_model_was_trained_for(page):
    slider = page.locator(".pane input[type=range]")
    assert (float(slider.get_attribute("min")), float(slider.get_attribute("max"))) == (
        german_english().model.trained_latencies
    )
