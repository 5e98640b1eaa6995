"""Readers of a talk: the same events, over server-sent events, as long as somebody speaks."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Literal, TypeAlias

# numbered events that are kept for readers who come later, or come again
KEPT = 1024
Standing: TypeAlias = Literal["ready", "wait", "tail"]


class Readers:
    """Who reads what.

    Args:
        readers: of one talk.
        unsent: events that a reader may be behind; then he is cut off, and comes again from where he is.
    """

    def __init__(self, readers: int, unsent: int):
        self._limit, self._unsent = readers, unsent
        self._rooms: dict[str, _Room] = {}

    def open(self, session: str) -> None:
        self._rooms.setdefault(session, _Room()).speakers += 1

    def close(self, session: str) -> None:
        room = self._rooms.get(session)
        if room is not None:
            room.speakers -= 1
            if room.speakers <= 0:
                del self._rooms[session]
                # nobody can come again for what is still unread
                for queue in room.queues:
                    queue.put_nowait(None)

    def __contains__(self, session: str) -> bool:
        return session in self._rooms

    def is_full(self, session: str) -> bool:
        return len(self._rooms[session].queues) >= self._limit

    def publish(self, session: str, n: int | None, text: str, stands: Standing | None = None) -> None:
        """
        Args:
            n: number of an event that has one; others are shown to whoever is there.
            stands: the newest of its kind is also shown to those who come later.
        """
        room = self._rooms.get(session)
        if room is None:
            return
        event = f"id: {n}\ndata: {text}\n\n" if n is not None else f"data: {text}\n\n"
        if stands is not None:
            room.standing[stands] = event
        if n is not None:
            room.kept.append((n, event))
        for queue in list(room.queues):
            if queue.qsize() >= self._unsent:
                room.queues.discard(queue)
                _cut_off(queue)
            else:
                queue.put_nowait(event)

    def end_all(self) -> None:
        for room in self._rooms.values():
            for queue in room.queues:
                queue.put_nowait(None)
            room.queues.clear()

    async def events(self, session: str, after: int) -> AsyncIterator[str]:
        """Those that are kept with a number larger than `after`, and then all that come."""
        room = self._rooms[session]
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        kept = [event for n, event in room.kept if n > after]
        kept = [room.standing["ready"], *kept, room.standing["wait"], room.standing["tail"]]
        room.queues.add(queue)
        try:
            for event in kept:
                yield event
            while True:
                try:
                    found = await asyncio.wait_for(queue.get(), 15.0)
                except (TimeoutError, asyncio.TimeoutError):
                    # keeps proxies from closing a silent connection
                    yield ": silence\n\n"
                    continue
                if found is None:
                    return
                yield found
        finally:
            room.queues.discard(queue)


class _Room:
    def __init__(self) -> None:
        self.speakers = 0
        self.standing: dict[Standing, str] = dict.fromkeys(("ready", "wait", "tail"), ": gma\n\n")  # at first, comments
        self.kept: deque[tuple[int, str]] = deque(maxlen=KEPT)
        self.queues: set[asyncio.Queue[str | None]] = set()


def _cut_off(queue: "asyncio.Queue[str | None]") -> None:
    """Without what is unread: whoever reads comes again from where he is."""
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(None)
