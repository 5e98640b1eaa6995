"""One speaker's connection: messages in, numbered events out, and every limit that is his own."""

import asyncio
import contextlib
import hashlib
import math
import secrets
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from gma.decoding.talk import Arrived, Ended, Held, Written
from gma.metrics.latency import latency
from gma.serve import protocol
from gma.serve.engine import END, FINISH, Outcome, Speaker, Told
from gma.serve.protocol import CLIENT, Message

if TYPE_CHECKING:
    from gma.serve.service import Service

HELLO_SECONDS = 5.0


class Refused(Exception):
    """The connection ends, with an error message and a close code."""

    def __init__(self, code: str, message: str, close: int):
        super().__init__(message)
        self.error = protocol.Error(code=code, message=message, close=close)


class Session:
    """From `hello` to the end of the connection."""

    def __init__(self, service: "Service", socket: WebSocket):
        self.service, self.socket = service, socket
        self.id = ""
        self._unsent: deque[str] = deque()
        self._wait: str | None = None
        self._wake = asyncio.Event()
        self._close: int | None = None  # when everything has been sent
        self._n = 0
        self._last_seq = 0
        self._speaker: Speaker | None = None
        self._ack = 0
        self._heard_before = 0  # words of the open sentence that the client knows to have arrived
        self._arrivals: list[tuple[float, int]] = []  # of the open sentence's words: when, and how many tokens
        self._attends = False  # whether the client has asked for attention
        self._source: list[Sequence[int]] = []  # of the open sentence, the tokens of each word
        self._target: list[Sequence[int]] = []
        self._sent_at: deque[tuple[int, float]] = deque()

    async def run(self) -> None:
        """Serve an accepted connection to its end."""
        writer = asyncio.create_task(self._write())
        try:
            await self._begin()
            while self._close is None:
                self._take(await self._receive(self.service.limits.idle_seconds))
        except Refused as refused:
            self._refuse(refused)
        except WebSocketDisconnect:
            self._close = self._close or protocol.DONE
            self._unsent.clear()
            writer.cancel()
        finally:
            self._wake.set()
            try:
                await asyncio.wait_for(writer, 10.0)
            except (asyncio.CancelledError, TimeoutError, asyncio.TimeoutError):
                writer.cancel()
            if self._speaker is not None:
                self.service.engine.send(self._speaker, None)
            await self._hang_up()

    async def _begin(self) -> None:
        try:
            hello = await self._receive(HELLO_SECONDS)
        except Refused as refused:
            if refused.error.code == "idle":
                raise Refused("no_hello", "expected hello within five seconds", protocol.POLICY_VIOLATION) from None
            raise
        if not isinstance(hello, protocol.Hello):
            raise Refused("order", f"got {hello.type} first; expected hello", protocol.POLICY_VIOLATION)
        if not self.service.may_speak(self.socket, hello.token):
            raise Refused("unauthorized", "the token is missing or wrong", protocol.UNAUTHORIZED)
        resume = hello.resume
        if resume is not None and resume.model != self.service.model:
            raise Refused(
                "other_model", "the talk was begun with another model; begin another talk", protocol.POLICY_VIOLATION
            )
        key = resume.key if resume else secrets.token_hex(16)
        self.id = session_id(key)
        self.service.enter(self)
        self._attends = hello.attention
        held = None
        if resume is not None:
            self._n, self._heard_before = resume.n, resume.heard
            self._target = list(resume.pieces)
            held = Held(resume.sentence, resume.source, resume.target, resume.words, resume.pieces, resume.changes)
        # a talk that goes on keeps what it kept
        wanted = resume.changes[-1][1] if resume is not None and resume.changes else hello.delta
        delta = self.service.checked_latency(wanted)
        self._speaker = Speaker(self._hear_back, delta, held)
        self.push(self.service.ready(self.id, key, delta))
        # opens the talk, so that what is wrong with a resume is said at once
        self.service.engine.send(self._speaker, Told(0, ""))

    async def _receive(self, seconds: float) -> Any:
        """The next message; Refused if it is none, or none comes."""
        try:
            frame = await asyncio.wait_for(self.socket.receive(), seconds)
        except (TimeoutError, asyncio.TimeoutError):
            raise Refused("idle", f"no message for {seconds:g} seconds", protocol.IDLE) from None
        if frame["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(frame.get("code", 1006))
        text = frame.get("text")
        if text is None:
            raise Refused("not_text", "got a binary frame; expected JSON in a text frame", protocol.POLICY_VIOLATION)
        if len(text.encode("utf-8", "surrogatepass")) > self.service.limits.message_bytes:
            raise Refused("too_big", f"expected at most {self.service.limits.message_bytes} bytes", protocol.TOO_BIG)
        try:
            return CLIENT.validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise Refused("schema", f"{place}: {first['msg']}"[:300], protocol.POLICY_VIOLATION) from None
        except RecursionError:
            raise Refused("schema", "nested too deeply", protocol.POLICY_VIOLATION) from None

    def _take(self, message: Any) -> None:
        assert self._speaker is not None
        if isinstance(message, protocol.Hello):
            raise Refused("order", "got hello again; expected it once", protocol.POLICY_VIOLATION)
        if isinstance(message, protocol.Tail):
            tail = protocol.TailShown(text=message.text).model_dump_json()
            self.service.readers.publish(self.id, None, tail, "tail")
            return
        if message.seq != self._last_seq + 1:
            raise Refused("order", f"seq is {message.seq}; expected {self._last_seq + 1}", protocol.POLICY_VIOLATION)
        self._last_seq = message.seq
        if message.seq - self._ack > self.service.limits.unacknowledged:
            raise Refused(
                "flood",
                f"more than {self.service.limits.unacknowledged} messages are not acknowledged; wait for ack",
                protocol.TOO_MANY,
            )
        what: Any = END
        if isinstance(message, protocol.Text):
            what = message.text
        elif isinstance(message, protocol.Delta):
            what = self.service.checked_latency(message.value)
        elif isinstance(message, protocol.Bye):
            what = FINISH
        self.service.engine.send(self._speaker, Told(message.seq, what))

    def _hear_back(self, outcome: Outcome) -> None:
        """The model thread has done a step for this speaker."""
        if self._close is not None:
            return
        if outcome.error is not None:
            known = isinstance(outcome.error, ValueError | TypeError)
            close = protocol.POLICY_VIOLATION if known else protocol.FAILED
            message = str(outcome.error)[:300] if known else "a step failed; connect again with what you hold"
            self._refuse(Refused("bad_text" if known else "failed", message, close))
            return
        self._ack = outcome.ack
        for sentence, word, value in outcome.changes:
            self.push(protocol.DeltaKept(n=self._next(), ack=self._ack, sentence=sentence, word=word, value=value))
        self._tell(outcome)
        awaited = None if math.isinf(outcome.awaited) else int(outcome.awaited)
        wait = protocol.Wait(
            ack=self._ack,
            sentence=outcome.sentence,
            arrived=outcome.arrived,
            awaited=awaited,
            arrived_words=outcome.arrived_words,
        ).model_dump_json()
        self._wait = wait
        self._wake.set()
        self.service.readers.publish(self.id, None, wait, "wait")
        if outcome.finished:
            self._close = protocol.DONE

    def _tell(self, outcome: Outcome) -> None:
        """Events of one step, one message for each run of a kind."""
        heard: list[protocol.SourceWord] = []
        written: list[protocol.TargetWord] = []
        sentence = 0

        def flush() -> None:
            if heard:
                self.push(protocol.Heard(n=self._next(), ack=self._ack, sentence=sentence, words=heard.copy()))
                heard.clear()
            if written:
                lag = protocol.Lag(queued=_ms(outcome.queued), computed=_ms(outcome.computed))
                self.push(
                    protocol.Words(n=self._next(), ack=self._ack, sentence=sentence, words=written.copy(), ms=lag)
                )
                written.clear()

        source = self.service.tokenizer.source
        now = time.monotonic() - outcome.queued - outcome.computed
        for event in outcome.events:
            if event.sentence != sentence or (isinstance(event, Arrived) and written):
                flush()
            sentence = event.sentence
            if isinstance(event, Arrived):
                self._arrivals.append((now, len(event.pieces)))
                self._source.append(event.pieces)
                if self._heard_before:
                    self._heard_before -= 1
                    continue
                pieces = [source.decode([piece]) for piece in event.pieces]
                heard.append(
                    protocol.SourceWord(word=event.word, source=(event.source.start, event.source.end), pieces=pieces)
                )
            elif isinstance(event, Written):
                written.append(_target_word(event))
                self._target.append(event.pieces)
                self.service.metrics.word(self._policy_lag(event, now), outcome.queued, outcome.computed)
            else:
                flush()
                self.push(self._end(event))
                self._look(event)
        flush()

    def _policy_lag(self, event: Written, now: float) -> float:
        """Seconds from the arrival of the word that this one is aligned to, to that of the last one it waited for."""
        if not self._arrivals:
            return 0.0
        last = min(max(event.source_words, 1), len(self._arrivals)) - 1
        tokens, aligned = 0, last
        furthest = max(event.positions, default=0.0)
        for place, (_, count) in enumerate(self._arrivals):
            tokens += count
            if tokens >= furthest:
                aligned = place
                break
        return max(0.0, self._arrivals[last][0] - self._arrivals[min(aligned, last)][0])

    def _end(self, event: Ended) -> protocol.SentenceEnd:
        self._arrivals, self._heard_before = [], 0
        lag = latency(event.delays, max(1, event.source_words), max(1, event.target_words))
        return protocol.SentenceEnd(
            n=self._next(),
            ack=self._ack,
            sentence=event.sentence,
            source=(event.source.start, event.source.end),
            target=(event.target.start, event.target.end),
            source_words=event.source_words,
            target_words=event.target_words,
            words=event.words,
            reason=event.reason,
            al=round(lag.al, 3),
            laal=round(lag.laal, 3),
        )

    def _look(self, event: Ended) -> None:
        """Send the sentence's attention, once it has been computed."""
        # words that arrived behind a translation's own end are heard again, as another sentence
        source, target = self._source[: event.source_words], self._target
        self._source, self._target = [], []

        def tell(weights: list[list[list[int]]]) -> None:
            if self._close is None:
                self.push(protocol.Attention(sentence=event.sentence, weights=weights))

        if self._attends:
            self.service.looks.ask(source, target, event.latencies, tell)

    def push(self, message: Message) -> None:
        """Send, in order; a client that does not read is closed."""
        text = message.model_dump_json()
        if isinstance(message, protocol.Ready):
            shown = message.model_copy(update={"key": None}).model_dump_json()
            self.service.readers.publish(self.id, None, shown, "ready")
        elif not isinstance(message, protocol.Shutdown):
            self.service.readers.publish(self.id, getattr(message, "n", None), text)
        self._unsent.append(text)
        self._wake.set()
        if len(self._unsent) > self.service.limits.unsent_events and self._close is None:
            self._unsent.clear()
            self._refuse(
                Refused("slow_reader", "too many events were not read; connect again with what you hold", protocol.BUSY)
            )

    def _next(self) -> int:
        self._n += 1
        return self._n

    def _refuse(self, refused: Refused) -> None:
        if self._close is None:
            self.service.metrics.refused(refused.error.code)
            self._close = refused.error.close
            self._wait = None
            self._unsent.append(refused.error.model_dump_json())
            self._wake.set()

    def shut_down(self, seconds: float) -> None:
        self.push(protocol.Shutdown(seconds=seconds))

    def restart(self) -> None:
        """Close with 1012: another server takes over."""
        if self._close is None:
            self._close = protocol.RESTART
            self._wake.set()

    @property
    def idle(self) -> bool:
        """Whether everything that was sent has been worked off and delivered."""
        return self._ack == self._last_seq and not self._unsent

    async def _write(self) -> None:
        """Send what there is, until the connection is to be closed."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._unsent:
                    text = self._unsent.popleft()
                    await self.socket.send_text(text)
                wait, self._wait = self._wait, None
                if self._close is not None:
                    await self._hang_up()
                    return
                if wait is not None:
                    await self.socket.send_text(wait)
        except (WebSocketDisconnect, RuntimeError, OSError):
            self._close = self._close or protocol.DONE

    async def _hang_up(self) -> None:
        if self.socket.application_state is WebSocketState.CONNECTED:
            # a tab that is closed is gone before it can be told
            with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
                await self.socket.close(self._close or protocol.DONE)


def session_id(key: str) -> str:
    """What readers know a talk by; whoever has the key goes on with the talk."""
    return hashlib.sha256(bytes.fromhex(key)).hexdigest()[:32]


def _target_word(event: Written) -> protocol.TargetWord:
    return protocol.TargetWord(
        word=event.word,
        index=event.index,
        pieces=list(event.pieces),
        source_words=event.source_words,
        arrived=event.arrived_words,
        needed_end=event.needed_end,
        after=event.after,
        p=[round(value, 4) for value in event.positions],
        sigma=[round(value, 4) for value in event.widths],
        source=(event.source.start, event.source.end),
        target=(event.target.start, event.target.end),
    )


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)
