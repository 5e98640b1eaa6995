"""A browser for tests of the page: Debian's Chromium, or whatever Chromium is on the path."""

import contextlib
import shutil
from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import pytest

from gma.decoding.streaming import StreamingTranslator
from gma.decoding.talk import Written
from gma.model import directory
from gma.model.directory import Loaded

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
# milliseconds that the page may take for anything, on a machine that is busy with other things
PATIENCE = 60_000


@cache
def german_english() -> Loaded:
    return directory.load(directory.find("de-en"))


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """The browser; skips where there is none. While it is open, no other event loop can run in this thread."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    sync_api.expect.set_options(timeout=PATIENCE)
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the path")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Visits:
    """Opens pages in contexts of their own, and knows what went wrong in them.

    Attributes:
        foreign: addresses of other hosts that were asked for.
        complaints: errors that the page or the browser has reported, breaches of its security policy among them.
    """

    def __init__(self, browser: Any):
        self._browser, self._contexts = browser, []
        self._forgiven: list[str] = []
        self.foreign: list[str] = []
        self.complaints: list[str] = []

    def open(self, url: str, *, script: str = "", context: Any = None, ready: bool = True, **options: Any) -> Any:
        """A page.

        Args:
            script: runs in it before everything else.
            context: of another page, to share it; None for a new one with these options.
            ready: wait until the server has answered.
        """
        if context is None:
            context = self._browser.new_context(**options)
            context.set_default_timeout(PATIENCE)
            self._contexts.append(context)
        page = context.new_page()
        host = urlsplit(url).netloc
        page.on("request", lambda request: self._check(request.url, host))
        page.on("websocket", lambda socket: self._check(socket.url, host))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        if script:
            page.add_init_script(script)
        page.goto(url)
        if ready:
            wait(page, "gma.panes[0].transcript.ready !== null")
        return page

    def forgive(self, *parts: str) -> None:
        """Complaints with one of these in them are what the test is about."""
        self._forgiven += parts

    @property
    def unforgiven(self) -> list[str]:
        return [text for text in self.complaints if not any(part in text for part in self._forgiven)]

    def _check(self, url: str, host: str) -> None:
        # a file that is saved is a blob of the page
        if urlsplit(url).scheme != "blob" and urlsplit(url).netloc != host:
            self.foreign.append(url)

    def close(self) -> None:
        for context in self._contexts:
            context.close()


def wait(page: Any, condition: str) -> None:
    """Until an expression of JavaScript is true. (Playwright's own way needs `unsafe-eval`.)"""
    page.evaluate(
        f"""() => new Promise((done, fail) => {{
            const until = performance.now() + {PATIENCE};
            const look = () => {{
                if ({condition}) return done();
                if (performance.now() > until) return fail(new Error("in vain: " + {condition!r}));
                setTimeout(look, 4);
            }};
            look();
        }})"""
    )


def settle(page: Any) -> None:
    """Until nothing moves: words arrive in a color."""
    page.evaluate(
        """async () => {
            await new Promise(requestAnimationFrame);
            await Promise.all(document.getAnimations().map((one) => one.finished));
        }"""
    )


def type_words(page: Any, text: str) -> None:
    """Type a text; every word has been heard, and what it allowed been written, before the next."""
    count = page.evaluate("gma.panes[0].transcript.sentences.reduce((sum, one) => sum + one.heard.length, 0)")
    typed = page.locator("#typed")
    for number, word in enumerate(text.split(), start=count + 1):
        typed.press_sequentially(f"{word} ")
        wait(page, f"gma.panes[0].transcript.sentences.reduce((sum, one) => sum + one.heard.length, 0) >= {number}")


def end_sentence(page: Any) -> None:
    """Press Enter; the sentence is complete."""
    page.locator("#typed").press("Enter")
    wait(page, "gma.panes.every(({ transcript }) => transcript.spoken.every((one) => one.ended))")


def translation(page: Any, pane: int = 0) -> list[str]:
    """Words of the translation, as they are to be seen."""
    return page.locator(".pane").nth(pane).locator(".target .word").all_inner_texts()


def expected(text: str, delta: float, changes: dict[int, float] | None = None) -> list[Written]:
    """What the library writes of a text that is said word by word and then ended.

    changes: latencies that are kept once so many words have been said.
    """
    events = []
    with StreamingTranslator(german_english()).open_talk(delta) as talk:
        for said, word in enumerate(text.split()):
            if changes and said in changes:
                talk.change_latency(changes[said])
            events += talk.push(f"{word} ")
        events += talk.end()
    return [event for event in events if isinstance(event, Written)]
