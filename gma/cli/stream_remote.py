"""`gma stream --server`: the same text and the same views, translated by `gma serve` elsewhere."""

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from gma.cli.stream_view import LiveView, PlainView
from gma.client import RemoteTalk, connect
from gma.decoding.hypothesis import Hypothesis
from gma.decoding.talk import Arrived, Ended, Span, Written

# seconds that somebody at a keyboard waits for a server that is away
PATIENCE = 20.0

View: TypeAlias = LiveView | PlainView


class _Standing:
    """Where the open sentence stands, as a view asks a talk of this process."""

    def __init__(self) -> None:
        self.arrived_tokens, self.awaited_tokens, self.partial = 0, math.inf, ""

    @property
    def stream(self) -> "_Standing":
        return self

    @property
    def ended(self) -> bool:
        return self.awaited_tokens == 0


class _Lines:
    """Which ends of lines of the source the translation has reached."""

    def __init__(self) -> None:
        self._open: deque[int] = deque()  # words of the talk in front of each line end
        self._words, self._in_word = 0, False
        self.done = 0

    def hear(self, text: str) -> None:
        for character in text:
            if character.isspace():
                self._in_word = False
            elif not self._in_word:
                self._words, self._in_word = self._words + 1, True
            if character == "\n":
                self._open.append(self._words)

    def finish(self) -> None:
        """The last line ends, too, if there is anything on it."""
        if self._words > (self._open[-1] if self._open else self.done):
            self._open.append(self._words)

    def reached(self) -> int:
        """How many of them lie in front of the next sentence, each counted once."""
        count = 0
        while self._open and self._open[0] <= self.done:
            self._open.popleft()
            count += 1
        return count


def interpret_remotely(
    url: str,
    texts: Callable[[View], Iterable[str]],
    view: Callable[[str, str], View],
    delta: float | None,
    token: str | None,
) -> None:
    """Send text as it arrives and show what comes back.

    Args:
        texts: what is to be translated; may show words that are still being typed.
        view: of two languages, which the server names.
    """
    asyncio.run(_interpret(url, texts, view, delta, token))


async def _interpret(
    url: str,
    texts: Callable[[View], Iterable[str]],
    view: Callable[[str, str], View],
    delta: float | None,
    token: str | None,
) -> None:
    lines, standing = _Lines(), _Standing()
    async with connect(url, delta=delta, token=token, patience=PATIENCE) as talk:
        events = aiter(talk)
        # nothing comes before the server has said what it translates
        with view(*(await anext(events)).languages) as shown:
            shown.begin(standing)
            sending = asyncio.create_task(_send(talk, texts(shown), lines, lambda: _end_lines(shown, lines)))
            try:
                async for event in events:
                    _show(event, shown, lines, standing)
                await sending
                _end_lines(shown, lines)
            finally:
                sending.cancel()


async def _send(talk: RemoteTalk, texts: Iterable[str], lines: _Lines, sent: Callable[[], None]) -> None:
    """Text from a thread of its own, which may wait for a key that never comes."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    async def send(text: str) -> None:
        lines.hear(text)
        sent()
        await talk.send(text)

    def end(error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result(None) if error is None else ended.set_exception(error)

    def read() -> None:
        error: BaseException | None = None
        try:
            for text in texts:
                asyncio.run_coroutine_threadsafe(send(text), loop).result()
        except BaseException as problem:
            error = problem
        if not loop.is_closed():
            loop.call_soon_threadsafe(end, error)

    threading.Thread(target=read, name="input", daemon=True).start()
    try:
        await ended
    finally:
        lines.finish()
        await talk.finish()


def _show(event: Any, view: View, lines: _Lines, standing: _Standing) -> None:
    if event.type == "wait":
        standing.arrived_tokens = event.arrived
        standing.awaited_tokens = math.inf if event.awaited is None else event.awaited
        view.show([])
    elif event.type == "heard":
        view.show([Arrived(word.word, event.sentence, Span(*word.source), ()) for word in event.words])
    elif event.type == "words":
        view.show([_written(word, event.sentence) for word in event.words])
    elif event.type == "end":
        source, target = Span(*event.source), Span(*event.target)
        counts = event.source_words, event.target_words, event.words
        view.show([Ended(event.sentence, source, target, *counts, (), event.reason, Hypothesis(), ())])
        lines.done = event.words
        _end_lines(view, lines)


def _written(word: Any, sentence: int) -> Written:
    return Written(
        word=word.word,
        index=word.index,
        source_words=word.source_words,
        arrived_words=word.arrived,
        needed_end=word.needed_end,
        positions=tuple(word.p),
        widths=tuple(word.sigma),
        pieces=tuple(word.pieces),
        sentence=sentence,
        source=Span(*word.source),
        target=Span(*word.target),
        after=word.after,
    )


def _end_lines(view: View, lines: _Lines) -> None:
    for _ in range(lines.reached()):
        view.end_line()
