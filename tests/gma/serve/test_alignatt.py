"""WhisperLiveKit's own client, unmodified, against `/alignatt`."""

import importlib.util
import json
import sys
import time
import types

import pytest
from websockets.sync.client import connect

from gma.decoding import hypothesis
from gma.decoding.translate import translate
from tests.support.serving import served
from tests.support.small_models import small_loaded, small_model

DELTA = -1.0


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch):
    monkeypatch.setattr(hypothesis, "length_limit", lambda needed: needed + 5)


@pytest.fixture(scope="module")
def loaded():
    return small_loaded(small_model(0, delta=1.0), delta=1.0)


def whisperlivekit(name: str):
    """One of its modules, as it is; the package itself would import recognisers."""
    found = importlib.util.find_spec("whisperlivekit")
    if found is None:
        pytest.skip("needs WhisperLiveKit's client: pip install --no-deps whisperlivekit==0.2.26")
    package = types.ModuleType("whisperlivekit")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["whisperlivekit"] = package
    try:
        return importlib.import_module(f"whisperlivekit.{name}")
    finally:
        del sys.modules["whisperlivekit"]


def test_the_client_from_pypi(loaded):
    client, timed = whisperlivekit("translation_alignatt"), whisperlivekit("timed_objects")
    sentences = ["ab c def.", "f gh abc."]
    source, target = loaded.config.data.source, loaded.config.data.target
    with served(loaded) as (url, _):
        engine = client.AlignAttRemoteEngine(
            url=f"{url.replace('http', 'ws')}/alignatt?delta={DELTA}",
            source_language=source,
            preset=None,
            latency="balanced",
        )
        session, validated = engine.new_session(target), []
        clock = 0.0
        for sentence in sentences:
            for word in sentence.split():
                session.insert_tokens([timed.ASRToken(start=clock, end=clock + 0.3, text=f" {word}")])
                clock += 0.4
                final, _ = session.process()
                validated += [final.text] if final else []
        deadline = time.monotonic() + 30
        while len(validated) < 2 and time.monotonic() < deadline:
            final, _ = session.process()
            validated += [final.text] if final else []
    assert validated == [one.text for one in translate(loaded, sentences, delta=DELTA)]


def test_what_is_refused_names_the_reason(loaded):
    with served(loaded) as (url, _):
        address = f"{url.replace('http', 'ws')}/alignatt"
        init = {"type": "init", "protocol_version": 1, "source_lang": "xx", "target_lang": "yy"}
        for message, code in (
            (init, "unsupported_language"),
            ({"type": "update"}, "schema"),
            ({"type": "?"}, "schema"),
        ):
            with connect(address) as socket:
                socket.send(json.dumps(message))
                answer = json.loads(socket.recv(20))
                assert answer["type"] == "error"
                assert answer["code"] == code
