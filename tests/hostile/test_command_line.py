"""What people mistype: one line that says what came and what was expected, and never a traceback."""

import os
from pathlib import Path

import pytest

from gma.client.talk import ClientError, address
from tests.support import tiny_model


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with all that a clumsy person names by mistake."""
    monkeypatch.chdir(tmp_path)
    for name, content in {"a.de": b"Guten Tag.\n", "a.en": b"Hello.\n", "empty": b"", "latin.de": b"\xfcber\n"}.items():
        Path(name).write_bytes(content)
    Path("mac.de").write_bytes(b"a\rb\r")
    Path("cut.gz").write_bytes(b"\x1f\x8b\x08\x00")
    for name in ("book.de", "book.en"):
        Path(name).write_text("word " * 20_000 + "\nword\n")
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    return tmp_path


REFUSED = [
    "translate missing",
    "translate a.de",
    "translate folder",
    "translate /",
    "translate de-en/../de-en",
    "translate ../../../de-en",
    "translate hf://",
    "translate hf://a",
    "translate hf://a/b@../../x",
    "translate --input missing",
    "translate --input folder",
    "translate --input latin.de",
    "translate --input mac.de",
    "translate --input loop",
    "translate --input a.de --output folder",
    "translate --input a.de --output a.de/x",
    "translate --input a.de --output /proc/x/y",
    "translate --beam 0",
    "translate --beam 3 --input a.de",
    "translate --delta abc",
    "translate --delta nan",
    "translate --delta=-inf --input a.de",
    "translate --weights int4",
    "translate --device tpu",
    "translate --device cuda:-1",
    "stream --delay -1",
    "stream --delay nan",
    "stream --delay 1e9",
    "stream --server address",
    "stream --server http://[::1 --input a.de",
    "stream --server http://host:99999 --input a.de",
    "stream --server http://host:port --input a.de",
    "stream --server http:// --input a.de",
    "stream --server http://:80 --input a.de",
    "stream --server ftp://host --input a.de",
    "stream --server http://host --weights int8",
    "config nothing",
    "config generatd",
    "config a.de",
    "config folder",
    "config ./folder",
    "config ./loop",
    "config ./latin.de",
    "config missing.toml",
    "config /dev/zero",
    "config generated generated",
    "config generated:",
    "config generated model.width",
    "config generated =3",
    "config generated .=3",
    "config generated model.=3",
    "config generated model=3",
    "config generated model.width=",
    "config generated model.width=0",
    "config generated model.width=abc",
    "config generated model.width=[[",
    "config generated model.width={a=1}",
    "config generated model.width.x=3",
    "config generated model.widht=16",
    "config generated training.updates=1e9",
    "config generated data.train=7",
    "config generated attention.delta=-inf",
    "init a.de",
    "init a.de a.de",
    "init a.de ./a.de",
    "init a.de missing",
    "init folder a.en",
    "init a.de empty",
    "init a.de a.en",
    "init a.de /dev/null",
    "init a.de loop",
    "init a.de latin.de",
    "init a.de mac.de",
    "init cut.gz a.en",
    "init book.de book.en",
    "init a.de a.en --output folder",
    "init a.de a.en --output text.txt",
    "prepare ./a.de",
    "prepare nothing",
    "prepare generated --output a.de",
    "train",
    "train generated",
    "train generated --folder a.de",
    "train generated --folder loop/x",
    "train de-en --folder run",
    "average missing --output x",
    "average folder --output x",
    "average a.de --output x",
    "average folder --last 0 --output x",
    "segment de-en --output x",
    "segment folder --output x",
    "evaluate missing",
    "evaluate folder",
    "evaluate de-en --source missing --reference a.en",
    "evaluate de-en --source a.de --reference empty",
    "evaluate de-en --source a.de",
    "sweep missing",
    "sweep de-en --delta abc",
    "sweep de-en --delta 1,,2",
    "sweep de-en --delta nan",
    "sweep de-en --source a.de --reference missing",
    "plot nothing",
    "plot curve a.de",
    "plot curve missing",
    "download nothing",
    "download ../../etc",
    "reproduce --recipe nothing",
    "align a.de missing",
    "push missing hf://a/b",
    "serve missing",
    "serve --port 99999",
    "serve --port -1",
    "nothing",
    "--nothing",
    "translate --nothing",
    "translate de-en more",
]


@pytest.mark.parametrize("command", REFUSED)
def test_a_mistake_gets_one_clear_message(place, monkeypatch, capsys, command):
    before = sorted(os.listdir())
    assert tiny_model.command(monkeypatch, *command.split()) == 2
    said = capsys.readouterr().err
    assert said.strip()
    assert "Traceback" not in said
    assert len(said) < 3000
    assert sorted(os.listdir()) == before


def test_the_empty_name_is_no_model(place, monkeypatch):
    assert tiny_model.command(monkeypatch, "translate", "") == 2


NO_ADDRESSES = ["", " ", "http://a b", "http://a:0", "http://[", "//host", "host:80", "http://\n", "\0"]


@pytest.mark.parametrize("url", NO_ADDRESSES)
def test_an_address_that_is_none(url):
    with pytest.raises(ClientError, match="expected an address such as"):
        address(url)
