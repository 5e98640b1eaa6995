"""Text without end: sentences are found as it comes, and every one of them is a stream of its own.

    translator = StreamingTranslator.load()
    with translator.open_talk(delta=2.0) as talk:
        for text in ("Guten Morgen. Wie geht ", "es dir? Am 3. Mai "):
            for event in talk.push(text):
                print(event)

What is written depends on the words and line ends alone: not on how the text was cut, not on other talks.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from gma.decoding.course import Change, Emission
from gma.decoding.hypothesis import Hypothesis
from gma.decoding.streaming import Stream, StreamError, check_open
from gma.text.sentences import SENTENCE_LIMIT, SentenceFinder, rules
from gma.text.words import LONGEST_WORD, typed_word

if TYPE_CHECKING:
    from gma.decoding.streaming import StreamingTranslator

Reason = Literal["punctuation", "limit", "line", "end", "model", "failure"]
# what a stream hears in the place of a word that has no pieces
NOTHING = "\u200b "


class Span(NamedTuple):
    """Some of the talk's characters, counted from its beginning in code points: start ≤ place < end."""

    start: int
    end: int


@dataclass(frozen=True)
class Arrived:
    """A source word that has arrived, cut into its pieces.

    Attributes:
        word: its text; of one of more than LONGEST_WORD characters, so many.
        source: where it stands in the talk.
        pieces: none where nothing in it can be read, or where it is too long for a word: it is left out.
    """

    word: str
    sentence: int
    source: Span
    pieces: tuple[int, ...]


@dataclass(frozen=True)
class Written(Emission):
    """A word of the translation.

    Attributes:
        sentence: the number of its sentence, from 0.
        source: of the source, what it needed: from the beginning of the sentence to the end of the last word needed.
        target: of the translation, whose words have one character between them.
        after: how many words of the whole talk had to arrive before it could be written.
    """

    sentence: int
    source: Span
    target: Span
    after: int


@dataclass(frozen=True)
class Ended:
    """A sentence is complete, and so is its translation.

    Attributes:
        source, target: where it stands, empty without a word.
        source_words, target_words: how many it has.
        words: how many source words the talk has up to its end.
        delays: source words that each word of the translation needed.
        reason: what ended it: punctuation, its length, a line end, the caller, the model, which ended the translation
            by itself (the words that follow are a sentence of their own), or a step that failed twice.
        hypothesis: its translation in target tokens.
        latencies: that were kept, each from a target token on.
    """

    sentence: int
    source: Span
    target: Span
    source_words: int
    target_words: int
    words: int
    delays: tuple[int, ...]
    reason: Reason
    hypothesis: Hypothesis
    latencies: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Held:
    """What is needed to go on with a talk elsewhere, beside the text from the beginning of its open sentence on.

    Attributes:
        sentence: its number.
        source, target: where it begins, in characters of the talk.
        words: how many words of the talk stand in front of it.
        pieces: of the words of its translation that have been written: not decided again, and not emitted again.
        changes: every latency that was kept in it, by target word; the first from word 0 on.
    """

    sentence: int = 0
    source: int = 0
    target: int = 0
    words: int = 0
    pieces: Sequence[Sequence[int]] = ()
    changes: Sequence[tuple[int, float]] = ()


class _Word(NamedTuple):
    text: str
    span: Span
    pieces: tuple[int, ...]


class Portion(NamedTuple):
    """Text for the open sentence, what ends it, and whether a word behind it said so."""

    words: list[_Word]
    reason: Reason | None = None
    late: bool = False


class Talk:
    """One speaker. Leaving a `with` block, or `close`, gives back its memory, which does not grow with the text.

    Args:
        limit: source tokens after which a sentence that does not end by itself is cut; from three quarters of them on
            it is cut at a comma.
    """

    def __init__(
        self,
        translator: "StreamingTranslator",
        language: str,
        delta: float | None = None,
        *,
        limit: int = SENTENCE_LIMIT,
        held: Held | None = None,
    ):
        if not 2 <= limit < translator.longest:
            raise StreamError(f"limit is {limit}; expected 2 to {translator.longest - 1}, less than a stream holds")
        self.translator, self._limit = translator, limit
        self._finder = SentenceFinder(rules(language), limit)
        held = held or Held()
        self.sentence = held.sentence
        self._heard = held.source  # characters
        self._partial, self._begun = "", 0  # a word that may go on, and where it begins
        self._todo, self._open = deque[_Word | Reason](), list[_Word]()  # to be translated; the open sentence
        self._words, self._target = held.words, held.target  # of the sentences before
        self._written, self._target_end = len(held.pieces), held.target
        self._delta = held.changes[0][1] if held.changes else delta
        pieces = [piece for word in held.pieces for piece in word]
        vocabulary = translator.tokenizer.target
        if any(type(piece) is not int or not 0 <= piece < vocabulary.size for piece in pieces):
            raise StreamError(f"held pieces are no target tokens; expected numbers below {vocabulary.size}")
        for word in held.pieces:
            self._target_end += len("".join(vocabulary.words(list(word)))) + 1
        self._stream = translator.open(self._delta, written=pieces)
        for change in map(Change._make, held.changes):
            self._stream.change_latency(change.delta, change.place)
            self._delta = change.delta
        if delta is not None and delta != self._delta:
            self.change_latency(delta)

    def push(self, text: str) -> list[Arrived | Written | Ended]:
        """Hear more text, cut anywhere; what could be written of it, in order. A line feed ends a sentence."""
        self.hear(text)
        return advance({self: None})[self]

    def end(self) -> list[Arrived | Written | Ended]:
        """The sentence ends here."""
        self.hear_end()
        return advance({self: None})[self]

    def hear(self, text: str) -> None:
        """Take in text without translating it yet: see `advance`."""
        if not isinstance(text, str):
            raise TypeError(f"text is of type {type(text).__name__}; expected str: decode bytes as UTF-8 first")
        whole, known = self._partial + text, len(self._partial)
        used = 0
        for match in re.finditer(r"\S+|\n", whole):
            if match[0] == "\n":
                used = match.end()
                self._todo.append("line")
                continue
            if match.end() == len(whole):
                # the word may go on
                break
            used = match.end()
            start = self._heard + match.start() - known if match.start() >= known else self._begun
            self._todo.append(self._word(match[0], Span(start, self._heard + used - known)))
        rest = whole[used:].lstrip()
        self._heard += len(text)
        if used or not known:
            self._begun = self._heard - len(rest)
        # enough to know that it is too long; memory must not grow with it
        self._partial = rest[: LONGEST_WORD + 1]

    def hear_end(self) -> None:
        """The sentence ends here; nothing is translated yet."""
        if self._partial:
            self._todo.append(self._word(self._partial, Span(self._begun, self._heard)))
            self._partial = ""
        self._todo.append("end")

    def _word(self, text: str, span: Span) -> _Word:
        pieces = typed_word(text, self.translator.tokenizer.source)
        # more than a stream holds
        if len(pieces) >= self.translator.longest:
            pieces = ()
        return _Word(text[:LONGEST_WORD], span, pieces)

    @property
    def delta(self) -> float:
        return self._stream.delta

    def change_latency(self, delta: float | None) -> tuple[int, int]:
        """Keep another latency in all that is not decided yet, also of the open sentence.

        Returns the sentence, and the word of its translation, from which on it is kept.
        """
        if self._stream.ended and not self._stream.closed:
            self.translator.check_latency(delta)
            self._delta = delta
            return self.sentence + 1, 0
        place = self._stream.change_latency(delta, self._written)
        self._delta = delta
        return self.sentence, place

    @property
    def waiting(self) -> int:
        """Words and ends that have been heard and not been translated."""
        return len(self._todo)

    @property
    def arrived(self) -> int:
        """Complete words of the open sentence that have arrived."""
        return len(self._open)

    @property
    def partial(self) -> str:
        """The beginning of a word that may go on."""
        return self._partial

    @property
    def stream(self) -> Stream:
        """Of the open sentence."""
        return self._stream

    def close(self) -> None:
        """Give up what has not been translated."""
        self._stream.close()

    def __enter__(self) -> "Talk":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, limit: int) -> Portion:
        """What the open sentence gets next: at most so many words."""
        words: list[_Word] = []
        while self._todo and len(words) < limit:
            item = self._todo[0]
            if isinstance(item, str):
                self._todo.popleft()
                if self._open:
                    return Portion(words, item)
                continue
            ends = self._finder.hear(item.text, min(len(item.pieces), self._limit))
            if ends.before and self._open:
                # it is heard again, as the first word of its own sentence
                return Portion(words, ends.before, late=True)
            if self._stream.ended and item.pieces:
                return Portion(words, "model")
            self._todo.popleft()
            self._open.append(item)
            words.append(item)
            if ends.after:
                return Portion(words, ends.after)
        return Portion(words)

    def put_back(self, portion: Portion) -> Portion:
        """The portion without the words the model ended its translation before, which are heard again as a sentence."""
        # one word at least, so that every sentence brings the talk forward
        unread = min(self._stream.unread_words, len(self._open) - 1)
        if unread <= 0:
            return portion
        if portion.reason in ("line", "end"):
            self._todo.appendleft(portion.reason)
        self._todo.extendleft(reversed(self._open[-unread:]))
        del self._open[-unread:]
        return Portion(portion.words[: max(0, len(portion.words) - unread)], "model")

    def collect(self, emissions: Iterable[Emission], portion: Portion) -> list[Arrived | Written | Ended]:
        """What a step has written of a portion, and the end of the sentence."""
        reason: Reason | None = "failure" if self._stream.error is not None else portion.reason
        events: list[Arrived | Written | Ended] = [
            Arrived(word.text, self.sentence, word.span, word.pieces) for word in portion.words
        ]
        for emission in emissions:
            start, self._target_end = self._target_end, self._target_end + len(emission.word) + 1
            events.append(
                Written(
                    **vars(emission),
                    sentence=self.sentence,
                    source=Span(self._start, self._reached(emission.source_words)),
                    target=Span(start, self._target_end - 1),
                    after=self._words
                    + (len(self._open) + portion.late if emission.needed_end else emission.source_words),
                )
            )
            self._written += 1
        if reason is not None:
            events.append(self._ended(reason))
        return events

    @property
    def _start(self) -> int:
        return self._open[0].span.start if self._open else self._heard

    def _reached(self, words: int) -> int:
        """Where so many words of the open sentence end."""
        return self._open[words - 1].span.end if words else self._start

    def _ended(self, reason: Reason) -> Ended:
        source = Span(self._start, self._reached(len(self._open)))
        target = Span(self._target, max(self._target, self._target_end - 1))
        self._words += len(self._open)
        ended = Ended(
            self.sentence,
            source,
            target,
            len(self._open),
            self._written,
            self._words,
            self._stream.delays,
            reason,
            self._stream.hypothesis,
            self._stream.latencies,
        )
        self.sentence += 1
        self._target, self._written = self._target_end, 0
        self._open = []
        self._stream.close()
        self._stream = self.translator.open(self._delta)
        self._finder.end()
        return ended


def advance(talks: Mapping[Talk, int | None]) -> dict[Talk, list[Arrived | Written | Ended]]:
    """Translate what talks of one translator have heard, all together; of each at most so many words, None for all."""
    for talk in talks:
        # before anything is taken from any of them
        check_open(talk.stream)
    events: dict[Talk, list[Arrived | Written | Ended]] = {talk: [] for talk in talks}
    rooms = {talk: 1 << 30 if room is None else room for talk, room in talks.items()}
    going = list(talks)
    while going:
        portions = {talk: talk.take(rooms[talk]) for talk in going}
        texts = {
            talk.stream: (
                "".join(f"{word.text} " if word.pieces else NOTHING for word in portion.words),
                portion.reason is not None,
            )
            for talk, portion in portions.items()
        }
        emissions = going[0].translator.feed(texts)
        for talk, given in portions.items():
            portion = talk.put_back(given)
            rooms[talk] -= len(portion.words)
            events[talk] += talk.collect(emissions[talk.stream], portion)
        going = [talk for talk in going if talk.waiting and rooms[talk] > 0]
    return events
