"""A stream as people and programs see it: words through a pipe, or both sentences growing on a terminal."""

import math
import re
from collections.abc import Iterable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gma.cli.options import warn_of_unreadable, write_out
from gma.decoding.streaming import Emission, Stream, StreamError, StreamingTranslator
from gma.errors import UserError

# at most so many places are drawn for words to come
LARGEST_GAP = 12


class PlainView:
    """Writes every word, with a blank after it, the moment it comes; one line for each sentence."""

    def __enter__(self) -> "PlainView":
        return self

    def __exit__(self, *_) -> None:
        pass

    def begin(self, stream: Stream) -> None:
        pass

    def heard(self, text: str) -> None:
        pass

    def wrote(self, emissions: list[Emission]) -> None:
        if emissions:
            write_out("".join(f"{emission.word} " for emission in emissions))

    def end(self) -> None:
        write_out("\n")


class LiveView:
    """Source above, translation below, and what is waited for. Finished sentences stay above."""

    def __init__(self, console: Console, source: str, target: str):
        self._console, self._names = console, (source, target)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._stream: Stream | None = None
        self._words: list[str] = []
        self._partial = self._typed = ""
        self._written: list[Emission] = []

    def __enter__(self) -> "LiveView":
        self._live.start()
        return self

    def __exit__(self, *_) -> None:
        self._live.stop()

    def begin(self, stream: Stream) -> None:
        self._stream, self._words, self._partial, self._typed, self._written = stream, [], "", "", []
        self._draw()

    def typing(self, word: str) -> None:
        """A word that has not been given to the stream yet."""
        self._typed = word
        self._draw()

    def heard(self, text: str) -> None:
        *words, self._partial = re.split(r"\s+", self._partial + text)
        self._words += filter(None, words)
        self._typed = ""

    def wrote(self, emissions: list[Emission]) -> None:
        self._written += emissions
        self._draw()

    def end(self) -> None:
        if self._words or self._partial:
            self._live.update(Text(""), refresh=True)
            self._console.print(self._sentences(gap=0))
            self._console.print()

    def _draw(self) -> None:
        awaited, arrived = self._stream.awaited_tokens, self._stream.arrived_tokens
        status = Text(self._status(awaited, arrived), style="dim")
        gap = 1 if awaited == math.inf else max(0, int(awaited) - arrived)
        # half of the screen for each side: of a long sentence its end
        room = self._console.width * max(1, self._console.height // 2 - 2) // 2
        self._live.update(Group(self._sentences(gap, room), status), refresh=True)

    def _sentences(self, gap: int, room: int | None = None) -> Table:
        """gap: source tokens that are waited for. room: characters of each side that are shown, None for all."""
        used = self._written[-1].source_words if self._written else 0
        words = [*self._words, *filter(None, (self._partial, self._typed))]
        source = Text(" ").join(
            # what the translation has used, what it has heard, and a word that may go on
            Text(word, "bold cyan" if place < used else "cyan" if place < self._stream.arrived_words else "dim")
            for place, word in _shown(words, room)
        )
        source.append(" ▁" * min(gap, LARGEST_GAP), style="yellow")
        written = [emission.word for emission in self._written]
        target = Text(" ".join(word for _, word in _shown(written, room)), style="bold green")
        table = Table.grid(padding=(0, 1))
        for name, sentence in zip(self._names, (source, target)):
            table.add_row(Text(name, style="dim"), Text("│", style="dim"), sentence)
        return table

    def _status(self, awaited: float, arrived: int) -> str:
        parts = [f"read {self._stream.arrived_words}", f"written {len(self._written)}"]
        if self._stream.ended:
            parts.append("the translation has ended")
        elif awaited == math.inf:
            parts.append("waiting for the end of the sentence")
        elif awaited > arrived:
            parts.append(f"waiting for source token {int(awaited)}, {int(awaited) - arrived} more")
        return " · ".join(parts)


def _shown(words: Sequence[str], room: int | None) -> list[tuple[int, str]]:
    """Place and text of the last words that fit; control characters, which would drive the terminal, are replaced."""
    first, used = len(words), 0
    while first > 0 and (room is None or used + len(words[first - 1]) < room):
        first -= 1
        used += len(words[first]) + 1
    shown = [(place, re.sub(r"[\x00-\x1f\x7f-\x9f]", "�", words[place])) for place in range(first, len(words))]
    return [(first - 1, "…"), *shown] if first else shown


def interpret(
    translator: StreamingTranslator, texts: Iterable[str], view: PlainView | LiveView, delta: float | None
) -> None:
    """Translate text as it arrives, a sentence a line."""
    with view:
        interpreter = _Interpreter(translator, view, delta)
        for text in texts:
            *lines, rest = text.split("\n")
            for line in lines:
                interpreter.hear(line)
                interpreter.end_line()
            interpreter.hear(rest)
        if interpreter.has_heard:
            interpreter.end_line()


class _Interpreter:
    """The stream of the current line."""

    def __init__(self, translator: StreamingTranslator, view: PlainView | LiveView, delta: float | None):
        self._translator, self._view, self._delta = translator, view, delta
        self._line = 0
        self._begin()

    def _begin(self) -> None:
        self._line += 1
        self._text, self.has_heard = "", False
        self._stream = self._translator.open(self._delta)
        self._view.begin(self._stream)

    def hear(self, text: str) -> None:
        if not text:
            return
        self.has_heard = True
        self._text += text
        self._view.heard(text)
        try:
            self._view.wrote(self._stream.push(text))
        except StreamError as error:
            raise UserError(f"line {self._line}: {error}") from error

    def end_line(self) -> None:
        try:
            self._view.wrote(self._stream.finish())
        except StreamError as error:
            raise UserError(f"line {self._line}: {error}") from error
        self._view.end()
        warn_of_unreadable(self._translator.tokenizer.source, self._text, f"line {self._line}", Console(stderr=True))
        self._begin()
