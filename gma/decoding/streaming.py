"""Translation of text that is still arriving: words go in as they come, words come out as soon as they are ready.

    translator = StreamingTranslator.load()  # the German-English model of the package
    with translator.open(delta=1.0) as stream:
        for text in ("ein Mann sch", "läft "):
            for emission in stream.push(text):
                print(emission.word)
        for emission in stream.finish():
            print(emission.word)

What is written, and how much source each word needs, depends on the words alone: not on how the text was cut, not on
what other streams share the batch.
"""

import math
import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from gma.decoding import beam
from gma.decoding.batch import open_batch
from gma.decoding.greedy import LONG_SOURCE
from gma.decoding.hypothesis import Hypothesis
from gma.decoding.incremental import UNKNOWN_LENGTH
from gma.errors import UserError
from gma.model import directory
from gma.model.directory import Loaded
from gma.text.vocabulary import EOS, Vocabulary

# characters; what goes on for longer without white space is no word
LONGEST_WORD = 4096


class StreamError(UserError, ValueError):
    """A stream was used in a way that cannot be; it is as it was before."""


@dataclass(frozen=True)
class Emission:
    """A written word.

    Attributes:
        index: its place in the translation, from 0.
        source_words: how many source words it and the words before it needed.
        arrived_words: how many had arrived when it was written.
        positions: aligned position in every decoder layer, of its last piece, in source tokens from 1; without meaning
            for policies other than `gaussian`, which align nothing.
    """

    word: str
    index: int
    source_words: int
    arrived_words: int
    positions: tuple[float, ...]


class StreamingTranslator:
    """A model, and the batch in which its streams step together. May be used from several threads.

    Args:
        longest: source tokens that a stream may hold, the end included; every stream's buffers have room for at least
            as many as the longest one holds.
    """

    def __init__(self, loaded: Loaded, *, longest: int = LONG_SOURCE):
        self.tokenizer, self.longest = loaded.tokenizer, longest
        self._batch = open_batch(loaded.model)
        self._courses: dict[int, _Course] = {}  # by slot
        self._lock = threading.Lock()
        self._abandoned: deque[_Course] = deque()

    @classmethod
    def load(
        cls,
        model: str | Path = directory.DEFAULT,
        device: str | torch.device = "cpu",
        *,
        longest: int = LONG_SOURCE,
    ) -> "StreamingTranslator":
        """The translator in a folder that `gma train` has written, or one that comes with the package, by its name."""
        return cls(directory.load(directory.find(model), device), longest=longest)

    def open(self, delta: float | None = None, *, beam: int = 1) -> "Stream":
        """Begin a sentence.

        Args:
            delta: the latency to keep; None for the configured one.
            beam: hypotheses to keep while searching once the source has ended. Before that, a written word stands.
        """
        if isinstance(beam, bool) or not isinstance(beam, int) or beam < 1:
            raise StreamError(f"beam is {beam!r}; expected a whole number, 1 or more")
        if beam > 1 and not self._batch.can_fork:
            raise StreamError(f"beam is {beam}, but this model writes unit by unit, and a unit stands: use beam 1")
        with self._exclusively():
            slot = self._batch.open(delta)
            course = self._courses[slot] = _Course(slot, beam, self.tokenizer.target)
        return Stream(self, course)

    @property
    def streams(self) -> int:
        """How many translations are under way."""
        return len(self._courses)

    def push_many(self, texts: Mapping["Stream", str]) -> dict["Stream", list[Emission]]:
        """`Stream.push` to several streams, in one pass of the encoder and one batch of steps."""
        return self._feed(texts, end=False)

    def finish_many(self, streams: Iterable["Stream"]) -> dict["Stream", list[Emission]]:
        """`Stream.finish` of several streams together."""
        return self._feed(dict.fromkeys(streams, ""), end=True)

    def _feed(self, texts: Mapping["Stream", str], end: bool) -> dict["Stream", list[Emission]]:
        with self._exclusively():
            # whatever is refused is refused before anything changes
            heard = {stream._course: self._hear(stream, text, end) for stream, text in texts.items()}
            try:
                self._translate(heard, end)
            except BaseException:
                # an interrupted step leaves nothing to go on from
                self._give_up()
                raise
            return {stream: stream._course.take() for stream in texts}

    def _translate(self, heard: Mapping["_Course", "Heard"], end: bool) -> None:
        sources = {}
        for course, new in heard.items():
            course.finished = end
            if course.slot is None:
                continue
            tokens = course.listen(new, end)
            if course.tokens:
                sources[course.slot] = tokens
            elif end:
                # a sentence without words has no translation, whatever the model would make of it
                self._free(course)
        self._batch.push(sources)
        if end:
            self._search({course.slot: course for course in heard if course.slot is not None})
        self._run({course.slot: course for course in heard if course.slot is not None and course.tokens})

    def _hear(self, stream: "Stream", text: str, end: bool) -> "Heard":
        course = stream._course
        if stream._translator is not self:
            raise StreamError("the stream belongs to another translator; push to it there")
        if not isinstance(text, str):
            raise TypeError(f"text is of type {type(text).__name__}; expected str: decode bytes as UTF-8 first")
        course.check_open()
        if course.slot is None:
            return Heard([], "")
        text = course.partial + text
        words, partial = text.split(), ""
        if words and not end and not text[-1].isspace():
            partial = words.pop()
        if any(len(word) > LONGEST_WORD for word in (*words, partial)):
            raise StreamError(
                f"the source has a word of more than {LONGEST_WORD:,} characters; expected words with white space "
                "between them"
            )
        pieces = [self.tokenizer.source.encode_word(word) for word in words]
        # what is accepted can be finished: a word that may go on counts as it is
        unfinished = len(self.tokenizer.source.encode_word(partial)) if partial else 0
        tokens = course.tokens + sum(map(len, pieces)) + unfinished + 1
        if tokens > self.longest:
            raise StreamError(
                f"the source would have {tokens:,} tokens, its end included; expected at most {self.longest:,}: one "
                "stream is one sentence, so finish this one and open another, or raise the translator's `longest`"
            )
        return Heard(pieces, partial)

    def _search(self, courses: Mapping[int, "_Course"]) -> None:
        """End, by beam search, those streams that asked for it; their sources have ended."""
        for width in sorted({course.beam for course in courses.values()} - {1}):
            begun = {slot: course.hypothesis for slot, course in courses.items() if course.beam == width}
            for slot, hypothesis in beam.complete(self._batch, begun, width).items():
                tokens = [*hypothesis.tokens, EOS]
                for step in range(len(courses[slot].hypothesis.needed), len(tokens)):
                    courses[slot].write(tokens[step], hypothesis.needed[step], hypothesis.positions[step])
                courses[slot].hypothesis = hypothesis
                self._free(courses[slot])

    def _run(self, heard: dict[int, "_Course"]) -> None:
        """Advance these streams until each has ended or waits for more source; all others wait already."""
        while (scores := self._batch.advance(heard)) is not None:
            tokens = scores.logits.argmax(dim=1).tolist()
            courses = [heard[slot] for slot in scores.slots]
            for row, course in enumerate(courses):
                tokens[row] = course.hypothesis.step(tokens[row], scores.needed[row], scores.positions[row])
                course.write(tokens[row], scores.needed[row], scores.positions[row])
            self._batch.write(scores.slots, tokens)
            for slot, token in zip(scores.slots, tokens):
                if token == EOS:
                    self._free(heard.pop(slot))

    def _free(self, course: "_Course") -> None:
        """Give back a stream's slot, once."""
        if course.slot is not None:
            self._batch.close(course.slot)
            del self._courses[course.slot]
            course.slot = None

    def _give_up(self) -> None:
        """Close all streams."""
        for course in self._courses.values():
            course.slot, course.closed = None, True
        self._courses.clear()
        self._batch = open_batch(self._batch.model)

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            self._free_abandoned()

    def _abandon(self, course: "_Course") -> None:
        """No one will ever push to this stream again. The garbage collector may call this at any moment."""
        self._abandoned.append(course)
        self._free_abandoned()

    def _free_abandoned(self) -> None:
        # whoever holds the lock now comes here afterwards
        while self._abandoned and self._lock.acquire(blocking=False):
            try:
                while self._abandoned:
                    self._free(self._abandoned.popleft())
            finally:
                self._lock.release()


class Heard(NamedTuple):
    """What new text brings: the pieces of every word that it completes, and a word that may go on."""

    pieces: list[tuple[int, ...]]
    partial: str


class Stream:
    """One sentence on its way. Leaving a `with` block, `close` or forgetting the stream gives back its memory."""

    def __init__(self, translator: StreamingTranslator, course: "_Course"):
        self._translator, self._course = translator, course
        # the course, not the stream: else the stream would live as long as its own finalizer
        self._finalizer = weakref.finalize(self, translator._abandon, course)
        self._finalizer.atexit = False

    def push(self, text: str) -> list[Emission]:
        """Hear more text, cut anywhere: a word is complete when white space follows. Returns what can be written now.

        Once the translation has ended, text is accepted and nothing follows.
        """
        return self._translator.push_many({self: text})[self]

    def finish(self) -> list[Emission]:
        """The sentence is complete; returns the rest of the translation."""
        return self._translator.finish_many([self])[self]

    def poll(self) -> list[Emission]:
        """What has been written and no one has been given, because a push was interrupted."""
        # not in the middle of a step: what is written then would be lost
        with self._translator._exclusively():
            return self._course.take()

    def close(self) -> None:
        """Give up the rest of the translation."""
        self._course.closed = True
        self._finalizer()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ended(self) -> bool:
        """Whether the translation has ended; that may be before the source has."""
        return self._course.slot is None

    @property
    def hypothesis(self) -> Hypothesis:
        """The translation so far in target tokens, and the source tokens each of them needed."""
        return self._course.hypothesis

    @property
    def arrived_words(self) -> int:
        """Complete source words that have arrived, up to the end of the translation."""
        return len(self._course.starts)

    @property
    def arrived_tokens(self) -> int:
        return self._course.tokens

    @property
    def awaited_tokens(self) -> float:
        """Source tokens that must have arrived before the translation goes on; inf for all of them, 0 for none."""
        with self._translator._exclusively():
            if self._course.slot is None:
                return 0
            needed = self._translator._batch.sentences[self._course.slot].needed
            return math.inf if needed >= UNKNOWN_LENGTH else needed


class _Course:
    """How far a stream has come. Holds no reference to the stream, whose disappearance must be noticed."""

    def __init__(self, slot: int, beam: int, vocabulary: Vocabulary):
        self.slot: int | None = slot  # None once the translation has ended
        self.beam, self.vocabulary = beam, vocabulary
        self.finished = self.closed = False
        self.partial = ""  # a source word that may go on
        self.starts: list[int] = []  # tokens before each source word
        self.tokens = 0  # of the source
        self.hypothesis = Hypothesis()
        self.emissions: list[Emission] = []
        self.words = 0  # written
        self.pieces: list[int] = []  # of the next word
        self.source_words = 0  # of the latest piece
        self.positions: tuple[float, ...] = ()

    def check_open(self) -> None:
        if self.closed:
            raise StreamError("the stream is closed; open another one")
        if self.finished:
            raise StreamError("the stream is finished: one stream is one sentence, so open another one for more text")

    def take(self) -> list[Emission]:
        """What has been written and not been taken yet."""
        emissions, self.emissions = self.emissions, []
        return emissions

    def listen(self, heard: Heard, end: bool) -> list[int]:
        """Take in source words; returns their tokens."""
        self.partial = heard.partial
        for word in heard.pieces:
            self.starts.append(self.tokens)
            self.tokens += len(word)
        return [*(token for word in heard.pieces for token in word), *([EOS] if end else [])]

    def write(self, token: int, needed: int, positions: list[float]) -> None:
        """Take in a target token; a word that it completes is emitted."""
        if token == EOS and not self.vocabulary.words(self.pieces):
            return
        self.source_words = max(self.source_words, bisect_left(self.starts, needed))
        if token == EOS:
            # a word without an end is complete only now
            self._emit()
            return
        self.pieces.append(token)
        self.positions = tuple(positions)
        # special tokens and a bare end-of-word marker bring no text and are no word
        if self.vocabulary.closes_word(token) and self.vocabulary.words(self.pieces):
            self._emit()

    def _emit(self) -> None:
        word = "".join(self.vocabulary.words(self.pieces))
        self.emissions.append(Emission(word, self.words, self.source_words, len(self.starts), self.positions))
        self.words += 1
        self.pieces = []
