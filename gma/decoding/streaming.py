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
import warnings
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gma.attention.alignment import UNKNOWN_LENGTH
from gma.decoding.batch import Batch
from gma.decoding.course import Course, Emission, Heard
from gma.decoding.ensemble import Ensemble, recovered
from gma.decoding.greedy import LONG_SOURCE
from gma.decoding.hypothesis import Hypothesis
from gma.errors import Caution, UserError
from gma.model import directory
from gma.model.directory import Loaded
from gma.model.inference import checked_inference
from gma.text.sentences import SENTENCE_LIMIT
from gma.text.vocabulary import EOS
from gma.text.words import LONGEST_WORD

if TYPE_CHECKING:
    from gma.decoding.talk import Held, Talk

__all__ = ["Emission", "Stream", "StreamError", "StreamFailed", "StreamingTranslator", "StreamsRefused"]


class StreamError(UserError, ValueError):
    """A stream was used in a way that cannot be; it is as it was before."""


class StreamFailed(StreamError):
    """A step of this stream failed, and failed again when it was repeated; other streams go on."""


class StreamsRefused(StreamError):
    """What some of several streams were given was refused: these are as they were before. The others were served.

    Attributes:
        refused: the error of each stream that was refused.
        emissions: of all others, what the call would have returned.
    """

    def __init__(
        self, refused: "Mapping[Stream, Exception]", emissions: "Mapping[Stream, list[Emission]]", order: "list[Stream]"
    ):
        reasons = [f"stream {order.index(stream) + 1} of {len(order)}: {error}" for stream, error in refused.items()]
        super().__init__(f"{'; '.join(reasons)}. The others were served: see `emissions` of this error")
        self.refused, self.emissions = dict(refused), dict(emissions)


class StreamingTranslator:
    """A model, and the batch in which its streams step together. May be used from several threads.

    Args:
        longest: source tokens that a stream may hold, the end included; every stream's buffers have room for at least
            as many as the longest one holds.
    """

    def __init__(self, loaded: Loaded, *, longest: int = LONG_SOURCE):
        if isinstance(longest, bool) or not isinstance(longest, int) or longest < 1:
            raise StreamError(f"longest is {longest!r}; expected a whole number of source tokens, 1 or more")
        self.tokenizer, self.longest = loaded.tokenizer, longest
        self.languages = loaded.config.data.source, loaded.config.data.target
        self._ensemble = Ensemble(loaded.model)
        self._lock = threading.Lock()
        self._abandoned: deque[Course] = deque()

    @classmethod
    def load(
        cls,
        model: str | Path = directory.DEFAULT,
        device: str | torch.device = "cpu",
        *,
        longest: int = LONG_SOURCE,
        engine: str = "auto",
        weights: str = "float32",
    ) -> "StreamingTranslator":
        """The translator in a folder that `gma train` has written, or one that comes with the package, by its name.

        Args:
            model: also `hf://organisation/name@revision`, which is fetched once from a hub.
            engine: 'native' or 'torch'; 'auto' for the native one where it can serve.
            weights: 'float32', 'bfloat16' or 'int8': what the native engine computes with. Files stay as they are.
        """
        inference = checked_inference(engine, weights)
        return cls(directory.load(model, device, inference), longest=longest)

    def open(self, delta: float | None = None, *, beam: int = 1, written: Sequence[int] = ()) -> "Stream":
        """Begin a sentence.

        Args:
            delta: the latency to keep; None for the configured one.
            beam: hypotheses to keep while searching once the source has ended. Before that, a written word stands.
            written: the beginning of the translation, `pieces` of words that another stream has written of the same
                source. They are not decided again, nor emitted; each still waits for the source it needs.
        """
        if isinstance(beam, bool) or not isinstance(beam, int) or beam < 1:
            raise StreamError(f"beam is {beam!r}; expected a whole number, 1 or more")
        if beam > 1 and not self._batch.can_fork:
            raise StreamError(f"beam is {beam}, but this model writes unit by unit, and a unit stands: use beam 1")
        size = self.tokenizer.target.size
        for piece in written:
            if isinstance(piece, bool) or not isinstance(piece, int) or not 0 <= piece < size or piece == EOS:
                raise StreamError(
                    f"written holds {piece!r}; expected target tokens, 0 to {size - 1}, none of them {EOS}"
                )
        with self._exclusively():
            self.check_latency(delta)
            course = Course(delta, beam, self.tokenizer.target, written)
            self._ensemble.begin(course)
        return Stream(self, course)

    def open_talk(
        self, delta: float | None = None, *, limit: int = SENTENCE_LIMIT, held: "Held | None" = None
    ) -> "Talk":
        """Begin text without end, whose sentences are found as it comes.

        Args:
            delta: the latency to keep; None for the configured one, or that of `held`.
            limit: source tokens of a sentence, which is cut if it does not end by itself.
            held: what is known of a talk that was begun elsewhere; push its text from its open sentence on.
        """
        from gma.decoding.talk import Talk

        return Talk(self, self.languages[0], delta, limit=limit, held=held)

    def check_latency(self, delta: float | None) -> float:
        """The latency to keep, or LatencyError if the model's policy cannot."""
        return self._batch.model.latency(delta)

    @property
    def streams(self) -> int:
        """How many translations are under way."""
        return len(self._ensemble.courses)

    @property
    def _batch(self) -> Batch:
        return self._ensemble.batch

    def push_many(self, texts: Mapping["Stream", str]) -> dict["Stream", list[Emission]]:
        """`Stream.push` to several streams, in one pass of the encoder and one batch of steps.

        A step that fails costs the stream that makes it fail, and no other: that one is closed, `Stream.error` says
        why, and all others have what they would have without it. A text that cannot be taken (no str, a word or a
        source that is too long, a stream that is closed) costs its own stream's push: StreamsRefused, which names the
        streams by their place in `texts`, is raised once all others were served, and has their emissions.
        """
        return self._together({stream: (text, False) for stream, text in texts.items()})

    def finish_many(self, streams: Iterable["Stream"]) -> dict["Stream", list[Emission]]:
        """`Stream.finish` of several streams together; failures and refusals are treated as by `push_many`."""
        return self._together(dict.fromkeys(streams, ("", True)))

    def _together(self, texts: Mapping["Stream", tuple[str, bool]]) -> dict["Stream", list[Emission]]:
        refused: dict[Stream, Exception] = {}
        emissions = self.feed(texts, refused)
        _warn_of_unread(emissions)
        if refused:
            raise StreamsRefused(refused, emissions, list(texts))
        return emissions

    def feed(
        self, texts: Mapping["Stream", tuple[str, bool]], refused: "dict[Stream, Exception] | None" = None
    ) -> dict["Stream", list[Emission]]:
        """`push_many` and `finish_many` together: every text, and whether the sentence ends with it.

        refused: is given the streams that cannot take theirs; None to raise the first error before anything changes.
        """
        with self._exclusively():
            heard, ends = {}, set()
            for stream, (text, end) in texts.items():
                try:
                    heard[stream._course] = self._hear(stream, text, end)
                except (StreamError, TypeError) as error:
                    if refused is None:
                        raise
                    refused[stream] = error
                    continue
                if end:
                    ends.add(stream._course)
            try:
                self._translate(heard, ends)
            except Exception as error:
                self._recover([course for course in heard if course.slot is not None], error)
            except BaseException:
                # an interrupted step leaves nothing to go on from
                self._give_up()
                raise
            return {stream: stream._course.take() for stream in texts if stream._course in heard}

    def _translate(self, heard: Mapping[Course, Heard], ends: Collection[Course]) -> None:
        sources = {}
        for course, new in heard.items():
            course.finished = course in ends
            if course.slot is None:
                continue
            tokens = course.listen(new, course.finished)
            if course.tokens:
                sources[course] = tokens
            elif course.finished:
                # a sentence without words has no translation, whatever the model would make of it
                self._ensemble.end(course)
        self._ensemble.step(sources)

    def _recover(self, suspects: Sequence[Course], error: Exception) -> None:
        """Go on without those that make a step fail; with all, if it was an accident."""
        courses = list(self._ensemble.courses.values())
        try:
            self._ensemble, failing = recovered(self._batch.model, courses, suspects)
        except BaseException:
            self._give_up()
            raise
        for course in failing:
            course.slot, course.closed, course.error = None, True, error

    def _hear(self, stream: "Stream", text: str, end: bool) -> Heard:
        course = stream._course
        if stream._translator is not self:
            raise StreamError("the stream belongs to another translator; push to it there")
        if not isinstance(text, str):
            raise TypeError(f"text is of type {type(text).__name__}; expected str: decode bytes as UTF-8 first")
        _check_open(course)
        if course.slot is None:
            course.late |= any(map(self.tokenizer.source.encode_word, text.split()))
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

    def _give_up(self) -> None:
        """Close all streams."""
        for course in self._ensemble.courses.values():
            course.slot, course.closed = None, True
        self._ensemble = Ensemble(self._batch.model)

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            self._free_abandoned()

    def _abandon(self, course: Course) -> None:
        """No one will ever push to this stream again. The garbage collector may call this at any moment."""
        self._abandoned.append(course)
        self._free_abandoned()

    def _free_abandoned(self) -> None:
        # whoever holds the lock now comes here afterwards
        while self._abandoned and self._lock.acquire(blocking=False):
            try:
                while self._abandoned:
                    self._ensemble.end(self._abandoned.popleft())
            finally:
                self._lock.release()


class Stream:
    """One sentence on its way. Leaving a `with` block, `close` or forgetting the stream gives back its memory."""

    def __init__(self, translator: StreamingTranslator, course: Course):
        self._translator, self._course = translator, course
        # the course, not the stream: else the stream would live as long as its own finalizer
        self._finalizer = weakref.finalize(self, translator._abandon, course)
        self._finalizer.atexit = False

    def push(self, text: str) -> list[Emission]:
        """Hear more text, cut anywhere: a word is complete when white space follows. Returns what can be written now.

        Where the model ends the translation before the source has ended, a Caution says that the rest is not in it.
        `open_talk` goes on with the rest.
        """
        return self._alone(text, end=False)

    def finish(self) -> list[Emission]:
        """The sentence is complete; returns the rest of the translation."""
        return self._alone("", end=True)

    def _alone(self, text: str, end: bool) -> list[Emission]:
        emissions = self._translator.feed({self: (text, end)})[self]
        if self.error is not None:
            raise StreamFailed(f"the stream is closed: a step of it failed twice ({self.error!r})") from self.error
        _warn_of_unread([self])
        return emissions

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
    def closed(self) -> bool:
        return self._course.closed

    @property
    def error(self) -> BaseException | None:
        """What made a step of this stream fail, which closed it."""
        return self._course.error

    @property
    def delta(self) -> float:
        """The latency of the next word that has not been begun; it may be changed at any time."""
        return self._translator._batch.model.latency(self._course.delta)

    @delta.setter
    def delta(self, delta: float | None) -> None:
        self.change_latency(delta)

    def change_latency(self, delta: float | None, word: int | None = None) -> int:
        """Keep another latency from a target word on, also if that waits already; returns the word's index.

        What can be written now is given by the next push, of no text if need be.

        Args:
            word: by its index in the translation; None for the next one of which nothing has been decided.
        """
        with self._translator._exclusively():
            _check_open(self._course)
            self._translator.check_latency(delta)
            self._course.plan(delta, word)
            place = self._course.planned[-1].place
            self._translator._ensemble.change_latency(self._course)
            return place

    @property
    def latencies(self) -> tuple[tuple[int, float], ...]:
        """Those kept in what has been written, each from a target token on."""
        usual = self._translator._batch.model.delta
        return tuple((place, usual if delta is None else delta) for place, delta in self._course.kept)

    @property
    def hypothesis(self) -> Hypothesis:
        """The translation so far in target tokens, and the source tokens each of them needed."""
        return self._course.hypothesis

    @property
    def delays(self) -> tuple[int, ...]:
        """Source words that each word of the translation, given or decided, and the words before it needed."""
        return tuple(self._course.delays)

    @property
    def arrived_words(self) -> int:
        """Complete source words that have arrived, up to the end of the translation."""
        return len(self._course.starts)

    @property
    def unread_words(self) -> int:
        """How many of them the translation was ended without, by the model itself; 0 before it has ended."""
        return len(self._course.starts) - self._course.used_words if self.ended and self.error is None else 0

    @property
    def arrived_tokens(self) -> int:
        return self._course.tokens

    @property
    def awaited_tokens(self) -> float:
        """Source tokens that must have arrived before the translation goes on; inf for all of them, 0 for none."""
        with self._translator._exclusively():
            if self._course.slot is None:
                return 0
            needed = self._translator._batch.awaited(self._course.slot)
            return math.inf if needed >= UNKNOWN_LENGTH else needed


def _warn_of_unread(streams: Iterable[Stream]) -> None:
    """Say so, once of each, where the model has ended a translation before its source."""
    for stream in streams:
        course = stream._course
        if not course.warned and (course.late or stream.unread_words):
            course.warned = True
            warnings.warn(
                f"the model ended the translation after {course.used_words} source words, and more have come, which "
                "are not in it: push them to another stream, or use open_talk, which goes on with them",
                Caution,
                stacklevel=4,
            )


def check_open(stream: Stream) -> None:
    """StreamError if nothing more can be pushed to a stream."""
    _check_open(stream._course)


def _check_open(course: Course) -> None:
    if course.error is not None:
        raise StreamFailed(f"the stream is closed: a step of it failed ({course.error!r}); open another one")
    if course.closed:
        raise StreamError("the stream is closed; open another one")
    if course.finished:
        raise StreamError("the stream is finished: one stream is one sentence, so open another one for more text")
