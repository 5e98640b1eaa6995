"""Source and translation: whatever is said is shown as text, and a word that stands is never touched again."""

import re

import pytest
from playwright.sync_api import expect

from tests.support.browser import end_sentence, translation, type_words, wait

HOSTILE = [
    "<script>window.hacked=1</script>",
    "<img/src=x/onerror=window.hacked=1>",
    "\"'><svg/onload=window.hacked=1>",
    "${window.hacked=1}",
    "&lt;b&gt;",
    "javascript:window.hacked=1",
]


def test_markup_in_words_stays_text(visits, page):
    page.evaluate("(words) => gma.panes[0].talk.say(words.join(' ') + ' ')", HOSTILE)
    wait(page, f"gma.panes[0].transcript.sentences.reduce((sum, one) => sum + one.heard.length, 0) === {len(HOSTILE)}")
    end_sentence(page)
    assert page.locator(".source span").all_inner_texts() == HOSTILE
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script").count() == 0
    assert page.locator("#staircase svg svg, .staircase svg svg").count() == 0
    # and so does what a reader is sent
    link = page.locator("#watch").get_attribute("href")
    reader = visits.open(link, ready=False)
    expect(reader.locator(".source span")).to_have_text(HOSTILE)
    assert reader.evaluate("window.hacked") is None
    assert reader.locator("main img, main script").count() == 0


@pytest.mark.parametrize("text", ["שלום עולם", "مرحبا بالعالم الجميل"])
def test_text_from_right_to_left_runs_from_right_to_left(page, text):
    type_words(page, text)
    source = page.locator(".source").first
    assert source.locator("span").all_inner_texts() == text.split()
    assert source.evaluate("(element) => getComputedStyle(element).direction") == "rtl"
    first, last = (source.locator("span").nth(place).bounding_box()["x"] for place in (0, -1))
    assert first > last
    expect(page.locator("#typed")).to_have_attribute("dir", "auto")


def test_a_word_that_stands_is_never_touched_again(page):
    page.evaluate(
        """() => {
            window.touched = [];
            const words = new WeakSet();
            new MutationObserver((changes) => {
                for (const { type, target, addedNodes, removedNodes } of changes) {
                    if (removedNodes.length || type === "characterData") touched.push(target.textContent);
                    for (const node of addedNodes) {
                        if (words.has(target)) touched.push(target.textContent);
                        words.add(node);
                    }
                }
            }).observe(document.querySelector("#panes"), { subtree: true, childList: true, characterData: true });
        }"""
    )
    before = []
    for part in ("Ich habe gestern meinen alten", "Freund im Park getroffen.", "Ich glaube nicht, dass Tom"):
        type_words(page, part)
        assert translation(page)[: len(before)] == before
        before = translation(page)
    end_sentence(page)
    assert translation(page)[: len(before)] == before
    reading = page.evaluate("touched.filter((text) => document.querySelector('.target').textContent.includes(text))")
    assert not [text for text in reading if text.strip()]


def test_a_word_shows_what_it_used_and_what_it_waited_for(page):
    type_words(page, "Ich glaube nicht, dass Tom heute kommen wird.")
    end_sentence(page)
    facts = page.evaluate("gma.panes[0].transcript.sentences[0].written.map((word) => word.source_words)")
    for place, source_words in enumerate(facts):
        word = page.locator(".target .word").nth(place)
        if place % 2:
            word.hover()
        else:
            word.focus()
        used = page.locator(".source .used").all_inner_texts()
        source = page.locator(".source span").all_inner_texts()
        assert used == source[:source_words]
        expect(page.locator(".source .awaited")).to_have_text([source[source_words - 1]])
        why = page.locator(".why, #why").first
        expect(why).to_contain_text(f"“{word.inner_text()}” used {source_words} source word")
        assert re.search(r"\d+ ms", why.inner_text())


def test_only_committed_words_are_announced(page):
    type_words(page, "Ich glaube nicht, dass")
    live = page.locator("[aria-live=polite], [aria-live=assertive]")
    assert {element.get_attribute("class") for element in live.all()} == {"target"}
    assert {element.get_attribute("aria-live") for element in page.get_by_role("status").all()} <= {"off"}
    assert page.locator("#tail").get_attribute("aria-hidden") == "true"
