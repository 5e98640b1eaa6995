"""A stream's own side: what it has heard, what it has written, and the latency each of its words was written with."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gma.decoding.hypothesis import Hypothesis
from gma.text.vocabulary import EOS, Vocabulary
from gma.text.words import used_words


@dataclass(frozen=True)
class Emission:
    """A written word.

    Attributes:
        index: its place in the translation, from 0.
        source_words: how many source words it and the words before it needed.
        arrived_words: how many had arrived when it was written.
        needed_end: whether it had to know that the source had ended.
        positions: aligned position in every decoder layer, of its last piece, in source tokens from 1; without meaning
            for policies other than `gaussian`, which align nothing.
        widths: of the prior at each of those positions.
        pieces: the target tokens it was written in; what `open` takes as `written`.
    """

    word: str
    index: int
    source_words: int
    arrived_words: int
    needed_end: bool
    positions: tuple[float, ...]
    widths: tuple[float, ...]
    pieces: tuple[int, ...]


class Heard(NamedTuple):
    """What new text brings: the pieces of every word that it completes, and a word that may go on."""

    pieces: list[tuple[int, ...]]
    partial: str


class Change(NamedTuple):
    """Another latency, from a place in the translation on; None for the configured one."""

    place: int
    delta: float | None


class Course:
    """How far a stream has come. Holds no reference to the stream, whose disappearance must be noticed.

    Args:
        delta: the latency to begin with.
        written: target tokens to begin with; what they are is not decided again.
    """

    def __init__(self, delta: float | None, beam: int, vocabulary: Vocabulary, written: Sequence[int] = ()):
        self.slot: int | None = None  # None before the translation has begun, and once it has ended
        self.beam, self.vocabulary = beam, vocabulary
        self.finished = self.closed = False
        self.error: BaseException | None = None  # what made a step of this stream fail
        self.late = self.warned = False  # whether words came after the end of the translation, and that was said
        self.partial = ""  # a source word that may go on
        self.starts: list[int] = []  # tokens before each source word
        self.source: list[int] = []  # tokens
        self.hypothesis = Hypothesis()
        self.emissions: list[Emission] = []
        self.words = 0  # written
        self.delays: list[int] = []  # source words that each of them needed
        self.pieces: list[int] = []  # of the next word
        self.source_words = 0  # of the latest piece
        self.needed_end = False
        self.positions: tuple[float, ...] = ()
        self.widths: tuple[float, ...] = ()
        self.forced = deque(written)
        self.given, self.taken = len(written), 0  # target tokens that were forced at the beginning; all so far
        self.kept = [Change(0, delta)]  # the latencies of what is written, by target token
        self.planned: list[Change] = []  # by target word

    @property
    def delta(self) -> float | None:
        """The latency of the next word that has not been begun."""
        return self.planned[-1].delta if self.planned else self.kept[-1].delta

    @property
    def tokens(self) -> int:
        """Of the source, without its end."""
        return len(self.source) - (self.source[-1:] == [EOS])

    @property
    def used_words(self) -> int:
        """Source words up to the last one that any step has needed, with words behind it that have no tokens."""
        pieces = [end - start for start, end in zip(self.starts, [*self.starts[1:], self.tokens])]
        return used_words(pieces, max(self.hypothesis.needed, default=0))

    def take(self) -> list[Emission]:
        """What has been written and not been taken yet."""
        emissions, self.emissions = self.emissions, []
        return emissions

    def listen(self, heard: Heard, end: bool) -> list[int]:
        """Take in source words; returns their tokens."""
        self.partial = heard.partial
        before = len(self.source)
        for word in heard.pieces:
            self.starts.append(len(self.source))
            self.source.extend(word)
        if end:
            self.source.append(EOS)
        return self.source[before:]

    def plan(self, delta: float | None, word: int | None) -> None:
        """Another latency from a target word on; None for the next that has not been begun."""
        next_word = self.words + bool(self.pieces)
        word = next_word if word is None else max(word, next_word)
        self.planned = [*(change for change in self.planned if change.place < word), Change(word, delta)]

    def due(self) -> Change | None:
        """The latency that the next token is to be written with, if that has been planned."""
        due = None
        while self.planned and not self.pieces and self.planned[0].place <= self.words:
            due = Change(len(self.hypothesis.tokens), self.planned.pop(0).delta)
        if due is not None:
            self.kept = [*(change for change in self.kept if change.place < due.place), due]
        return due

    def choose(self, best: int, needed: int, positions: list[float], widths: list[float]) -> int:
        """Take in the next step, whose most likely token is `best`; returns the token that is written."""
        token = self.forced.popleft() if self.forced else best
        token = self.hypothesis.step(token, needed, positions, widths)
        self.write(token, needed, positions, widths)
        return token

    def write(self, token: int, needed: int, positions: Sequence[float], widths: Sequence[float]) -> None:
        """Take in a target token; a word that it completes is emitted, unless it was given at the beginning."""
        if token == EOS and not self.vocabulary.words(self.pieces):
            return
        self.source_words = max(self.source_words, bisect_left(self.starts, needed))
        self.needed_end |= needed > self.tokens
        if token == EOS:
            # a word without an end is complete only now
            self._complete()
            return
        self.taken += 1
        self.pieces.append(token)
        self.positions, self.widths = tuple(positions), tuple(widths)
        # special tokens and a bare end-of-word marker bring no text and are no word
        if self.vocabulary.closes_word(token) and self.vocabulary.words(self.pieces):
            self._complete()

    def _complete(self) -> None:
        if self.taken > self.given:
            self.emissions.append(
                Emission(
                    "".join(self.vocabulary.words(self.pieces)),
                    self.words,
                    self.source_words,
                    len(self.starts),
                    self.needed_end,
                    self.positions,
                    self.widths,
                    tuple(self.pieces),
                )
            )
        self.words += 1
        self.delays.append(self.source_words)
        self.pieces = []
