"""What a speaker gets over the wire is what the library gives, whatever happens on the way."""

import asyncio
import contextlib
import json
import random
import threading
import urllib.request

import pytest

from gma.client import ClientError, connect
from gma.decoding import hypothesis
from gma.decoding.streaming import StreamingTranslator
from gma.decoding.talk import Written
from gma.model import directory
from gma.serve.protocol import Limits
from tests.support.serving import HASTE, PATIENCE, Replicas, get, served, spoken, words
from tests.support.small_models import random_text, small_loaded, small_model

DELTA = 0.6


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch):
    """Random models seldom end by themselves."""
    monkeypatch.setattr(hypothesis, "length_limit", lambda needed: needed + 5)


@pytest.fixture(scope="module")
def loaded():
    return small_loaded(small_model(0, delta=1.0), delta=1.0)


@pytest.fixture(scope="module")
def server(loaded):
    with served(loaded) as found:
        yield found


def text_of(seed: int, sentences: int) -> str:
    generator = random.Random(seed)
    return "".join(
        random_text(generator).strip() + generator.choice([". ", "! ", "\n", "? "]) for _ in range(sentences)
    )


def expected(loaded, text: str, delta: float = DELTA) -> list[tuple]:
    with StreamingTranslator(loaded).open_talk(delta) as talk:
        events = talk.push(text) + talk.end()
    return [
        (one.word, one.sentence, one.index, tuple(one.source), tuple(one.target), one.pieces, one.after)
        for one in events
        if isinstance(one, Written)
    ]


def numbers(events) -> list[int]:
    return [event.n for event in events]


def test_many_speakers_get_what_the_library_gives(loaded, server):
    async def everybody():
        return await asyncio.gather(*(spoken(server[0], text=text, delta=DELTA) for text in texts))

    texts = [text_of(seed, 12) for seed in range(12)]
    for text, (events, connections) in zip(texts, asyncio.run(everybody())):
        assert connections == 1
        assert words(events) == expected(loaded, text)
        assert numbers(events) == list(range(1, len(events) + 1))
        heard = [one.word for event in events if event.type == "heard" for one in event.words]
        assert heard == text.split()


@pytest.mark.parametrize("size", [4097, 5000, 9000])
def test_a_word_that_is_none_costs_nothing_else(loaded, server, size):
    before, after = text_of(1, 3).strip(), text_of(2, 3)
    text = f"{before}\n{'g' * size}\n{after}"
    events, connections = asyncio.run(spoken(server[0], text=text, delta=DELTA))
    assert connections == 1
    assert words(events) == expected(loaded, text)
    assert " ".join(one[0] for one in words(events)) == " ".join(
        one[0] for part in (before, after) for one in expected(loaded, part)
    )
    answer = json.loads(get(f"{server[0]}/v1/translate", {"text": text, "delta": DELTA})[2])
    assert answer["text"].split() == [one[0] for one in words(events)]
    assert answer["left_out"] == ["g" * 20]


class Cutter:
    """Stands between client and server, and cuts the wire after a random number of bytes."""

    def __init__(self, url: str, seed: int, cuts: int):
        self._port, self._generator, self.cuts = int(url.rsplit(":", 1)[1]), random.Random(seed), cuts

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        room = [self._generator.randrange(300, 4000) if self.cuts > 0 else 1 << 60]
        self.cuts -= 1

        async def copy(source, sink):
            while data := await source.read(self._generator.randrange(1, 400)):
                if len(data) > room[0]:
                    # in the middle of a frame
                    sink.write(data[: room[0]])
                    break
                room[0] -= len(data)
                sink.write(data)
                await sink.drain()
            for one in (writer, back):
                one.transport.abort()

        await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)


def test_sockets_that_are_cut_at_random_moments_lose_nothing(loaded, server):
    async def everybody():
        async with Cutter(server[0], 1, 60) as cutter:
            found = await asyncio.gather(*(spoken(cutter.url, text=text, delta=DELTA, pause=0.001) for text in texts))
            return found, cutter.cuts

    texts = [text_of(seed, 10) for seed in range(100, 106)]
    found, left = asyncio.run(everybody())
    assert sum(connections for _, connections in found) >= 12
    assert left < 54
    for text, (events, _) in zip(texts, found):
        assert words(events) == expected(loaded, text)
        assert numbers(events) == list(range(1, len(events) + 1))


def test_servers_that_are_killed_ten_times_and_changed_lose_nothing(loaded, tmp_path):
    """One of two at a time, whenever every talk has come a twelfth further: so each of them meets them all."""
    directory.save(tmp_path / "model", loaded.model, loaded.config, loaded.tokenizer, {})
    same = directory.load(tmp_path / "model")
    texts = [text_of(seed, 60) for seed in range(200, 204)]
    received: list[list] = [[] for _ in texts]

    def progress() -> float:
        """Of the talk that is furthest behind: the share of its words that have been heard."""
        return min(
            sum(len(event.words) for event in events if event.type == "heard") / len(text.split())
            for text, events in zip(texts, received)
        )

    async def kill(replicas: Replicas) -> None:
        for kills in range(10):
            while progress() < (kills + 1) / 12:
                await asyncio.sleep(0.02)
            await asyncio.to_thread(replicas.replace, kills % 2)

    async def talk_while_they_die(replicas: Replicas) -> list:
        talks = [
            spoken(*replicas.urls, text=text, delta=DELTA, pause=0.03, events=events)
            for text, events in zip(texts, received)
        ]
        _, *found = await asyncio.gather(kill(replicas), *talks)
        return found

    with contextlib.closing(Replicas(tmp_path / "model", 2)) as replicas:
        found = asyncio.run(talk_while_they_die(replicas))
    for text, (events, connections) in zip(texts, found):
        assert connections > 4
        assert words(events) == expected(same, text)
        assert numbers(events) == list(range(1, len(events) + 1))


def test_a_latency_that_is_changed_is_kept_over_a_cut(loaded, server):
    """Compared with a talk whose changes are planned where the server said they would be."""
    text = " ".join(text_of(7, 12).replace("\n", ". ").split())

    async def speak():
        async with Cutter(server[0], 5, 20) as cutter, connect(cutter.url, delta=DELTA) as talk:
            begun, events = [], []

            async def say():
                for place, word in enumerate(text.split()):
                    await talk.send(f"{word} ")
                    await asyncio.sleep(0.003)
                    if place % 6 == 3:
                        talk.change_latency([-1.0, 2.5, float("inf")][place // 6 % 3])
                await talk.finish()

            saying = asyncio.create_task(say())
            async for event in talk:
                if hasattr(event, "n"):
                    events.append(event)
                elif event.type == "ready":
                    begun.append(event.delta.value)
            await saying
            return begun, events, talk.connections

    begun, events, connections = asyncio.run(speak())
    assert connections >= 2
    changes = [event for event in events if event.type == "delta"]
    assert len({change.value for change in changes}) == 3
    sentences = [text[slice(*event.source)] for event in events if event.type == "end"]
    delta = begun[0]
    for number, sentence in enumerate(sentences):
        stream = StreamingTranslator(loaded).open(delta)
        for change in changes:
            if change.sentence == number:
                stream.change_latency(change.value, change.word)
                delta = change.value
        emissions = stream.push(sentence) + stream.finish()
        assert [one.word for one in emissions] == [word[0] for word in words(events) if word[1] == number]


def test_the_end_that_a_speaker_says_and_bye(loaded, server):
    async def speak():
        events = []
        async with connect(server[0], delta=DELTA) as talk:
            await talk.send("ab c")
            talk.end()
            await talk.send("de. f")
            await talk.finish()
            async for event in talk:
                if event.type == "end":
                    events.append(event)
        return events

    ends = asyncio.run(speak())
    assert [end.reason for end in ends] == ["end", "punctuation", "end"]
    assert [tuple(end.source) for end in ends] == [(0, 4), (4, 7), (8, 9)]


def test_readers_see_every_event_and_come_back_to_where_they_were(loaded, server):
    url, _service = server
    seen: list[str] = []
    watching = threading.Event()

    def watch(session: str) -> None:
        with urllib.request.urlopen(f"{url}/v1/watch/{session}", timeout=PATIENCE) as answer:
            for line in answer:
                seen.append(line.decode())
                watching.set()

    async def speak():
        async with connect(url, delta=DELTA) as talk:
            await talk.send("ab cd. ")
            events, session, reader = [], None, None
            async for event in talk:
                if event.type == "ready":
                    session = event.session
                    reader = threading.Thread(target=watch, args=(session,))
                    reader.start()
                elif hasattr(event, "n"):
                    events.append(event)
                if event.type == "end" and event.sentence == 0:
                    assert await asyncio.to_thread(watching.wait, PATIENCE)
                    talk.tail("and so")
                    await talk.send("de fg. ")
                    await talk.finish()
            return events, reader, session

    events, reader, session = asyncio.run(speak())
    reader.join(PATIENCE)
    sent = [json.loads(line[6:]) for line in seen if line.startswith("data: ")]
    assert [one["n"] for one in sent if "n" in one] == numbers(events)
    assert {one["type"] for one in sent} >= {"heard", "words", "end", "wait", "tail"}
    assert not any("key" in one and one["key"] for one in sent)
    assert get(f"{url}/v1/watch/{session}")[0] == 404


def test_who_may_speak(loaded):
    async def refused(url, **options):
        with pytest.raises(ClientError) as found:
            await spoken(url, text="ab. ", patience=1.0, **options)
        return str(found.value)

    with served(loaded, token="a secret") as (url, _):
        assert "4401" in asyncio.run(refused(url, token="another"))
        assert "4401" in asyncio.run(refused(url))
        events, _ = asyncio.run(spoken(url, text="ab. ", token="a secret"))
        assert events
        assert get(f"{url}/v1/translate", {"text": "ab"})[0] == 401
        assert get(f"{url}/v1/translate", {"text": "ab"}, authorization="Bearer a secret")[0] == 200


def test_a_full_server_says_so_before_anything_is_spent(loaded):
    limits = HASTE.model_copy(update={"sessions": 2})

    async def three(url):
        async with connect(url) as first, connect(url) as second:
            for talk in (first, second):
                assert (await anext(aiter(talk))).type == "ready"
            with pytest.raises(ClientError, match="no server could be reached"):
                await spoken(url, text="ab. ", patience=0.5)

    with served(loaded, limits) as (url, _service):
        asyncio.run(three(url))
        _status, _headers, body = get(f"{url}/metrics")
        assert b'gma_refused_total{code="full"}' in body
    with served(loaded, Limits(sessions_per_address=1)) as (url, _):
        asyncio.run(three_of_one_address(url))


async def three_of_one_address(url):
    async with connect(url) as first:
        assert (await anext(aiter(first))).type == "ready"
        with pytest.raises(ClientError, match="429"):
            await spoken(url, text="ab. ", patience=0.5)


def test_a_server_that_closes_says_so_and_works_off_what_it_has(loaded):
    async def speak(url, server):
        async with connect(url, delta=DELTA, patience=0.5) as talk:
            await talk.send("ab cd. de fg. ")
            events = []
            with contextlib.suppress(ClientError):
                async for event in talk:
                    events.append(event)
                    # all of it has reached the server, which has begun with it
                    if event.type == "heard" and event.n == 1:
                        server()
            return [event.type for event in events]

    with served(loaded) as (url, service):
        loop_stop = threading.Event()

        def drain():
            threading.Thread(target=lambda: (stop(service), loop_stop.set())).start()

        kinds = asyncio.run(speak(url, drain))
    assert kinds.count("end") == 2


def stop(service):
    """As a signal would."""
    loop = service.loop
    asyncio.run_coroutine_threadsafe(service.drain(5.0), loop).result(20)


def test_whole_texts(loaded, server):
    url, _ = server
    text = "ab c. de f!\n\ng h"
    status, _, body = get(f"{url}/v1/translate", {"text": text, "delta": DELTA})
    assert status == 200
    lines = json.loads(body)["text"].split("\n")
    assert len(lines) == 3
    flat = [word[0] for word in expected(loaded, text)]
    assert " ".join(" ".join(lines).split()) == " ".join(flat)
    assert json.loads(get(f"{url}/v1/translate", {"text": [text, "ab"]})[2])["text"].__len__() == 2


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b"\xff\xfe", 422),
        ({"text": 7}, 422),
        ({"text": "a", "more": 1}, 422),
        ({"text": "a", "delta": "x"}, 422),
        ({"text": "a " * 30_000}, 413),
        (b"[" * 100_000, 422),
        (b'"' + b"a" * (1 << 20) + b'"', 413),
    ],
    ids=lambda value: str(value)[:20],
)
def test_texts_that_are_refused(server, body, status):
    found, _, answer = get(f"{server[0]}/v1/translate", body)
    assert found == status
    assert json.loads(answer)["code"]


def test_pages_and_probes(server):
    url, _service = server
    for path in ("/", "/healthz", "/readyz", "/metrics", "/v1/schema.json"):
        status, headers, _body = get(f"{url}{path}")
        assert status == 200
        assert "default-src 'self'" in headers["content-security-policy"]
    names = {line.split("{")[0].split(" ")[0] for line in get(f"{url}/metrics")[2].decode().splitlines()}
    assert {"gma_streams", "gma_queued_messages", "gma_step_seconds_count", "gma_word_lag_seconds_bucket"} <= names
    assert get(f"{url}/..%2f..%2fpyproject.toml")[0] == 404
    assert get(f"{url}/", origin="https://evil.example")[0] == 200
    assert get(f"{url}/v1/translate", {"text": "a"}, origin="https://evil.example")[0] == 403
