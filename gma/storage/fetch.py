"""Fetch one file over HTTP: resumes where it was cut off; the file is there whole or not at all."""

import errno
import http.client
import json
import os
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from gma.errors import UserError
from gma.storage import atomic, foreign
from gma.storage.digest import git_blob_of, sha256_of

BLOCK = 1 << 18
TIMEOUT = 60
# give up after so many attempts in a row without a new byte
ATTEMPTS = 5
# worth another try; any other refusal is final
_PASSING = {408, 425, 429, 500, 502, 503, 504}

Report = Callable[[int, int | None], object]


class _Interrupted(Exception):
    """Worth another try."""


class _Changed(Exception):
    """What has been fetched so far does not belong to the file that the server has now."""


class _Version(NamedTuple):
    """Which file a part belongs to: the address and what the server said about the file."""

    url: str
    etag: str | None
    modified: str | None
    length: int | None

    @property
    def validator(self) -> str | None:
        """Value for If-Range: a strong tag or the date; a weak tag does not allow joining bytes."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified


def fetch(
    url: str,
    path: Path,
    *,
    sha256: str | None = None,
    git_blob: str | None = None,
    length: int | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
    wait: float = 1.0,
    report: Report = lambda done, total: None,
) -> str:
    """Fetch `url` into `path` and return its SHA-256, or with `git_blob` its name in git.

    The bytes go to `<path>.part`, which a later call continues; `path` itself appears when it is complete and right.

    Args:
        sha256: what it must be.
        git_blob: the name that git has for it, for files whose SHA-256 nobody says.
        length: in bytes, where it is known: no more than that is ever written.
        headers: for this server alone; another one, to which it redirects, does not see them.
        wait: seconds before the second attempt, doubled before each further one.
        report: called with bytes done and bytes in all, if known.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise UserError(f"{url}: expected an address that starts with http:// or https://")
    part = _Part(url, Path(path), length, headers)
    expected, digest_of, kind = (sha256, sha256_of, "SHA-256") if git_blob is None else (git_blob, git_blob_of, "blob")
    resumed = part.size > 0
    while True:
        _complete(part, wait, report)
        found = digest_of(part.path)
        if expected is None or found == expected:
            part.finish(Path(path))
            return found
        part.discard()
        # the old part may have been damaged on disk: fetch the whole file once more
        if not resumed:
            raise UserError(
                f"{url}: wrong checksum: expected {kind} {expected}, got {found}; the file on the server is another "
                "one or was damaged on the way. Try again later"
            )
        resumed = False


class _Part:
    """The bytes fetched so far, and the version of the file they belong to."""

    def __init__(self, url: str, path: Path, length: int | None, headers: Mapping[str, str]):
        self.url, self.length, self.headers = url, length, headers
        self.path = path.with_name(f"{path.name}.part")
        self._note = path.with_name(f"{path.name}.part.json")
        self.version = self._read_version()
        if self.version is None:
            self.discard()

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def _read_version(self) -> _Version | None:
        try:
            note = foreign.read_json(self._note)
            version = _Version(*(note[name] for name in _Version._fields))
        except (OSError, ValueError, TypeError, KeyError):
            return None
        texts = all(text is None or isinstance(text, str) for text in (version.etag, version.modified))
        sized = version.length is None or (isinstance(version.length, int) and version.length >= 0)
        return version if version.url == self.url and texts and sized else None

    def restart(self, version: _Version) -> None:
        self.path.write_bytes(b"")
        atomic.replace_text(self._note, json.dumps(version._asdict()))
        self.version = version

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)
        self.version = None

    def finish(self, path: Path) -> None:
        os.replace(self.path, path)
        self._note.unlink(missing_ok=True)


def _complete(part: _Part, wait: float, report: Report) -> None:
    """Fetch until nothing is missing; gives up after some attempts in a row without progress."""
    attempt = 0
    while True:
        before = part.size
        try:
            _request(part, report)
            return
        except _Changed:
            part.discard()
            reason = "the file on the server keeps changing"
        except _Interrupted as error:
            reason = str(error)
        attempt = 1 if part.size > before else attempt + 1
        if attempt >= ATTEMPTS:
            kept = f"; {part.size:,} bytes are kept, run the command again to go on" if part.size else ""
            raise UserError(f"{part.url}: gave up after {attempt} attempts in a row: {reason}{kept}")
        time.sleep(wait * 2 ** (attempt - 1))


def _request(part: _Part, report: Report) -> None:
    """One request for what is missing."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "gma"}
    start = part.size
    if start and part.version is not None:
        if part.version.length == start:
            return
        headers["Range"] = f"bytes={start}-"
        if part.version.validator:
            headers["If-Range"] = part.version.validator
    request = urllib.request.Request(part.url, headers=headers)
    for name, value in part.headers.items():
        request.add_unredirected_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            _receive(part, response, start, report)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:
            raise _Changed from error
        if error.code in _PASSING:
            raise _Interrupted(f"the server answered {error.code} {error.reason}") from error
        raise UserError(
            f"{part.url}: the server answered {error.code} {error.reason}; has the file moved? Look for it by hand and "
            f"put it where it belongs: {part.path.with_name(part.path.name.removesuffix('.part'))}"
        ) from error
    except urllib.error.URLError as error:
        raise _Interrupted(f"no connection ({error.reason})") from error
    except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
        raise _Interrupted(f"the connection was cut ({error or type(error).__name__})") from error


def _receive(part: _Part, response: http.client.HTTPResponse, start: int, report: Report) -> None:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise UserError(f"{part.url}: the server sends it compressed against the request; fetch it by hand")
    total: int | None
    if start and response.status == 206 and part.version is not None:
        total = _resumed_length(part.version, response, start)
    else:
        # a whole file: the first request, a server that knows no ranges, or a file that has changed
        length, start = response.headers.get("Content-Length", ""), 0
        total = int(length) if length.isdecimal() else None
        part.restart(_Version(part.url, response.headers.get("ETag"), response.headers.get("Last-Modified"), total))
    if part.length is not None and total not in (None, part.length):
        part.discard()
        raise UserError(f"{part.url}: the server sends {total:,} bytes; expected {part.length:,}. Try again later")
    if total is not None and shutil.disk_usage(part.path.parent).free < total - start:
        raise UserError(
            f"{part.url}: needs {total - start:,} bytes more, and the disk of {part.path.parent} has "
            f"{shutil.disk_usage(part.path.parent).free:,}; make room and run the command again to go on"
        )
    done = start
    with open(part.path, "ab") as file:
        report(done, total)
        while block := response.read(BLOCK):
            if part.length is not None and done + len(block) > part.length:
                part.discard()
                raise UserError(f"{part.url}: the server sends more than the {part.length:,} bytes that are expected")
            try:
                file.write(block)
                file.flush()
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                raise UserError(
                    f"{part.path}: no space left on the disk; make room and run the command again to go on"
                ) from error
            done += len(block)
            report(done, total)
    total = part.length if total is None else total
    if total is not None and done < total:
        raise _Interrupted(f"the connection was cut after {done:,} of {total:,} bytes")
    if total is not None and done > total:
        raise _Changed


def _resumed_length(version: _Version, response: http.client.HTTPResponse, start: int) -> int | None:
    """Length of the whole file, if this answer continues the part that is there; _Changed if not."""
    unit, _, span = response.headers.get("Content-Range", "").partition(" ")
    first, _, length = span.partition("/")
    if unit != "bytes" or first.partition("-")[0] != str(start):
        raise _Changed
    total = int(length) if length.isdecimal() else version.length
    if version.length is not None and total != version.length:
        raise _Changed
    etag = response.headers.get("ETag")
    if etag and version.etag and etag != version.etag:
        raise _Changed
    return total
