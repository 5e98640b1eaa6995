"""Servers for tests: one in a thread of this process, or ones in processes that may be killed."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from gma.client import connect
from gma.model.directory import Loaded
from gma.serve.app import Server
from gma.serve.protocol import Limits
from gma.serve.run import listen
from gma.serve.service import Service

PATIENCE = 60.0
# for tests that are in a hurry
HASTE = Limits(words_per_second=1e6, words_at_once=1000000, sessions_per_address=256)


@contextlib.contextmanager
def served(loaded: Loaded, limits: Limits = HASTE, **options) -> Iterator[tuple[str, Service]]:
    """The address of a server in a thread."""
    listener = listen("127.0.0.1", 0)
    service = Service(loaded, "test", limits, **options)
    server = Server(service)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        deadline = time.monotonic() + PATIENCE
        while not server.started:
            assert thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", service
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


def get(url: str, body: object = None, **headers: str) -> tuple[int, dict, bytes]:
    """Status, headers and content."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


async def spoken(
    *urls: str, text: str, pause: float = 0.0, delta: float | None = None, events: list | None = None, **options
) -> tuple[list, int]:
    """What a client receives of a text that is said word by word, and how many connections it took.

    events: a list that is filled meanwhile.
    """
    events = [] if events is None else events
    async with connect(*urls, delta=delta, **options) as talk:

        async def speak() -> None:
            for line in text.splitlines(keepends=True):
                for word in line.split(" "):
                    await talk.send(word + ("" if word.endswith("\n") else " "))
                    if pause:
                        await asyncio.sleep(pause)
            await talk.finish()

        speaking = asyncio.create_task(speak())
        async for event in talk:
            if hasattr(event, "n"):
                events.append(event)
        await speaking
    return events, talk.connections


def words(events: list) -> list[tuple]:
    """Every word of the translation with all that a reader would see of it."""
    return [
        (one.word, event.sentence, one.index, tuple(one.source), tuple(one.target), tuple(one.pieces), one.after)
        for event in events
        if event.type == "words"
        for one in event.words
    ]


class Replicas:
    """Servers that start at once, as children of a process that has everything loaded, and can be killed."""

    def __init__(self, folder: Path, count: int):
        self._parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._parent.stdout.readline() == "ready\n"
        self._ports = [held_port() for _ in range(count)]
        self._running = [self._start(which) for which in range(count)]

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port.getsockname()[1]}" for port in self._ports]

    def replace(self, which: int) -> None:
        """Kill a server and start another one at its port."""
        process = self._running[which]
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            raise AssertionError(f"server {which} died by itself; what it said stands on stderr") from None
        # nobody can listen before its socket is gone
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(process, 0)
                time.sleep(0.001)
        self._running[which] = self._start(which)

    def close(self) -> None:
        self._parent.stdin.close()
        self._parent.wait(PATIENCE)
        for port in self._ports:
            port.close()

    def _start(self, which: int) -> int:
        """The number of the process."""
        self._parent.stdin.write(f"{self._ports[which].getsockname()[1]}\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())


def held_port() -> socket.socket:
    """Bound to a port at which others may listen, so that no connection gets it while nobody does."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


_PARENT = """
import os, signal, sys
from pathlib import Path
import torch
from rich.console import Console
from gma.decoding import hypothesis
from gma.model import directory
from gma.serve.run import run
from tests.support.serving import HASTE
hypothesis.length_limit = lambda needed: needed + 5
torch.set_num_threads(1)
folder = Path(sys.argv[1])
loaded = directory.load(folder)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
children = []
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        sys.stdin.close()
        run(loaded, folder, Console(stderr=True, quiet=True), limits=HASTE, host="127.0.0.1", port=int(line),
            token=None, origins=[], proxies=None)
        os._exit(0)
    children.append(child)
    print(child, flush=True)
for child in children:
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""
