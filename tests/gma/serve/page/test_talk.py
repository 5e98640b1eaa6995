"""A person talks: typing, pasting, the sample; a connection that breaks, a server that refuses, a reader elsewhere."""

import contextlib
import itertools
import re

import pytest
from playwright.sync_api import expect

from tests.support.browser import end_sentence, expected, german_english, translation, type_words, wait
from tests.support.relay import Relay
from tests.support.serving import HASTE, served

TEXT = "Ich glaube nicht, dass Tom heute kommen wird. Wenn es morgen regnet, bleiben wir zu Hause."

# the browser itself reports what it could not open
NO_SOCKET = "WebSocket connection", "Failed to load resource"


def words_of(text: str, delta: float) -> list[str]:
    return [word.word for word in expected(text, delta)]


def usual_delta(page) -> float:
    return page.evaluate("gma.panes[0].transcript.ready.delta.value")


def test_what_is_typed_is_translated_while_it_is_typed(page):
    expect(page.locator("#state")).to_have_text("waiting for you")
    expect(page.locator("#about")).to_contain_text("German into English")
    type_words(page, "Ich glaube nicht, dass")
    before = translation(page)
    expect(page.locator("#state")).to_contain_text("waiting for")
    assert page.locator("#typed").input_value() == ""
    type_words(page, "Tom heute kommen wird. ")
    end_sentence(page)
    sentence = "Ich glaube nicht, dass Tom heute kommen wird."
    assert before == translation(page)[: len(before)] != translation(page)
    assert translation(page) == words_of(sentence, usual_delta(page))
    assert page.locator(".source span").all_inner_texts() == sentence.split()
    expect(page.locator("#state")).to_have_text("waiting for you")


def test_a_word_that_is_not_complete_is_not_heard(page):
    page.locator("#typed").press_sequentially("Guten Mor")
    expect(page.locator(".source span")).to_have_text(["Guten"])
    assert page.locator("#typed").input_value() == "Mor"
    page.locator("#typed").press_sequentially("gen")
    page.locator("#typed").press("Enter")
    expect(page.locator(".source span")).to_have_text(["Guten", "Morgen"])
    expect(page.locator(".sentence.ended")).to_have_count(1)


def test_pasted_text_is_cut_into_sentences(visits, server):
    page = visits.open(server)
    page.locator("#typed").evaluate(
        """(typed, text) => {
            const data = new DataTransfer();
            data.setData("text", text);
            typed.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
        }""",
        TEXT,
    )
    end_sentence(page)
    expect(page.locator(".sentence.ended")).to_have_count(2)
    assert translation(page) == words_of(TEXT, usual_delta(page))


def test_a_dictated_sample_moves_at_once_and_at_the_speed_of_speech(page):
    page.locator("#sample").click()
    wait(page, "gma.panes[0].transcript.current?.heard.length === 1")
    expect(page.locator("#sample")).to_have_attribute("aria-pressed", "true")
    # when they are said: a busy machine may hear some late, and none early
    page.evaluate(
        """() => {
            window.said = [];
            const { talk } = gma.panes[0], say = talk.say;
            talk.say = (text) => { said.push(performance.now()); return say.call(talk, text); };
        }"""
    )
    wait(page, "gma.panes[0].transcript.current?.written.length >= 1 && said.length >= 4")
    said = page.evaluate("said")
    assert all(later - earlier > 350 for earlier, later in itertools.pairwise(said))
    page.locator("#sample").click()
    expect(page.locator("#sample")).to_have_attribute("aria-pressed", "false")
    expect(page.locator(".sentence.ended")).to_have_count(1)


def test_a_cut_connection_loses_nothing_and_says_so(visits, server):
    with Relay(server) as relay:
        page = visits.open(relay.url)
        half = len(TEXT.split()) // 2
        type_words(page, " ".join(TEXT.split()[:half]))
        before = translation(page)
        relay.open = False
        relay.cut()
        expect(page.locator("#notice")).to_contain_text("What you say is kept")
        # what is said meanwhile is kept
        page.locator("#typed").press_sequentially(TEXT.split()[half] + " ")
        relay.open = True
        wait(page, f"gma.panes[0].transcript.sentences.reduce((sum, one) => sum + one.heard.length, 0) === {half + 1}")
        expect(page.locator("#notice")).to_contain_text("nothing was lost")
        type_words(page, " ".join(TEXT.split()[half + 1 :]))
        end_sentence(page)
        assert page.evaluate("gma.panes[0].talk.connections") == 2
    assert translation(page)[: len(before)] == before
    assert translation(page) == words_of(TEXT, usual_delta(page))
    visits.forgive(*NO_SOCKET)


def test_a_server_that_is_gone_is_waited_for(visits, server):
    with Relay(server) as relay:
        page = visits.open(relay.url)
        relay.open = False
        relay.cut()
        expect(page.locator("#state")).to_contain_text("server is gone")
        expect(page.locator("#state")).to_have_attribute("data-state", "gone")
        relay.open = True
        expect(page.locator("#state")).to_have_text("waiting for you")
    visits.forgive(*NO_SOCKET)


def test_another_server_goes_on_where_one_has_died(visits):
    half = 5  # in the middle of a sentence
    with contextlib.ExitStack() as first, served(german_english()) as (second, _):
        url, _ = first.enter_context(served(german_english()))
        relay = first.enter_context(Relay(url))
        page = visits.open(relay.url)
        type_words(page, " ".join(TEXT.split()[:half]))
        relay.lead_to(second)
        relay.cut()
        expect(page.locator("#notice")).to_contain_text("nothing was lost")
        type_words(page, " ".join(TEXT.split()[half:]))
        end_sentence(page)
        assert translation(page) == words_of(TEXT, usual_delta(page))
        # pieces that the first has written count as those of the second
        wait(page, "gma.panes[0].transcript.sentences.every((one) => !one.ended || one.attention)")
        page.close()
    visits.forgive(*NO_SOCKET)


def test_after_a_long_silence_the_talk_goes_on_with_the_next_word(visits):
    with served(german_english(), HASTE.model_copy(update={"idle_seconds": 0.5})) as (url, _):
        page = visits.open(url)
        page.locator("#typed").press_sequentially("Ich glaube nicht, ")
        expect(page.locator("#state")).to_have_text("resting: it goes on when you do")
        # one, unless typing took longer than the server waits
        connections = page.evaluate("gma.panes[0].talk.connections")
        page.wait_for_timeout(300)
        assert page.evaluate("gma.panes[0].talk.connections") == connections
        page.locator("#typed").press_sequentially("dass Tom heute kommen wird. ")
        wait(page, "gma.panes[0].transcript.sentences[0]?.ended")
        assert translation(page) == words_of("Ich glaube nicht, dass Tom heute kommen wird.", usual_delta(page))
        page.close()


def test_who_says_more_than_the_server_takes_is_told_how_far_it_is_behind(visits):
    # slow enough for the state to be seen
    limits = HASTE.model_copy(update={"words_per_second": 15.0, "words_at_once": 5})
    with served(german_english(), limits) as (url, _):
        page = visits.open(url)
        page.evaluate("(text) => gma.panes[0].talk.say(text)", f"{TEXT} " * 3)
        expect(page.locator("#state")).to_have_text(re.compile(r"behind: \d+ words to go"))
        expect(page.locator("#state")).not_to_contain_text("behind")
        wait(page, f"gma.panes[0].transcript.heard === {3 * len(TEXT.split())}")
        page.close()


def test_a_token_is_asked_for_until_it_is_right(visits):
    with served(german_english(), token="correct horse") as (url, _):
        page = visits.open(url, ready=False)
        expect(page.locator("#state")).to_have_text("refused")
        expect(page.locator("#notice")).to_contain_text("token")
        token = page.get_by_label("Token of this server")
        token.fill("wrong")
        token.press("Enter")
        expect(page.locator("#state")).to_have_text("refused")
        expect(page.locator("#notice")).to_contain_text("not the right one")
        token.fill("correct horse")
        token.press("Enter")
        expect(page.locator("#state")).to_have_text("waiting for you")
        expect(token).to_be_hidden()
        expect(page.locator("#notice")).to_be_empty()
        type_words(page, "Guten Morgen.")
        expect(page.locator(".target").first).to_contain_text("morning")
        page.close()


@pytest.mark.parametrize("full", ["sessions", "sessions_per_address"])
def test_a_full_server_says_so_and_is_tried_again(visits, full):
    with served(german_english(), HASTE.model_copy(update={full: 1})) as (url, _):
        first = visits.open(url)
        second = visits.open(url, ready=False)
        expect(second.locator("#state")).to_contain_text("takes nobody more")
        expect(second.locator("#notice")).to_contain_text("no place left")
        first.close()
        expect(second.locator("#state")).to_have_text("waiting for you")
    visits.forgive(*NO_SOCKET)


def test_what_the_server_does_not_take_is_said_in_a_sentence(page):
    page.evaluate("gma.panes[0].talk.keep(NaN)")
    expect(page.locator("#state")).to_have_text("refused")
    expect(page.locator("#notice")).to_contain_text("The server refused: delta")
    page.get_by_role("button", name="New talk").click()
    expect(page.locator("#state")).to_have_text("waiting for you")
    expect(page.locator("#notice")).to_be_empty()


def test_somebody_reads_along_in_another_window(visits, page, server):
    type_words(page, "Ich glaube nicht, dass")
    page.locator("summary", has_text="Read along").click()
    link = page.locator("#watch").get_attribute("href")
    assert link.startswith(server)
    reader = visits.open(link, ready=False)
    expect(reader.locator("#typed")).to_be_hidden()
    expect(reader.locator(".source span")).to_have_count(4)
    type_words(page, "Tom heute kommen wird.")
    end_sentence(page)
    expect(reader.locator(".sentence.ended")).to_have_count(1)
    assert translation(reader) == translation(page)
    assert reader.locator(".source span").all_inner_texts() == page.locator(".source span").all_inner_texts()
    # somebody who comes later sees all of it
    late = visits.open(link, ready=False)
    expect(late.locator(".sentence.ended")).to_have_count(1)
    assert translation(late) == translation(page)
    page.close()
    expect(reader.locator("#state")).to_have_text("nobody speaks here now: looking again")
    visits.forgive("404")


def test_a_word_that_is_too_long_is_left_out_and_shown_so(page):
    page.evaluate("gma.panes[0].talk.say('Guten ' + 'a'.repeat(5000) + ' ')")
    type_words(page, "Morgen.")
    left_out = page.locator(".source .unread")
    expect(left_out).to_have_count(1)
    expect(left_out).to_have_attribute("title", "Nothing in this word can be read.")
    expect(page.locator(".source span")).to_have_count(3)
    wait(page, "gma.panes[0].transcript.sentences[0].attention !== null")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_a_long_text_arrives_whole(page):
    text = "Ich habe gestern meinen alten Freund im Park getroffen. " * 40
    page.evaluate("(text) => gma.panes[0].talk.say(text)", text)
    wait(page, "gma.panes[0].transcript.spoken.filter((one) => one.ended).length === 40")
    heard = page.evaluate("gma.panes[0].transcript.sentences.flatMap((one) => one.heard.map((word) => word.word))")
    assert heard == text.split()
    # the newest is what is to be seen
    last = page.locator(".sentence").last
    expect(last).to_be_in_viewport()
    expect(last.locator(".source span")).to_have_count(9)
