"""A talk at a server that may be gone at any moment."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from gma.client.held import HeldTalk
from gma.errors import UserError
from gma.serve import protocol
from gma.serve.protocol import SERVER, Bye, Delta, End, Hello, Message, Tail, Text

# characters in a message: below every limit, whatever they are
LARGEST_TEXT = 1000
# messages that may be on their way, below the server's limit
WINDOW = 24
# characters that wait to be sent before `send` waits, too
PATIENT_TEXT = 1 << 16
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 3.0
# no other try would end otherwise
FINAL_CLOSES = (
    protocol.POLICY_VIOLATION,
    protocol.TOO_BIG,
    1007,
    protocol.UNAUTHORIZED,
    protocol.FOREIGN_ORIGIN,
    protocol.NOT_FOUND,
)
FINAL_STATUS = (400, 401, 403, 404, 426)


class ClientError(UserError):
    """The server refuses, or none can be reached."""


def connect(*urls: str, delta: float | None = None, token: str | None = None, patience: float = 60.0) -> "RemoteTalk":
    """A talk at one of several servers with the same model, such as "http://127.0.0.1:8000".

    Args:
        delta: the latency to begin with; None for the server's.
        patience: seconds to go on trying when no server can be reached.
    """
    if not urls:
        raise ClientError("no server was named; expected an address such as http://127.0.0.1:8000")
    return RemoteTalk([address(url) for url in urls], delta, token, patience)


def address(url: str) -> str:
    """Of the WebSocket at a server's address."""
    try:
        parts = urlsplit(url)
        # reading the port checks it
        is_address = bool(parts.hostname) and (parts.port is None or parts.port > 0) and url.split() == [url]
    except ValueError:
        is_address = False
    scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(parts.scheme) if is_address else None
    if scheme is None:
        raise ClientError(f"the server is {url!r}; expected an address such as http://127.0.0.1:8000")
    path = parts.path.rstrip("/")
    return urlunsplit((scheme, parts.netloc, path if path.endswith("/v1/stream") else f"{path}/v1/stream", "", ""))


class RemoteTalk:
    """One speaker. Iterating gives the server's events, such as `Words` and `SentenceEnd` of `gma.serve.protocol`.

    Each numbered event comes once, in order, whatever happens to connections on the way.
    """

    def __init__(self, urls: list[str], delta: float | None, token: str | None, patience: float):
        self._urls, self._token, self._patience = urls, token, patience
        self.held = HeldTalk(delta=delta)
        self.connections = 0
        self._events: asyncio.Queue[Message | BaseException | None] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._finished = False
        self._tail: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._sent = 0  # characters of the talk, on this connection
        self._seq = self._ack = 0

    async def __aenter__(self) -> "RemoteTalk":
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def send(self, text: str) -> None:
        """More of the source, cut anywhere; waits while much of it has not been sent."""
        if self._finished:
            raise ClientError("the talk is finished; open another one")
        self.held.text += text
        self._changed.set()
        while self.held.length - self._sent > PATIENT_TEXT and self._task is not None and not self._task.done():
            self._room.clear()
            await self._room.wait()

    def end(self) -> None:
        """The sentence ends here."""
        self.held.ends.append(self.held.length)
        self._changed.set()

    def change_latency(self, delta: float) -> None:
        """Another latency from the next word of the translation on."""
        self.held.delta = delta
        self._changed.set()

    def tail(self, text: str) -> None:
        """What a recogniser may still change, for readers."""
        self._tail = text
        self._changed.set()

    async def finish(self) -> None:
        """Nothing follows; the iteration ends when everything has come."""
        self._finished = True
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            event = await self._events.get()
            if event is None:
                return
            if isinstance(event, BaseException):
                raise event
            yield event

    async def _run(self) -> None:
        try:
            await self._keep_talking()
            self._events.put_nowait(None)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._events.put_nowait(error)
        finally:
            self._room.set()

    async def _keep_talking(self) -> None:
        from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

        loop = asyncio.get_running_loop()
        pause, reached, place = FIRST_PAUSE, loop.time(), 0
        problem: Exception | None = None
        while True:
            before = self.held.n
            try:
                if await self._talk(self._urls[place % len(self._urls)]):
                    return
                problem = None
            except InvalidStatus as error:
                if error.response.status_code in FINAL_STATUS:
                    raise ClientError(_reason(error)) from error
                problem = error
            except (ConnectionClosed, InvalidHandshake, OSError, asyncio.TimeoutError, EOFError) as error:
                problem = error
            if self.held.n > before:
                pause = FIRST_PAUSE
            if self.held.n > before or problem is None:
                reached = loop.time()
            if problem is not None and loop.time() - reached > self._patience:
                raise ClientError(
                    f"no server could be reached for {self._patience:g} seconds: {', '.join(self._urls)} ({problem})"
                ) from problem
            place += 1
            if place % len(self._urls) == 0:
                await asyncio.sleep(pause * (0.5 + random.random()))
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _talk(self, url: str) -> bool:
        """One connection; whether everything has been said and received."""
        from websockets.asyncio.client import connect as open_socket
        from websockets.exceptions import ConnectionClosed

        refusal: protocol.Error | None = None
        async with open_socket(url, max_size=1 << 22, open_timeout=10, close_timeout=1) as socket:
            self.connections += 1
            resume = self.held.resume()
            hello = Hello(type="hello", v=1, token=self._token, delta=self.held.delta, resume=resume)
            await socket.send(hello.model_dump_json(exclude_none=True))
            self._sent, self._seq, self._ack = self.held.source, 0, 0
            self._last_end, self._said_bye = self.held.source - 1, False
            sender: asyncio.Task[None] | None = None
            try:
                async for frame in socket:
                    event = SERVER.validate_json(frame)
                    if isinstance(event, protocol.Error):
                        refusal = event
                        continue
                    self.held.learn(event)
                    self._ack = getattr(event, "ack", self._ack)
                    self._changed.set()
                    if sender is None:
                        self._asked = self.held.kept_delta
                        sender = asyncio.create_task(self._send(socket))
                    if not isinstance(event, protocol.Shutdown):
                        self._events.put_nowait(event)
            except ConnectionClosed:
                pass
            finally:
                if sender is not None:
                    sender.cancel()
                    with contextlib.suppress(asyncio.CancelledError, ConnectionClosed):
                        await sender
        code = socket.close_code
        if code == protocol.DONE and self._said_bye:
            return True
        if code in FINAL_CLOSES:
            raise ClientError(f"the server closed with {code}: {refusal.message if refusal else 'no reason given'}")
        if code == protocol.FAILED:
            raise EOFError(refusal.message if refusal else "a step failed")
        if code == protocol.IDLE:
            await self._something_to_say()
        return False

    async def _something_to_say(self) -> None:
        while self.held.length == self.held.source and not self._finished:
            self._changed.clear()
            await self._changed.wait()

    async def _send(self, socket: Any) -> None:
        while True:
            self._changed.clear()
            while self._seq - self._ack < WINDOW and (message := self._next_message()) is not None:
                await socket.send(message.model_dump_json())
                self._room.set()
            await self._changed.wait()

    def _next_message(self) -> Message | None:
        if self._tail is not None:
            text, self._tail = self._tail, None
            return Tail(type="tail", text=text[-4096:])
        if self._said_bye:
            return None
        if self.held.delta is not None and self.held.delta != self._asked:
            self._asked = self.held.delta
            return Delta(type="delta", seq=self._number(), value=self.held.delta)
        ends = [place for place in self.held.ends if place > self._last_end]
        if ends and ends[0] <= self._sent:
            self._last_end = ends[0]
            return End(type="end", seq=self._number())
        until = min(ends[0] if ends else self.held.length, self._sent + LARGEST_TEXT)
        if until > self._sent:
            start = self._sent - self.held.source
            text, self._sent = self.held.text[start : start + until - self._sent], until
            return Text(type="text", seq=self._number(), text=text)
        if self._finished:
            self._said_bye = True
            return Bye(type="bye", seq=self._number())
        return None

    def _number(self) -> int:
        self._seq += 1
        return self._seq


def _reason(error: Any) -> str:
    body = (error.response.body or b"").decode("utf-8", "replace")[:300]
    return f"the server refused with {error.response.status_code}: {body}"
