"""The picture of waiting is the library's numbers, in pixels."""

import pytest
from playwright.sync_api import expect

from tests.support.browser import end_sentence, expected, german_english, type_words, wait

SENTENCE = "Ich habe gestern meinen alten Freund im Park getroffen."


def drawn(page) -> dict:
    """Places of everything in the picture, in words from the left edge and rows from the top."""
    return page.locator(".staircase svg").first.evaluate(
        """(picture) => {
            const number = (element, name) => Number(element.getAttribute(name));
            const path = picture.querySelector(".path").getAttribute("d");
            const [, left, top] = /^M (\\S+) (\\S+)/.exec(path).map(Number);
            const seen = [...picture.querySelectorAll(".seen")];
            const row = number(seen[0], "height");
            const labels = [...picture.querySelectorAll(".label:not(.target)")].map((one) => number(one, "x"));
            const column = labels[1] - labels[0];
            const across = (x) => (x - left) / column, down = (y) => (y - top) / row;
            const group = (name, read) => {
                const rows = seen.map(() => []);
                for (const one of picture.querySelectorAll(name)) {
                    const circle = one.tagName === "circle";
                    const y = circle ? number(one, "cy") : (number(one, "y1") + number(one, "y2")) / 2;
                    rows[Math.floor(down(y))].push(read(one));
                }
                return rows;
            };
            return {
                seen: seen.map((one) => number(one, "width") / column),
                reads: [...path.matchAll(/H (\\S+)/g)].map((match) => across(Number(match[1]))),
                writes: [...path.matchAll(/V (\\S+)/g)].map((match) => down(Number(match[1]))),
                positions: group(".position", (one) => across(number(one, "cx"))),
                widths: group(".width", (one) => [across(number(one, "x1")), across(number(one, "x2"))]),
                offsets: group(".offset", (one) => across(number(one, "x1"))),
                labels: [...picture.querySelectorAll(".label")].map((one) => one.textContent),
            };
        }"""
    )


def place(position: float, pieces: list[int]) -> float:
    """Of a token position, from 1, among words: what lies in the middle of a word's k-th token of n is at (k − ½)/n."""
    before = 0
    for word, count in enumerate(pieces):
        if position <= before + count or word == len(pieces) - 1:
            return word + max(0.0, position - before - 0.5) / count
        before += count
    raise AssertionError("no words")


@pytest.mark.parametrize("delta", [1.0, 4.0])
def test_it_has_the_numbers_of_the_library(page, delta):
    page.locator(".pane input[type=range]").fill(str(delta))
    wait(page, f"gma.panes[0].transcript.delta === {delta}")
    type_words(page, SENTENCE)
    end_sentence(page)
    words = expected(SENTENCE, delta)
    wait(page, f"document.querySelectorAll('.staircase .seen').length === {len(words)}")
    picture = drawn(page)
    source = SENTENCE.split()
    pieces = [len(german_english().tokenizer.source.encode_word(word)) for word in source]
    assert picture["labels"] == [*(word.word for word in words), *source]
    assert picture["seen"] == pytest.approx([word.source_words for word in words])
    assert picture["reads"] == pytest.approx([*(word.arrived_words for word in words), len(source)])
    assert picture["writes"] == pytest.approx(range(1, len(words) + 1))
    furthest = len(source) + 0.4  # what lies further right is drawn at the edge

    def inside(position: float) -> float:
        return min(max(place(position, pieces), 0.0), furthest)

    for row, word in enumerate(words):
        assert len(word.positions) == 2
        assert picture["positions"][row] == pytest.approx([inside(p) for p in word.positions], abs=1e-3)
        for drawn_width, p, sigma in zip(picture["widths"][row], word.positions, word.widths):
            assert drawn_width == pytest.approx([inside(p - sigma), inside(p + sigma)], abs=1e-3)
        assert picture["offsets"][row] == pytest.approx([inside(max(word.positions) + delta)], abs=1e-3)


def test_it_marks_what_the_next_word_waits_for(page):
    type_words(page, "Ich glaube nicht, dass Tom")
    # all three at the same time: the newest message of what is waited for may still be on its way
    wait(
        page,
        """(() => {
            const said = /^waiting for more German: (\\d+) tokens?$/.exec(document.querySelector("#state").textContent);
            const boxes = document.querySelectorAll(".staircase .awaited").length;
            const more = Number(document.querySelector(".sentence").dataset.more);
            return said && boxes === Math.min(3, said[1]) && boxes === more;
        })()""",
    )
    end_sentence(page)
    expect(page.locator(".staircase .awaited")).to_have_count(0)
    assert page.locator(".sentence").get_attribute("data-more") is None


def test_once_a_sentence_has_ended_it_shows_its_attention(page):
    type_words(page, SENTENCE.removesuffix("getroffen."))
    expect(page.locator(".staircase .weight")).to_have_count(0)
    type_words(page, "getroffen.")
    end_sentence(page)
    wait(page, "gma.panes[0].transcript.sentences[0].attention !== null")
    expect(page.locator(".staircase .weight").first).to_be_visible()
    weights = page.evaluate("gma.panes[0].transcript.sentences[0].attention")
    assert all(abs(sum(row) - 1) < 0.06 for row in weights)
    shown = page.locator(".staircase .weight").evaluate_all(
        "(cells) => cells.map((cell) => Number(cell.getAttribute('fill-opacity')))"
    )
    columns = len(SENTENCE.split())
    assert shown == pytest.approx([w for row in weights for w in row[:columns] if w >= 0.03], abs=0.006)
    # none of it in what had not been heard
    words = expected(SENTENCE, page.evaluate("gma.panes[0].transcript.ready.delta.value"))
    for row, word in zip(weights, words):
        assert not any(row[word.source_words : columns])


def test_a_sentence_that_is_pointed_at_is_drawn_again(page):
    type_words(page, SENTENCE)
    end_sentence(page)
    type_words(page, "Ich glaube nicht,")
    assert drawn_source(page) == ["Ich", "glaube", "nicht,"]
    page.locator(".sentence").first.hover()
    wait(page, f"document.querySelectorAll('.staircase .label:not(.target)').length === {len(SENTENCE.split())}")
    assert drawn_source(page) == SENTENCE.split()
    page.mouse.move(0, 0)
    type_words(page, "dass")
    assert drawn_source(page) == ["Ich", "glaube", "nicht,", "dass"]


def drawn_source(page) -> list[str]:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.locator(".staircase .label:not(.target)").all_text_contents()


def test_a_sentence_with_many_words_stays_within_bounds(page):
    page.evaluate("gma.panes[0].talk.say('und '.repeat(120))")
    wait(page, "gma.panes[0].transcript.heard === 120")
    frame = page.locator(".staircase").first
    assert frame.bounding_box()["width"] <= page.viewport_size["width"]
    assert frame.evaluate("(element) => element.scrollLeft + element.clientWidth >= element.scrollWidth - 1")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
