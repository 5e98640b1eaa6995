"""The page for everybody: contrast, names, focus, keyboard, narrow screens, no motion; and no server but its own."""

import itertools
import urllib.request

import pytest
from playwright.sync_api import expect

from gma.serve.app import PAGE
from tests.support.browser import end_sentence, german_english, settle, translation, type_words, wait
from tests.support.serving import served

# of every text: its contrast with what is behind it (WCAG 2.2), the lowest first
CONTRASTS = """() => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const mixed = (...layers) => {
        canvas.clearRect(0, 0, 1, 1);
        for (const layer of layers) {
            canvas.fillStyle = layer;
            canvas.fillRect(0, 0, 1, 1);
        }
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const brightness = (color) => {
        const [red, green, blue] = color.map((part) => {
            const share = part / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const contrast = (one, other) => {
        const [dark, light] = [brightness(one), brightness(other)].sort((a, b) => a - b);
        return (light + 0.05) / (dark + 0.05);
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
        if (!text || element.tagName === "title" || !element.checkVisibility()) continue;
        const layers = [];
        for (let one = element; one; one = one.parentElement) layers.unshift(getComputedStyle(one).backgroundColor);
        const style = getComputedStyle(element);
        const behind = mixed("canvas", ...layers);
        const ink = mixed(`rgb(${behind})`, element instanceof SVGElement ? style.fill : style.color);
        found.push([contrast(ink, behind), text, element.className.baseVal ?? element.className]);
    }
    return found.sort((one, other) => one[0] - other[0]);
}"""


def show_everything(page) -> None:
    """A sentence, one that waits, a word that is pointed at, a message, two latencies, everything unfolded."""
    page.get_by_role("button", name="Compare two latencies").click()
    wait(page, "gma.panes[1].transcript.ready !== null")
    type_words(page, "Ich habe gestern meinen alten Freund im Park getroffen. Ich glaube nicht, dass Tom")
    for summary in page.locator("summary").all():
        summary.click()
    page.evaluate(
        """() => {
            document.querySelector("#notice").textContent = "Something went wrong.";
            document.querySelector("#tail").textContent = "what may change";
        }"""
    )
    page.locator(".word").nth(2).hover()
    settle(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out(visits, server, scheme):
    page = visits.open(server, color_scheme=scheme)
    found = page.evaluate(CONTRASTS)
    assert len(found) > 10
    show_everything(page)
    found += page.evaluate(CONTRASTS)
    page.locator("#notice").evaluate("(notice) => notice.classList.add('good')")
    page.locator("#sample").click()
    settle(page)
    found += page.evaluate(CONTRASTS)
    classes = {name for *_, name in found}
    assert {"word", "used", "used awaited", "label", "label target", "score", "why", "summary", "first"} <= classes
    assert [one for one in found if one[0] < 4.5] == []


def test_every_control_has_a_name(visits, server):
    page = visits.open(server)
    show_everything(page)
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    roles = ("button", "textbox", "slider", "link", "DisclosureTriangle", "status", "image", "region", "img", "article")
    named = {}
    for node in nodes:
        role = node.get("role", {}).get("value")
        if not node.get("ignored") and role in roles:
            named.setdefault(role, []).append(node.get("name", {}).get("value", ""))
    assert {"button", "textbox", "slider", "link"} <= named.keys()
    for role in ("button", "textbox", "slider", "link", "image", "img", "region"):
        assert all(name.strip() for name in named.get(role, [])), (role, named[role])
    # two sliders are told apart
    assert len(set(named["slider"])) == 2


def stops(page) -> list[str]:
    """What the Tab key reaches, in order, each with its name; every one of them shows that it is there."""
    # from the top
    page.evaluate("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")
    found = []
    for _ in range(60):
        page.keyboard.press("Tab")
        stop = page.evaluate(
            """() => {
                const element = document.activeElement;
                if (element === document.body) return null;
                const { outlineStyle, outlineWidth, outlineColor } = getComputedStyle(element);
                const label = element.getAttribute("aria-label") ?? element.labels?.[0]?.textContent;
                const name = label ?? element.textContent;
                return { name: name.trim(), outline: [outlineStyle, parseFloat(outlineWidth), outlineColor] };
            }"""
        )
        if stop is None or (found and stop == found[0]):
            break
        style, width, _color = stop["outline"]
        assert style == "solid", stop
        assert width >= 2, stop
        found.append(stop)
    return [stop["name"] for stop in found]


def test_it_is_used_by_keyboard_alone(visits, server):
    page = visits.open(server)
    page.keyboard.press("Tab")
    expect(page.locator("#typed")).to_be_focused()
    for word in ["Ich", "habe", "gestern", "meinen", "alten", "Freund", "im", "Park", "getroffen."]:
        page.keyboard.type(f"{word} ")
    page.keyboard.press("Enter")
    wait(page, "gma.panes[0].transcript.sentences[0].ended !== null")
    reached = stops(page)
    words = translation(page)
    expected = ["Type German", "Dictate a sample", "Microphone", "New talk", "Latency of", "Compare two", words[0]]
    expected += ["READ and WRITE", "Score it", "Read along"]
    assert [name for name, start in zip(reached, expected) if not name.startswith(start)] == []
    assert len(reached) == len(expected)
    # all words are one stop, and the arrow keys go through them
    page.locator(".word").first.focus()
    for word in words[1:]:
        page.keyboard.press("ArrowRight")
        expect(page.locator(".word:focus")).to_have_text(word)
        expect(page.locator(".why")).to_contain_text(f"“{word}” used")
    assert page.locator(".source .used").count() > 0
    page.keyboard.press("Home")
    expect(page.locator(".word:focus")).to_have_text(words[0])
    # the latency
    slider = page.get_by_role("slider")
    slider.focus()
    before = float(slider.input_value())
    page.keyboard.press("ArrowRight")
    wait(page, f"gma.panes[0].transcript.delta > {before}")


def test_arrow_keys_go_from_sentence_to_sentence(page):
    for sentence in ("Guten Morgen.", "Ich bin hier.", "Guten Abend."):
        type_words(page, sentence)
        end_sentence(page)
    page.locator(".word").first.focus()
    for row, key in ((1, "ArrowDown"), (2, "ArrowDown"), (2, "ArrowDown"), (1, "ArrowUp"), (0, "ArrowUp")):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.closest('.sentence').dataset.sentence") == str(row)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_focus_is_to_be_seen(visits, server, scheme):
    page = visits.open(server, color_scheme=scheme)
    assert len(stops(page)) >= 7
    # three to one, as WCAG wants it of what is no text
    page.locator("#typed").focus()
    ratio = page.evaluate(
        CONTRASTS.replace(
            "const found = [];",
            "const found = []; if (true) return contrast("
            "mixed(getComputedStyle(document.activeElement).outlineColor),"
            "mixed('canvas', getComputedStyle(document.body).backgroundColor));",
        )
    )
    assert ratio >= 3


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_nothing_is_wider_than_the_screen(visits, server, width):
    page = visits.open(server, viewport={"width": width, "height": 800})
    show_everything(page)
    type_words(page, "Donaudampfschifffahrtsgesellschaftskapitänswitwenrentenauszahlungsstellenleiter " + "ß" * 60)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    outside = page.evaluate(
        """() => [...document.querySelectorAll("main *")].filter((element) => {
            if (!element.checkVisibility() || element.closest(".staircase, .lag-box, .reading")) return false;
            const { left, right } = element.getBoundingClientRect();
            return left < -1 || right > innerWidth + 1;
        }).map((element) => element.outerHTML.slice(0, 80))"""
    )
    assert outside == []


def test_nothing_moves_where_people_ask_for_that(visits, server):
    moving = """() => [...document.querySelectorAll("*")].flatMap((element) => {
        const { animationName, transitionDuration } = getComputedStyle(element);
        return animationName !== "none" || /[1-9]/.test(transitionDuration) ? [element.className] : [];
    })"""
    for motion, moves in (("no-preference", True), ("reduce", False)):
        page = visits.open(server, reduced_motion=motion)
        type_words(page, "Ich glaube nicht, dass Tom")
        assert bool(page.evaluate(moving)) == moves


def test_the_policy_allows_nothing_inline_and_nobody_else(server):
    for name in ("", "main.js", "style.css"):
        with urllib.request.urlopen(f"{server}/{name}") as answer:
            policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'self'"
        assert "unsafe" not in str(policy)
        assert set(itertools.chain(*(sources.split() for sources in policy.values()))) <= {"'self'", "'none'"}


def test_a_script_that_gets_in_does_not_run(visits, server):
    page = visits.open(server)
    page.evaluate("""document.querySelector("#about").innerHTML = "<img src=x onerror='window.hacked = 1'>" """)
    page.evaluate(
        """() => document.body.append(Object.assign(document.createElement("script"), { text: "window.hacked = 1" }))"""
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None
    visits.forgive("Content Security Policy", "404")


def test_the_page_is_small():
    assert sum(path.stat().st_size for path in PAGE.iterdir()) < 100_000


def test_the_page_works_under_a_path_of_its_own(visits):
    """Nothing in it begins at the root of the host, so that a proxy may put it anywhere."""
    text = "".join(path.read_text(encoding="utf-8") for path in PAGE.iterdir())
    for start in ('href="/', 'src="/', 'from "/', 'URL("/', "url(/"):
        assert start not in text
    with served(german_english()) as (url, _):
        page = visits.open(f"{url}/index.html")
        type_words(page, "Guten Morgen.")
        page.close()
