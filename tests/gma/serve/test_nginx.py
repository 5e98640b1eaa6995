"""The configuration of docs/replicas.md, in a real nginx: two servers behind it, one of which dies."""

import asyncio
import contextlib
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from gma.decoding import hypothesis
from gma.model import directory
from tests.gma.serve.test_stream import DELTA, expected, numbers, text_of
from tests.support.serving import PATIENCE, Replicas, held_port, spoken, words
from tests.support.small_models import small_loaded, small_model

PAGE = Path(__file__).parents[3] / "docs" / "replicas.md"
NGINX = shutil.which("nginx") or "/usr/sbin/nginx"


@contextlib.contextmanager
def nginx(folder: Path, servers: list[str]):
    """Its address."""
    rules = re.search(r"```nginx\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    with held_port() as held:
        port = held.getsockname()[1]
        for shown, real in zip(("127.0.0.1:8001", "127.0.0.1:8002", "listen 8000"), (*servers, f"listen {port}")):
            assert shown in rules
            rules = rules.replace(shown, real)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        f"http {{ access_log off; {temporary}\n{rules} }}"
    )
    with subprocess.Popen([NGINX, "-p", str(folder), "-c", str(config), "-e", f"{folder}/error.log"]) as process:
        try:
            url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE
            while True:
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/readyz", timeout=PATIENCE):
                    break
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield url
        finally:
            process.terminate()


@pytest.mark.skipif(not Path(NGINX).exists(), reason="nginx is not installed")
def test_one_of_two_servers_dies_behind_nginx(tmp_path, monkeypatch):
    monkeypatch.setattr(hypothesis, "length_limit", lambda needed: needed + 5)
    loaded = small_loaded(small_model(0, delta=1.0), delta=1.0)
    directory.save(tmp_path / "model", loaded.model, loaded.config, loaded.tokenizer, {})
    same = directory.load(tmp_path / "model")
    texts = [text_of(seed, 20) for seed in range(300, 304)]
    received: list[list] = [[] for _ in texts]

    async def kill(replicas: Replicas) -> None:
        for which in range(2):
            while min(map(len, received)) < 20 * (which + 1):
                await asyncio.sleep(0.02)
            await asyncio.to_thread(replicas.replace, which)

    async def talk(url: str, replicas: Replicas) -> list:
        talks = [
            spoken(url, text=text, delta=DELTA, pause=0.03, events=events) for text, events in zip(texts, received)
        ]
        _, *found = await asyncio.gather(kill(replicas), *talks)
        return found

    (tmp_path / "nginx").mkdir()
    with contextlib.closing(Replicas(tmp_path / "model", 2)) as replicas:
        addresses = [url.removeprefix("http://") for url in replicas.urls]
        with nginx(tmp_path / "nginx", addresses) as url:
            found = asyncio.run(talk(url, replicas))
    assert sum(connections for _, connections in found) > len(texts)
    for text, (events, _) in zip(texts, found):
        assert words(events) == expected(same, text)
        assert numbers(events) == list(range(1, len(events) + 1))
