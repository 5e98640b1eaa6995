"""The microphone, with a recogniser that says what the test wants: only what stands is pushed."""

import pytest
from playwright.sync_api import expect

from tests.support.browser import wait

# the Web Speech API as browsers have it
RECOGNISER = """
window.recognisers = [];
window.SpeechRecognition = class {
    constructor() {
        this.starts = this.stops = 0;
        this.running = false;
        this.results = [];
        recognisers.push(this);
    }
    start() {
        if (this.running) throw new DOMException("recognition has already started", "InvalidStateError");
        this.running = true;
        this.starts += 1;
        this.results = [];
    }
    stop() {
        this.stops += 1;
        this.fall();
    }
    fall(error) {
        if (error) this.onerror?.({ error });
        this.running = false;
        this.onend?.();
    }
    hear(transcript, isFinal = false, confidence = 0.9) {
        if (this.results.at(-1)?.isFinal ?? true) this.results.push(null);
        const index = this.results.length - 1;
        this.results[index] = Object.assign([{ transcript, confidence }], { isFinal });
        this.onresult({ resultIndex: index, results: this.results });
    }
};
"""


@pytest.fixture
def page(visits, server):
    page = visits.open(server, script=RECOGNISER)
    page.get_by_role("button", name="Microphone").click()
    expect(page.get_by_role("button", name="Microphone")).to_have_attribute("aria-pressed", "true")
    return page


def hear(page, transcript: str, final: bool = False, confidence: float = 0.9) -> None:
    page.evaluate("(given) => recognisers.at(-1).hear(...given)", [transcript, final, confidence])


def heard(page) -> list[str]:
    return page.locator(".source span").all_inner_texts()


def test_it_listens_to_german(page):
    assert page.evaluate("[recognisers[0].lang, recognisers[0].continuous, recognisers[0].interimResults]") == [
        "de",
        True,
        True,
    ]


def test_only_words_that_two_interim_results_agree_on_are_pushed(page):
    hear(page, "Ich")
    expect(page.locator("#tail")).to_have_text("Ich")
    hear(page, "Ich habe gern")
    expect(page.locator(".source span")).to_have_text(["Ich"])
    expect(page.locator("#tail")).to_have_text("habe gern")
    hear(page, "Ich habe gestern")
    expect(page.locator(".source span")).to_have_text(["Ich", "habe"])
    expect(page.locator("#tail")).to_have_text("gestern")
    expect(page.locator("#notice")).to_be_empty()


def test_a_final_result_is_pushed_whole_and_ends_the_sentence(page):
    hear(page, "Guten Mor")
    hear(page, "Guten Morgen", final=True)
    expect(page.locator(".source span")).to_have_text(["Guten", "Morgen"])
    expect(page.locator(".sentence.ended")).to_have_count(1)
    expect(page.locator("#tail")).to_be_empty()
    hear(page, "Ich")
    hear(page, "Ich bin", final=True)
    expect(page.locator(".sentence.ended")).to_have_count(2)
    assert heard(page) == ["Guten", "Morgen", "Ich", "bin"]


def test_a_contradiction_is_shown_and_what_was_pushed_stands(page):
    for words in ("Ich habe", "Ich habe ein Haus", "Ich habe eine Maus"):
        hear(page, words)
    expect(page.locator(".source span")).to_have_text(["Ich", "habe"])
    expect(page.locator("#notice")).to_be_empty()
    hear(page, "Ich hatte eine Maus")
    expect(page.locator("#notice")).to_contain_text("heard “habe” and now says “hatte”")
    hear(page, "Ich hatte eine Maus.", final=True)
    expect(page.locator(".source span")).to_have_text(["Ich", "habe", "eine", "Maus."])


def test_a_word_that_the_end_leaves_out_is_a_contradiction_too(page):
    hear(page, "Das ist gut so")
    hear(page, "Das ist gut so")
    hear(page, "Das ist gut", final=True)
    expect(page.locator("#notice")).to_contain_text("heard “so” and now leaves it out")
    expect(page.locator(".source span")).to_have_text(["Das", "ist", "gut", "so"])


def test_capitals_and_punctuation_of_the_end_contradict_nothing(page):
    hear(page, "das ist gut")
    hear(page, "das ist gut")
    hear(page, "Das ist gut.", final=True)
    expect(page.locator(".sentence.ended")).to_have_count(1)
    expect(page.locator("#notice")).to_be_empty()


def test_after_a_silence_it_listens_again(page):
    hear(page, "Guten Morgen")
    hear(page, "Guten Morgen")
    page.evaluate("recognisers[0].fall('no-speech')")
    expect(page.locator(".sentence.ended")).to_have_count(1)
    wait(page, "recognisers[0].starts === 2")
    hear(page, "Ich bin da", final=True)
    expect(page.locator(".sentence.ended")).to_have_count(2)
    assert heard(page) == ["Guten", "Morgen", "Ich", "bin", "da"]
    page.get_by_role("button", name="Microphone").click()
    expect(page.get_by_role("button", name="Microphone")).to_have_attribute("aria-pressed", "false")
    page.wait_for_timeout(400)
    assert page.evaluate("[recognisers[0].starts, recognisers[0].running]") == [2, False]


def test_a_microphone_that_is_refused_is_not_asked_for_again(page):
    page.evaluate("recognisers[0].fall('not-allowed')")
    expect(page.locator("#notice")).to_contain_text("Allow the microphone, or type")
    expect(page.get_by_role("button", name="Microphone")).to_have_attribute("aria-pressed", "false")
    page.wait_for_timeout(400)
    assert page.evaluate("recognisers[0].starts") == 1


def test_on_android_a_final_result_without_confidence_is_none(visits, server):
    page = visits.open(server, script=RECOGNISER, user_agent="Mozilla/5.0 (Linux; Android 15) Chrome/156 Mobile")
    page.get_by_role("button", name="Microphone").click()
    hear(page, "Guten", final=True, confidence=0)
    expect(page.locator("#tail")).to_have_text("Guten")
    assert heard(page) == []


def test_readers_see_what_may_still_change(visits, page):
    hear(page, "Guten Mor")
    reader = visits.open(page.locator("#watch").get_attribute("href"))
    hear(page, "Guten Morgen zus")
    expect(reader.locator("#tail")).to_have_text("Morgen zus")


def test_without_speech_recognition_there_is_no_microphone(visits, server):
    script = "delete window.SpeechRecognition; delete window.webkitSpeechRecognition;"
    page = visits.open(server, script=script)
    expect(page.locator("#microphone")).to_be_hidden()
