"""A stream as people and programs see it: words through a pipe, or both sentences growing on a terminal."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gma.cli.options import warn_of_unreadable, write_out
from gma.decoding.streaming import StreamError, StreamingTranslator
from gma.decoding.talk import Arrived, Ended, Written
from gma.errors import UserError
from gma.text.sentences import SENTENCE_LIMIT

# at most so many places are drawn for words to come
LARGEST_GAP = 12


class Progress(Protocol):
    """What a view asks of a stream, here or elsewhere: source tokens, and whether its translation has ended."""

    @property
    def arrived_tokens(self) -> int: ...

    @property
    def awaited_tokens(self) -> float: ...

    @property
    def ended(self) -> bool: ...


class Standing(Protocol):
    """What a view asks of a talk: its open sentence, and a word that may go on."""

    @property
    def partial(self) -> str: ...

    @property
    def stream(self) -> Progress: ...


class PlainView:
    """Writes every word the moment it comes; one line for each line of the source."""

    def __init__(self) -> None:
        self._begun = False  # the line

    def __enter__(self) -> "PlainView":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, talk: Standing) -> None:
        pass

    def show(self, events: list[Arrived | Written | Ended]) -> None:
        if words := [event.word for event in events if isinstance(event, Written)]:
            write_out(" " * self._begun + " ".join(words))
            self._begun = True

    def end_line(self) -> None:
        write_out("\n")
        self._begun = False


class LiveView:
    """Shows the source above its translation, and what the model waits for. Finished sentences scroll up.

    hint: what the keys do, where somebody is typing.
    """

    def __init__(self, console: Console, source: str, target: str, hint: str = ""):
        self._console, self._names, self._hint = console, (source, target), hint
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._words: list[str] = []
        self._typed = ""
        self._written: list[Written] = []

    def __enter__(self) -> "LiveView":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def begin(self, talk: Standing) -> None:
        self._talk = talk
        self._draw()

    def typing(self, word: str) -> None:
        """A word that has not been given to the talk yet."""
        self._typed = word
        self._draw()

    def show(self, events: list[Arrived | Written | Ended]) -> None:
        self._typed = ""
        for event in events:
            if isinstance(event, Arrived):
                self._words.append(event.word)
            elif isinstance(event, Written):
                self._written.append(event)
            else:
                self._live.update(Text(""), refresh=True)
                self._console.print(self._sentences(gap=0))
                self._console.print()
                self._words, self._written = [], []
        self._draw()

    def end_line(self) -> None:
        pass

    def _draw(self) -> None:
        stream = self._talk.stream
        awaited, arrived = stream.awaited_tokens, stream.arrived_tokens
        status = Text(self._status(awaited, arrived), style="dim")
        gap = 1 if awaited == math.inf else max(0, int(awaited) - arrived)
        # each side gets half of the screen; of a long sentence only the end is shown
        room = self._console.width * max(1, self._console.height // 2 - 2) // 2
        self._live.update(Group(self._sentences(gap, room), status), refresh=True)

    def _sentences(self, gap: int, room: int | None = None) -> Table:
        """gap: source tokens that are waited for. room: characters of each side that are shown, None for all."""
        used = self._written[-1].source_words if self._written else 0
        words = [*self._words, *filter(None, (self._talk.partial if room else "", self._typed))]
        source = Text(" ").join(
            # three colours: source that the translation has used, source it has heard, a word that may go on
            Text(word, "bold cyan" if place < used else "cyan" if place < len(self._words) else "dim")
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
        parts = [f"read {len(self._words)}", f"written {len(self._written)}"]
        if self._talk.stream.ended:
            parts.append("the translation has ended")
        elif awaited == math.inf:
            parts.append("waiting for the end of the sentence")
        elif awaited > arrived:
            parts.append(f"waiting for source token {int(awaited)}, {int(awaited) - arrived} more")
        return " · ".join([*parts, *filter(None, [self._hint])])


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
    """Translate text as it arrives. A line may hold several sentences; the end of a line ends one."""
    with view, translator.open_talk(delta, limit=min(SENTENCE_LIMIT, translator.longest - 1)) as talk:
        view.begin(talk)
        number, line = 1, ""

        def end_line() -> None:
            view.show(talk.end())
            view.end_line()
            warn_of_unreadable(translator.tokenizer.source, line, f"line {number}", Console(stderr=True))

        try:
            for text in texts:
                first, *others = text.split("\n")
                view.show(talk.push(first))
                line += first
                for other in others:
                    end_line()
                    number, line = number + 1, other
                    view.show(talk.push(other))
            if line:
                end_line()
        except StreamError as error:
            raise UserError(f"line {number}: {error}") from error
