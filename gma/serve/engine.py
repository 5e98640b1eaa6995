"""The model thread: it takes whatever has arrived, translates it as one batch, and hands back what came of it."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gma.decoding.streaming import StreamError, StreamingTranslator
from gma.decoding.talk import Arrived, Ended, Held, Talk, Written, advance

logger = logging.getLogger(__name__)

# words of one speaker in a step, so that pasted text delays nobody
WORDS_AT_A_TIME = 8
END, FINISH = object(), object()


@dataclass
class Told:
    """What a speaker has sent: text, END, FINISH, or another latency."""

    seq: int
    what: Any
    at: float = field(default_factory=time.monotonic)


@dataclass
class Outcome:
    """What a step gave one speaker.

    Attributes:
        changes: latencies that are kept from a word on: sentence, word, value.
        ack: number of the last message that has been worked off.
        queued, computed: seconds that the oldest message waited, and that the step took.
        error: the talk cannot go on.
    """

    events: list[Arrived | Written | Ended]
    changes: list[tuple[int, int, float]]
    ack: int
    queued: float = 0.0
    computed: float = 0.0
    sentence: int = 0
    arrived: int = 0
    arrived_words: int = 0
    awaited: float = 0.0
    finished: bool = False
    error: Exception | None = None


class Speaker:
    """A talk as the model thread sees it.

    Args:
        tell: called in the event loop with every outcome.
    """

    def __init__(self, tell: Callable[[Outcome], None], delta: float | None, held: Held | None, ack: int = 0):
        self.tell, self.delta, self.held, self.ack = tell, delta, held, ack
        self.inbox: deque[Told] = deque()
        self.talk: Talk | None = None
        self.changes: list[tuple[int, int, float]] = []
        self.current: Told | None = None  # being worked off
        self.since = 0.0  # when the oldest message of this step came
        self.credit, self.credited = 0.0, time.monotonic()
        self.finished = self.gone = False


class Engine:
    """Owns the translator: nobody else touches it while this runs.

    Args:
        deliver: runs a function in the event loop; safe to call from any thread.
        rate, burst: source words a second of one speaker, and as many at once.
    """

    def __init__(
        self,
        translator: StreamingTranslator,
        deliver: Callable[[Callable[[], None]], object],
        *,
        sentence_limit: int = 256,
        rate: float = 20.0,
        burst: int = 100,
    ):
        self.translator, self._deliver = translator, deliver
        self._sentence_limit, self._rate, self._burst = sentence_limit, rate, burst
        self._condition = threading.Condition()
        self._speakers: set[Speaker] = set()
        self._new: deque[tuple[Speaker, Told | None]] = deque()
        self._running, self._task = True, threading.Thread(target=self._run, name="model", daemon=True)
        self.beat = time.monotonic()  # when the thread last came round
        self.step_seconds, self.step_speakers = 0.0, 0
        self.on_step: Callable[[float, int], None] = lambda seconds, speakers: None

    def start(self) -> None:
        self._task.start()

    def stop(self) -> None:
        with self._condition:
            self._running = False
            self._condition.notify()
        self._task.join()

    def send(self, speaker: Speaker, told: Told | None) -> None:
        """Something for a speaker's talk, which begins with the first; None ends it."""
        with self._condition:
            self._new.append((speaker, told))
            self._condition.notify()

    @property
    def queued(self) -> int:
        """Messages that no step has taken."""
        return len(self._new) + sum(len(speaker.inbox) for speaker in list(self._speakers))

    def _run(self) -> None:
        while True:
            with self._condition:
                while self._running and not self._new and (pause := self._pause()) > 0:
                    self.beat = time.monotonic()
                    self._condition.wait(min(pause, 1.0))
                if not self._running:
                    return
                new, self._new = self._new, deque()
            self.beat = time.monotonic()
            for speaker, told in new:
                self._receive(speaker, told)
            self._step()

    def _pause(self) -> float:
        """Seconds until some speaker with work may go on."""
        busy = [speaker for speaker in self._speakers if _has_work(speaker)]
        if not busy:
            return 1.0
        return max(0.0, min((1.0 - self._credit(speaker)) / self._rate for speaker in busy))

    def _credit(self, speaker: Speaker) -> float:
        """Words that a speaker may have translated now."""
        now = time.monotonic()
        speaker.credit = min(float(self._burst), speaker.credit + (now - speaker.credited) * self._rate)
        speaker.credited = now
        return speaker.credit

    def _receive(self, speaker: Speaker, told: Told | None) -> None:
        if told is None:
            speaker.gone = True
            self._speakers.discard(speaker)
            if speaker.talk is not None:
                speaker.talk.close()
            return
        if speaker.gone:
            return
        if speaker.talk is None:
            speaker.credit = float(self._burst)
            try:
                speaker.talk = self.translator.open_talk(speaker.delta, limit=self._sentence_limit, held=speaker.held)
            except (StreamError, ValueError, TypeError) as error:
                self._fail(speaker, error)
                return
            self._speakers.add(speaker)
        if isinstance(told.what, float):
            # at once, in front of text that has not been translated
            try:
                sentence, word = speaker.talk.change_latency(told.what)
                speaker.changes.append((sentence, word, told.what))
            except (StreamError, ValueError) as error:
                self._fail(speaker, error)
                return
        speaker.inbox.append(told)

    def _step(self) -> None:
        begun = time.monotonic()
        rooms: dict[Talk, int | None] = {}
        going: list[Speaker] = []
        for speaker in list(self._speakers):
            room = min(WORDS_AT_A_TIME, int(self._credit(speaker)))
            if not _has_work(speaker) or room < 1:
                continue
            speaker.since = begun
            try:
                self._fill(speaker, room)
            except (StreamError, TypeError) as error:
                self._fail(speaker, error)
                continue
            assert speaker.talk is not None
            going.append(speaker)
            rooms[speaker.talk] = room
        if not going:
            return
        try:
            events = advance(rooms)
        except Exception as error:
            # all streams of the translator are closed; whoever comes again brings what is needed to go on
            for speaker in list(self._speakers):
                self._fail(speaker, error)
            return
        computed = time.monotonic() - begun
        self.step_seconds, self.step_speakers = computed, len(going)
        outcomes = [(speaker.tell, self._outcome(speaker, events, begun, computed)) for speaker in going]

        def tell_all() -> None:
            self.on_step(computed, len(outcomes))
            for tell, outcome in outcomes:
                try:
                    tell(outcome)
                except Exception as error:
                    # costs whoever it was about, and no one who shared the step
                    logger.exception("what came of a step cannot be told")
                    tell(Outcome([], [], outcome.ack, error=error))

        self._deliver(tell_all)

    def _fill(self, speaker: Speaker, room: int) -> None:
        """Let a talk hear messages until it has as many words as a step takes."""
        talk = speaker.talk
        assert talk is not None
        if speaker.current is not None:
            speaker.since = min(speaker.since, speaker.current.at)
        while speaker.inbox and talk.waiting < room and not speaker.finished:
            told = speaker.current = speaker.inbox.popleft()
            speaker.since = min(speaker.since, told.at)
            if told.what is END or told.what is FINISH:
                talk.hear_end()
                speaker.finished = told.what is FINISH
            elif isinstance(told.what, str):
                talk.hear(told.what)
            if not talk.waiting:
                speaker.ack, speaker.current = told.seq, None

    def _outcome(self, speaker: Speaker, events: dict, begun: float, computed: float) -> Outcome:
        talk = speaker.talk
        assert talk is not None
        spent = sum(isinstance(event, Arrived) for event in events[talk])
        speaker.credit -= spent
        finished = False
        if not talk.waiting:
            if speaker.current is not None:
                speaker.ack, speaker.current = speaker.current.seq, None
            finished = speaker.finished
        changes, speaker.changes = speaker.changes, []
        awaited = talk.stream.awaited_tokens
        return Outcome(
            events[talk],
            changes,
            speaker.ack,
            begun - speaker.since,
            computed,
            talk.sentence,
            talk.stream.arrived_tokens,
            talk.arrived,
            awaited,
            finished,
        )

    def _fail(self, speaker: Speaker, error: Exception) -> None:
        speaker.gone = True
        self._speakers.discard(speaker)
        if speaker.talk is not None:
            speaker.talk.close()
        outcome = Outcome([], [], speaker.ack, error=error)
        self._deliver(lambda: speaker.tell(outcome))


def _has_work(speaker: Speaker) -> bool:
    return bool(speaker.inbox) or (speaker.talk is not None and speaker.talk.waiting > 0)
