"""Many speakers at once against a running server: how late are words beyond what their policy waits for?"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Load:
    """What came of it. A delay runs from when the last word that a target word waited for was sent to its arrival.

    Attributes:
        delays: seconds, of every word of the translation.
        spoken: words that were sent.
        sentences: that ended.
        lost: speakers whose connection broke, or who never saw the end.
        problems: why, and how often.
    """

    delays: list[float] = field(default_factory=list)
    spoken: int = 0
    sentences: int = 0
    lost: int = 0
    seconds: float = 0.0
    problems: Counter[str] = field(default_factory=Counter)

    def percentile(self, share: float) -> float:
        """The delay that so many words do not exceed, in milliseconds."""
        if not self.delays:
            return float("nan")
        ordered = sorted(self.delays)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def speak(
    url: str, texts: Sequence[str], *, speakers: int, rate: float, seconds: float, delta: float | None = None
) -> Load:
    """Let so many speakers talk at so many words a second, each at a moment of its own.

    Args:
        url: of the WebSocket.
        texts: what is said, over and over.
    """
    load, begun = Load(), time.monotonic()
    await asyncio.gather(
        *(_speaker(url, texts, random.Random(number), rate, seconds, delta, load) for number in range(speakers))
    )
    load.seconds = time.monotonic() - begun
    return load


async def _speaker(
    url: str,
    texts: Sequence[str],
    generator: random.Random,
    rate: float,
    seconds: float,
    delta: float | None,
    load: Load,
) -> None:
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidStatus, WebSocketException

    await asyncio.sleep(generator.random() / rate + generator.random())
    sent: list[float] = []
    way = _Way()
    try:
        async with connect(url, max_size=1 << 22, open_timeout=30, ping_interval=None) as socket:
            await socket.send(json.dumps({"type": "hello", "v": 1, "delta": delta}))
            talking = asyncio.create_task(_talk(socket, texts, generator, rate, seconds, sent, way))
            said_all = False
            async for frame in socket:
                message = json.loads(frame)
                way.reached(message)
                if message["type"] == "words":
                    now = time.monotonic()
                    load.delays += [now - sent[word["after"] - 1] for word in message["words"] if word["after"]]
                elif message["type"] == "end":
                    load.sentences += 1
                    said_all = message["words"] == len(sent)
            await talking
            load.spoken += len(sent)
            if not said_all:
                load.lost += 1
                load.problems[f"closed with {socket.close_code} before everything was translated"] += 1
    except InvalidStatus as error:
        load.lost += 1
        load.problems[(error.response.body or b"").decode("utf-8", "replace") or str(error)] += 1
    except (WebSocketException, OSError, TimeoutError, asyncio.TimeoutError) as error:
        load.lost += 1
        load.problems[f"{type(error).__name__}: {error}"] += 1


class _Way:
    """Messages that are on their way to the server: not more than it allows."""

    def __init__(self) -> None:
        self._allowed = self._ack = 0
        self._came = asyncio.Event()

    def reached(self, message: dict[str, Any]) -> None:
        if message["type"] == "ready":
            self._allowed = message["limits"]["unacknowledged"]
        self._ack = max(self._ack, message.get("ack", 0))
        self._came.set()

    async def room(self, seq: int) -> None:
        while seq - self._ack > self._allowed:
            self._came.clear()
            await self._came.wait()


async def _talk(
    socket: Any,
    texts: Sequence[str],
    generator: random.Random,
    rate: float,
    seconds: float,
    sent: list[float],
    way: _Way,
) -> None:
    begun, seq = time.monotonic(), 0
    words: Iterator[str] = iter(())
    while (elapsed := time.monotonic() - begun) < seconds:
        word = next(words, None)
        if word is None:
            words = iter(generator.choice(texts).split())
            continue
        await asyncio.sleep(max(0.0, len(sent) / rate - elapsed))
        seq += 1
        # said now, even if the server makes it wait
        sent.append(time.monotonic())
        await way.room(seq)
        await socket.send(json.dumps({"type": "text", "seq": seq, "text": f"{word} "}))
    await way.room(seq + 1)
    await socket.send(json.dumps({"type": "bye", "seq": seq + 1}))
