"""`gma stream --server` writes what `gma stream` writes."""

import asyncio
import io

import pytest
from rich.console import Console

from gma.cli.stream_remote import interpret_remotely
from gma.cli.stream_view import LiveView, PlainView, interpret
from gma.client import ClientError
from gma.decoding import hypothesis
from gma.decoding.streaming import StreamingTranslator
from tests.support.serving import served
from tests.support.small_models import small_loaded, small_model

TEXTS = [
    ["ab c d. e f", "g! h\nab", " c\n", "\n\n  \n", "de f"],
    ["\nab c\n"],
    ["a\r\nb c. \n"],
    [""],
    ["ab. cd. " * 40],
]


@pytest.fixture(scope="module")
def loaded():
    return small_loaded(small_model(0, delta=1.0), delta=1.0)


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch):
    monkeypatch.setattr(hypothesis, "length_limit", lambda needed: needed + 5)


@pytest.fixture(scope="module")
def url(loaded):
    with served(loaded, token="a secret") as (found, _):
        yield found


@pytest.mark.parametrize("texts", TEXTS)
def test_it_writes_the_same(loaded, url, texts, capsys):
    interpret(StreamingTranslator(loaded), texts, PlainView(), 0.6)
    here = capsys.readouterr().out
    interpret_remotely(url, lambda view: texts, lambda source, target: PlainView(), 0.6, "a secret")
    assert capsys.readouterr().out == here


def test_a_terminal_shows_the_same_sentences(loaded, url):
    def shown() -> tuple[LiveView, io.StringIO]:
        screen = io.StringIO()
        return LiveView(Console(file=screen, width=200), "de", "en"), screen

    here, here_screen = shown()
    interpret(StreamingTranslator(loaded), TEXTS[0], here, 0.6)
    there, there_screen = shown()
    interpret_remotely(url, lambda view: TEXTS[0], lambda source, target: there, 0.6, "a secret")
    assert there_screen.getvalue() == here_screen.getvalue()


def test_a_server_that_refuses_and_input_that_fails(url):
    def broken(view):
        yield "ab "
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text")

    with pytest.raises(ClientError, match="4401"):
        interpret_remotely(url, lambda view: ["ab"], lambda source, target: PlainView(), None, None)
    with pytest.raises(UnicodeDecodeError):
        asyncio.run(asyncio.wait_for(_in_thread(url, broken), 30))


async def _in_thread(url, texts):
    await asyncio.to_thread(interpret_remotely, url, texts, lambda source, target: PlainView(), None, "a secret")
