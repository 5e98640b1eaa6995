"""A thousand hostile connections to a server on which somebody is talking: each gets its documented answer, and the
talk is what it is without them."""

import asyncio
import base64
import collections
import contextlib
import json
import random
import resource

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from gma.decoding import hypothesis
from gma.serve import protocol
from tests.gma.serve.test_stream import expected, text_of
from tests.support.serving import HASTE, get, served, spoken, words
from tests.support.small_models import small_loaded, small_model

CONNECTIONS, AT_A_TIME = 1000, 8
DELTA = 0.6
HELLO = {"type": "hello", "v": 1, "delta": DELTA}
VALID = [
    {"type": "text", "seq": 1, "text": "ab c "},
    {"type": "delta", "seq": 1, "value": 2.0},
    {"type": "end", "seq": 1},
    {"type": "tail", "text": "ab"},
    {"type": "bye", "seq": 1},
]
ODD = [None, True, -1, 0, 2**60, 1.5, float("nan"), float("-inf"), "", "\x00", "inf", [], {}, [[]], "a" * 5000, 1e308]


def mutated(generator: random.Random) -> str:
    """A message with a field too many, too few, or of another kind."""
    message = dict(generator.choice([HELLO, *VALID]))
    place = generator.choice(list(message))
    way = generator.randrange(3)
    if way == 0:
        del message[place]
    elif way == 1:
        message[place] = generator.choice(ODD)
    else:
        message[generator.choice(["more", "", "Type", "__proto__"])] = generator.choice(ODD)
    return json.dumps(message)


def forged(generator: random.Random) -> str:
    """A talk that never was."""
    count = lambda: generator.choice([0, 1, 7, 10**6, 2**53 - 1])  # noqa: E731
    resume = {
        "key": f"{generator.getrandbits(128):032x}",
        "model": generator.choice(["test", "test", "another"]),
        **{name: count() for name in ("n", "sentence", "source", "target", "words", "heard")},
        "pieces": [
            [generator.choice([0, 3, 17, 30, 2**40]) for _ in range(generator.randrange(1, 4))]
            for _ in range(generator.choice([0, 1, 20, 300]))
        ],
        "changes": [[count(), generator.choice([0.6, -1.0, "inf", 1e300])] for _ in range(generator.randrange(3))],
    }
    return json.dumps({**HELLO, "resume": resume})


def garbage(generator: random.Random) -> str:
    return generator.choice(
        [
            "",
            "{",
            "null",
            "[" * 15000,
            '{"type":' * 1500,
            '{"type":"text","seq":1,"text":"\\ud800 "}',
            "".join(chr(generator.randrange(1, 0xD7FF)) for _ in range(generator.randrange(1, 200))),
        ]
    )


def texts(generator: random.Random, count: int, first: int = 1) -> list[str]:
    words = ["a ", "b", "\n", " ", "ж ", "ab. ", "‮", "é"]
    return [
        json.dumps({"type": "text", "seq": first + place, "text": generator.choice(words)}) for place in range(count)
    ]


def said(kind: str, generator: random.Random) -> list[str | bytes]:
    """Frames of a kind of speaker."""
    hello = json.dumps(HELLO)
    if kind == "schema":
        return [*([hello] if generator.random() < 0.8 else []), mutated(generator)]
    if kind == "garbage":
        return [*([hello] if generator.random() < 0.5 else []), garbage(generator)]
    if kind == "binary":
        return [*([hello] if generator.random() < 0.5 else []), generator.randbytes(generator.randrange(100))]
    if kind == "huge":
        return [hello, json.dumps({"type": "text", "seq": 1, "text": "a " * generator.randrange(9000, 100_000)})]
    if kind == "order":
        return generator.choice([[json.dumps(VALID[0])], [hello, hello], [hello, *texts(generator, 1, first=2)]])
    if kind == "flood":
        return [hello, *texts(generator, 400)]
    if kind == "endless word":
        return [hello, *(json.dumps({"type": "text", "seq": 1 + n, "text": "a" * 1000}) for n in range(6))]
    if kind == "forged":
        return [forged(generator), *texts(generator, 5)]
    return [hello, *texts(generator, generator.randrange(30))]


POLICY = protocol.POLICY_VIOLATION
# how each kind may end; None: it is still served when it goes
ENDS = {
    "schema": {POLICY, protocol.DONE, None},
    "garbage": {POLICY},
    "binary": {POLICY},
    "huge": {protocol.TOO_BIG},
    "order": {POLICY},
    "flood": {protocol.TOO_MANY, None},
    "endless word": {POLICY, None},
    "forged": {POLICY, None},
    "gone": {None},
}


async def speak(url: str, kind: str, generator: random.Random) -> int | None:
    """The code that the server closes with."""
    async with connect(url, open_timeout=60, max_size=1 << 22) as socket:
        try:
            for frame in said(kind, generator):
                await socket.send(frame)
            if kind == "gone":
                socket.transport.abort()
                return None
            while True:
                await asyncio.wait_for(socket.recv(), 60 if None not in ENDS[kind] else 1.0)
        except ConnectionClosed:
            return socket.close_code
        except TimeoutError:
            return None


async def raw(port: int, data: bytes) -> bytes:
    """What comes back of a handshake or a request made by hand."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        return await asyncio.wait_for(reader.read(1 << 16), 30)
    except ConnectionError:
        # hung up on before everything was said
        return b""
    finally:
        writer.transport.abort()


def handshake(generator: random.Random, frames: bytes) -> bytes:
    key = base64.b64encode(generator.randbytes(16)).decode()
    return (
        "GET /v1/stream HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode() + frames


def request(generator: random.Random) -> bytes:
    """HTTP, more or less."""
    path = generator.choice(["/", "/v1/stream", "/v1/translate", "/v1/watch/x", "/../../etc/passwd", "/%00", "/\xff"])
    method = generator.choice(["GET", "POST", "PUT", "TRACE", "\x00"])
    header = generator.choice(
        ["X: " + "a" * 70_000, "Content-Length: -1", "Transfer-Encoding: chunked", "\r", "Last-Event-ID: x"]
    )
    body = generator.randbytes(generator.randrange(60))
    return f"{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{header}\r\n\r\n".encode("latin-1") + body


async def send_by_hand(port: int, kind: str, generator: random.Random) -> bytes:
    if kind == "request":
        return await raw(port, request(generator))
    # masked with zeros: text that is no UTF-8, reserved bits, an unmasked frame
    frame = generator.choice([b"\x81\x82\0\0\0\0\xff\xfe", b"\xf1\x81\0\0\0\0a", b"\x81\x01a", b"\x8f\x80\0\0\0\0"])
    return await raw(port, handshake(generator, frame))


def test_a_thousand_hostile_connections_disturb_nobody(monkeypatch, caplog):
    monkeypatch.setattr(hypothesis, "length_limit", lambda needed: needed + 5)
    loaded = small_loaded(small_model(0, delta=1.0), delta=1.0)
    generator = random.Random(1)
    kinds = [generator.choice([*ENDS, "request", "by hand"]) for _ in range(CONNECTIONS)]
    found: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    text = text_of(3, 200)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async def attack(url: str) -> None:
        port, turns = int(url.rsplit(":", 1)[1]), asyncio.Semaphore(AT_A_TIME)

        async def one(number: int, kind: str) -> None:
            own = random.Random(number)
            async with turns:
                if kind in ENDS:
                    found[kind][await speak(url.replace("http", "ws") + "/v1/stream", kind, own)] += 1
                else:
                    found[kind][(await send_by_hand(port, kind, own))[9:12]] += 1

        await asyncio.gather(*(one(number, kind) for number, kind in enumerate(kinds)))

    async def everybody(url: str):
        talk = asyncio.create_task(spoken(url, text=text, delta=DELTA, pause=0.01))
        await attack(url)
        return await talk

    with served(loaded, HASTE) as (url, _service):
        events, connections = asyncio.run(everybody(url))
        assert get(f"{url}/healthz")[0] == 200
        status = get(f"{url}/metrics")[2].decode()
    assert (connections, words(events)) == (1, expected(loaded, text))
    assert "gma_streams 0.0" in status
    for kind, codes in found.items():
        if kind in ENDS:
            assert set(codes) <= ENDS[kind], (kind, codes)
        else:
            assert all(code == b"101" or code[:1] in (b"2", b"4", b"") for code in codes), (kind, codes)
    assert found["flood"][protocol.TOO_MANY]
    assert found["forged"][POLICY]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


@pytest.mark.parametrize("kind", ["slow reader", "silent"])
def test_whoever_does_not_read_or_speak_is_let_go(monkeypatch, kind):
    monkeypatch.setattr(hypothesis, "length_limit", lambda needed: needed + 5)
    loaded = small_loaded(small_model(0, delta=1.0), delta=1.0)
    limits = HASTE.model_copy(update={"idle_seconds": 1.0, "unsent_events": 8, "unacknowledged": 100_000})

    async def close_code(socket) -> int | None:
        try:
            while True:
                await asyncio.wait_for(socket.recv(), 30)
        except ConnectionClosed:
            return socket.close_code

    async def speak_alone(url: str) -> int | None:
        async with connect(url, max_queue=1, open_timeout=60) as socket:
            await socket.send(json.dumps(HELLO))
            if kind == "silent":
                return await close_code(socket)
            socket.transport.pause_reading()
            with contextlib.suppress(ConnectionClosed, TimeoutError, OSError):
                for frame in texts(random.Random(0), 40_000):
                    await asyncio.wait_for(socket.send(frame), 5)
            socket.transport.resume_reading()
            return await close_code(socket)

    with served(loaded, limits) as (url, _service):
        code = asyncio.run(speak_alone(url.replace("http", "ws") + "/v1/stream"))
        assert get(f"{url}/healthz")[0] == 200
    assert code in ({protocol.IDLE} if kind == "silent" else {protocol.BUSY, protocol.TOO_MANY, 1006})
