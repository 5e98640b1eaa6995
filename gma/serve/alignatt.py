"""`/alignatt`: the protocol of WhisperLiveKit's translation sidecar: this translator behind its microphone.

Its client sends `init`, and then, for every utterance, `update` with all words that are certain so far; it wants all
that has been written of the utterance, and never less than before. `?delta=2` in the address sets the latency.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from gma.decoding.talk import Held, Written
from gma.serve import protocol
from gma.serve.engine import END, Outcome, Speaker, Told
from gma.serve.protocol import Count
from gma.serve.session import Refused

if TYPE_CHECKING:
    from gma.serve.service import Service

VERSION = 1
# a speaker may be silent for long
IDLE_SECONDS = 600.0
STEP_SECONDS = 60.0


class Init(BaseModel):
    """What else it sends is for other models, and left out of account."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: Literal["init"]
    protocol_version: Literal[1]
    source_lang: str
    target_lang: str
    accepted_target_prefix: str = ""


class Update(BaseModel):
    """words: text, and when it began and ended."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: Literal["update"]
    seq: Count
    utterance_id: Count = 0
    words: list[tuple[str, float | None, float | None]]
    is_final: bool = False


_MESSAGE: TypeAdapter[Init | Update] = TypeAdapter(Annotated[Init | Update, Field(discriminator="type")])


class Sidecar:
    """One connection of WhisperLiveKit."""

    def __init__(self, service: "Service", socket: WebSocket):
        self._service, self._socket = service, socket
        self._speaker: Speaker | None = None
        self._done = asyncio.Event()
        self._error: Exception | None = None
        self._ack = self._told = 0
        self._words = 0  # of the open utterance that have been heard
        self._written: list[str] = []

    async def run(self) -> None:
        close = protocol.DONE
        try:
            await self._begin()
            while True:
                await self._update(await self._receive(IDLE_SECONDS))
        except Refused as refused:
            close = refused.error.close
            supported = list(self._service.languages)
            await self._send(
                {"type": "error", "code": refused.error.code, "message": str(refused), "supported": supported}
            )
        except WebSocketDisconnect:
            return
        finally:
            if self._speaker is not None:
                self._service.engine.send(self._speaker, None)
        await self._socket.close(close)

    async def _begin(self) -> None:
        init = await self._receive(5.0)
        if not isinstance(init, Init):
            raise Refused("order", "expected init first", protocol.POLICY_VIOLATION)
        asked = (init.source_lang.lower()[:2], init.target_lang.lower()[:2])
        if asked != self._service.languages:
            pair = "-".join(self._service.languages)
            raise Refused("unsupported_language", f"the model translates {pair}", protocol.POLICY_VIOLATION)
        query = self._socket.query_params.get("delta")
        try:
            delta = self._service.checked_latency(None if query is None else float(query))
        except ValueError:
            raise Refused("delta", f"delta is {query!r}; expected a number", protocol.POLICY_VIOLATION) from None
        self._written = init.accepted_target_prefix.split()
        vocabulary = self._service.tokenizer.target
        held = Held(pieces=[vocabulary.encode_word(word) for word in self._written]) if self._written else None
        self._speaker = Speaker(self._hear_back, delta, held)
        await self._send({"type": "init_ok", "protocol_version": VERSION})

    async def _update(self, update: Any) -> None:
        if not isinstance(update, Update):
            raise Refused("order", "got init again; expected it once", protocol.POLICY_VIOLATION)
        text = "".join(f"{' '.join(word.split())} " for word, _, _ in update.words[self._words :])
        self._words = max(self._words, len(update.words))
        await self._say(text)
        if update.is_final:
            await self._say(END)
        await self._send(
            {
                "type": "translation",
                "seq": update.seq,
                "utterance_id": update.utterance_id,
                "committed_text": " ".join(self._written),
                "final": update.is_final,
            }
        )
        if update.is_final:
            self._words, self._written = 0, []

    async def _say(self, what: Any) -> None:
        """Have something translated, and wait for what comes of it."""
        assert self._speaker is not None
        self._told += 1
        self._service.engine.send(self._speaker, Told(self._told, what))
        while self._ack < self._told and self._error is None:
            self._done.clear()
            await asyncio.wait_for(self._done.wait(), STEP_SECONDS)
        if self._error is not None:
            raise Refused("failed", "the text cannot be translated", protocol.FAILED)

    def _hear_back(self, outcome: Outcome) -> None:
        self._error, self._ack = outcome.error, outcome.ack
        for event in outcome.events:
            if isinstance(event, Written):
                self._service.metrics.word(0.0, outcome.queued, outcome.computed)
                self._written.append(event.word)
        self._done.set()

    async def _receive(self, seconds: float) -> Any:
        try:
            frame = await asyncio.wait_for(self._socket.receive(), seconds)
        except (TimeoutError, asyncio.TimeoutError):
            raise Refused("idle", f"no message for {seconds:g} seconds", protocol.IDLE) from None
        if frame["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(frame.get("code", 1006))
        try:
            return _MESSAGE.validate_json(frame.get("text") or "")
        except (ValidationError, RecursionError):
            raise Refused("schema", "expected init or update", protocol.POLICY_VIOLATION) from None

    async def _send(self, message: dict) -> None:
        await self._socket.send_json(message)
