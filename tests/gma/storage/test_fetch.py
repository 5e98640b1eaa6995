"""Fetching over HTTP from a server that misbehaves in every way it can."""

import errno
import hashlib
import io
import json
import shutil
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gma.errors import UserError
from gma.storage import fetch as module
from gma.storage.fetch import fetch

CONTENT = bytes(range(256)) * 400
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server:
    """Serves one file; the attributes say how badly. `log` has the Range header and the status of every answer."""

    def __init__(self):
        self.content = CONTENT
        self.etag = '"one"'
        self.modified = None
        self.ranges = True  # understands Range
        self.checks = True  # understands If-Range
        self.says_length = True
        self.cuts = []  # after how many bytes to cut the next answers
        self.failures = []  # statuses of the next answers
        self.log = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}/corpus.txt"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self._http.shutdown()
        self._http.server_close()

    def _handler(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def log_message(self, *arguments):
                pass

            def do_GET(self):
                server.answer(self)

        return Handler

    def answer(self, handler):
        wanted = handler.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        condition = handler.headers.get("If-Range")
        if self.checks and condition and condition not in (self.etag, self.modified):
            start = 0
        status = self.failures.pop(0) if self.failures else 206 if start else 200
        if start > len(self.content):
            status = 416
        self.log.append((wanted, status))
        if status >= 400:
            handler.send_error(status)
            return
        body = self.content[start:]
        handler.send_response(status)
        if status == 206:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        if self.etag:
            handler.send_header("ETag", self.etag)
        if self.modified:
            handler.send_header("Last-Modified", self.modified)
        if self.says_length:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: self.cuts.pop(0)] if self.cuts else body)


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "corpus.txt"


def left_over(path):
    return sorted(file.name for file in path.parent.iterdir() if file != path)


def test_whole_file(server, path):
    steps = []
    assert fetch(server.url, path, sha256=SHA256, report=lambda done, total: steps.append((done, total))) == SHA256
    assert path.read_bytes() == CONTENT
    assert steps[0] == (0, len(CONTENT))
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert left_over(path) == []


@pytest.mark.parametrize("etag", ['"one"', 'W/"weak"', None])
@pytest.mark.parametrize("modified", ["Wed, 21 Oct 2015 07:28:00 GMT", None])
def test_cut_connection_is_continued(server, path, etag, modified):
    server.etag, server.modified = etag, modified
    server.cuts = [1000, 0, 5000, 1]
    assert fetch(server.url, path, wait=0.0) == SHA256
    assert path.read_bytes() == CONTENT
    assert [wanted for wanted, _ in server.log] == [None, *(f"bytes={n}-" for n in (1000, 1000, 6000, 6001))]
    assert {status for _, status in server.log[1:]} == {206}


def test_a_cut_encrypted_connection_is_continued(server, path, monkeypatch):
    receive, cuts = module._receive, iter([True, False])

    def cut_once(*arguments):
        if next(cuts):
            raise ssl.SSLError("record layer failure")
        receive(*arguments)

    monkeypatch.setattr(module, "_receive", cut_once)
    assert fetch(server.url, path, sha256=SHA256, wait=0) == SHA256


def test_a_later_call_goes_on(server, path):
    server.cuts = [70_000] + [0] * 20
    with pytest.raises(UserError, match=r"gave up after 5 attempts.*cut.*70,000 bytes are kept"):
        fetch(server.url, path, wait=0.0)
    assert not path.exists()
    server.cuts, server.log = [], []
    assert fetch(server.url, path, sha256=SHA256) == SHA256
    assert server.log == [("bytes=70000-", 206)]
    assert left_over(path) == []


def test_a_part_that_is_complete_is_not_asked_for_again(server, path, monkeypatch):
    monkeypatch.setattr(module, "sha256_of", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fetch(server.url, path)
    monkeypatch.undo()
    assert fetch(server.url, path) == SHA256
    assert len(server.log) == 1


def test_server_without_ranges(server, path):
    server.ranges = False
    server.cuts = [1000]
    assert fetch(server.url, path, wait=0.0) == SHA256
    assert path.read_bytes() == CONTENT
    assert server.log == [(None, 200), ("bytes=1000-", 200)]


@pytest.mark.parametrize("checks", [True, False])
@pytest.mark.parametrize("etag", ['"two"', None])
@pytest.mark.parametrize("length", [50_000, 500, 200_000])
def test_file_that_changed_between_two_calls(server, path, checks, etag, length):
    if etag is None:
        server.etag = None
    server.cuts = [1000] + [0] * 20
    with pytest.raises(UserError):
        fetch(server.url, path, wait=0.0)
    server.cuts, server.checks, server.etag = [], checks, etag
    server.content = bytes(reversed(CONTENT * 2))[:length]
    fetch(server.url, path, wait=0.0)
    assert path.read_bytes() == server.content


def test_part_of_another_address_is_not_continued(server, path):
    server.cuts = [1000] + [0] * 20
    with pytest.raises(UserError):
        fetch(server.url, path, wait=0.0)
    server.cuts, server.log = [], []
    fetch(server.url + "?other", path)
    assert server.log == [(None, 200)]


def test_wrong_checksum(server, path):
    with pytest.raises(UserError, match=rf"wrong checksum: expected SHA-256 0000, got {SHA256}"):
        fetch(server.url, path, sha256="0000")
    assert not path.exists()
    assert left_over(path) == []


def test_part_damaged_on_disk_is_fetched_anew(server, path):
    server.cuts = [1000] + [0] * 20
    with pytest.raises(UserError):
        fetch(server.url, path, wait=0.0)
    server.cuts, server.log = [], []
    path.with_name("corpus.txt.part").write_bytes(b"?" * 1000)
    assert fetch(server.url, path, sha256=SHA256) == SHA256
    assert server.log == [("bytes=1000-", 206), (None, 200)]
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("note", ["{", "[]", '{"url": 3}', None])
def test_part_without_a_readable_note_is_void(server, path, note):
    path.with_name("corpus.txt.part").write_bytes(b"?" * 1000)
    if note is not None:
        path.with_name("corpus.txt.part.json").write_text(note)
    assert fetch(server.url, path) == SHA256
    assert server.log == [(None, 200)]


@pytest.mark.parametrize("status", [404, 403, 410])
def test_refusal_is_final(server, path, status):
    server.failures = [status] * 10
    with pytest.raises(UserError, match=rf"corpus\.txt: the server answered {status} .*by hand"):
        fetch(server.url, path, wait=0.0)
    assert len(server.log) == 1
    assert left_over(path) == []


def test_passing_failure_is_tried_again(server, path):
    server.failures = [503, 429, 500]
    assert fetch(server.url, path, wait=0.0) == SHA256
    server.failures = [503] * 20
    with pytest.raises(UserError, match="5 attempts in a row: the server answered 503"):
        fetch(server.url, path.with_name("other"), wait=0.0)


def test_waits_longer_every_time(server, path, monkeypatch):
    waits = []
    monkeypatch.setattr(module.time, "sleep", waits.append)
    server.failures = [503] * 20
    with pytest.raises(UserError):
        fetch(server.url, path, wait=2.0)
    assert waits == [2.0, 4.0, 8.0, 16.0]


def test_nobody_answers(server, path):
    server.close()
    with pytest.raises(UserError, match=r"5 attempts in a row: no connection"):
        fetch(server.url, path, wait=0.0)


def test_length_unknown(server, path):
    server.says_length = False
    assert fetch(server.url, path) == SHA256


def test_no_space(server, path, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(UserError, match=rf"needs {len(CONTENT):,} bytes more, .* has 10; make room"):
        fetch(server.url, path)
    monkeypatch.undo()

    class Full(io.BytesIO):
        def write(self, block):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "open", lambda *arguments: Full(), raising=False)
    with pytest.raises(UserError, match="no space left"):
        fetch(server.url, path)
    assert json.loads(path.with_name("corpus.txt.part.json").read_text())["length"] == len(CONTENT)


def test_only_http(path):
    for url in ("file:///etc/passwd", "ftp://host/x", "corpus.txt"):
        with pytest.raises(UserError, match="http://"):
            fetch(url, path)
