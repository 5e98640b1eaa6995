"""Models by name, `hf://organisation/name@revision`: fetched once from a hub into a folder, and pushed to one.

The hub is a stranger: its answers are read within bounds, only files of a model are fetched, each under a name of ours,
of the size and with the digest that the hub has listed; nothing is executed. The folder lies in the cache of
huggingface_hub and is laid out as that does it, so that each finds what the other has fetched.
"""

import contextlib
import http.client
import os
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from gma.errors import Caution, UserError
from gma.storage import atomic, foreign
from gma.storage.fetch import TIMEOUT, fetch
from gma.storage.lock import locked
from gma.terminal import byte_bar

# a path, which has lost the second slash, may be given, too
NAME = re.compile(
    r"hf:/{1,2}(?P<repository>[a-z0-9][\w.-]*/[a-z0-9][\w.-]*?)(@(?P<revision>[a-z0-9][\w./-]*))?/?", re.I | re.A
)
COMMIT, DIGEST = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
# what a model needs, then what it may have; a hub counts downloads by config.json
REQUIRED = ("config.toml", "model.safetensors", "tokenizer.json", "training.json")
OPTIONAL = ("segmenter.safetensors", "config.json", "README.md")
LARGEST_LISTING = 1 << 24
# answers that another try may better; any other refusal is final
PASSING = {408, 425, 429, 500, 502, 503, 504}


class HubError(UserError):
    """What a hub refused, or a name that means nothing there; the message says what to do."""


class Name(NamedTuple):
    repository: str
    revision: str

    def __str__(self) -> str:
        return f"hf://{self.repository}@{self.revision}"


class _File(NamedTuple):
    """As the hub lists it: its digest is a SHA-256, or what git calls it."""

    size: int
    digest: str


class _Unreachable(Exception):
    """No answer, or one that may be better later."""


def is_name(text: str | Path) -> bool:
    return str(text).startswith("hf:/")


def parse(text: str | Path) -> Name:
    found = NAME.fullmatch(str(text))
    name = Name(found["repository"], found["revision"] or "main") if found else None
    if name is None or "--" in name.repository or ".." in str(name) or "//" in name.revision:
        raise HubError(f"{text}: no name of a model on a hub; expected hf://organisation/name or …/name@revision")
    return name


def title(folder: Path) -> str | None:
    """organisation/name@commit of a folder that `fetch_model` gave, for tables."""
    repository, kind, commit = ("", "", *folder.parts)[-3:]
    is_fetched = kind == "snapshots" and repository.startswith("models--") and COMMIT.fullmatch(commit)
    return f"{repository.removeprefix('models--').replace('--', '/')}@{commit[:7]}" if is_fetched else None


def fetch_model(text: str | Path) -> Path:
    """The folder of a model on a hub. Without a connection it is the one that was fetched last."""
    from huggingface_hub import constants

    name = parse(text)
    home = Path(constants.HF_HUB_CACHE, f"models--{name.repository.replace('/', '--')}")
    cached = _cached(home, name.revision)
    # a commit never changes: nobody has to be asked
    if cached and (COMMIT.fullmatch(name.revision) or constants.HF_HUB_OFFLINE):
        return cached
    if constants.HF_HUB_OFFLINE:
        raise HubError(f"{name}: HF_HUB_OFFLINE is set, and the model has not been fetched before")
    try:
        commit, files = _list(name)
    except _Unreachable as error:
        if cached is None:
            raise HubError(f"{name}: {error}, and the model has not been fetched before; try again later") from error
        warnings.warn(Caution(f"{name}: {error}; taken is what was fetched before"), stacklevel=2)
        return cached
    busy = HubError(f"{name}: another process is fetching it into {home}; wait for it")
    with locked(home, busy):
        folder = _fetch_files(name, commit, files, home)
        reference = home / "refs" / name.revision
        if not COMMIT.fullmatch(name.revision):
            reference.parent.mkdir(parents=True, exist_ok=True)
            atomic.replace_text(reference, commit)
    return folder


def push(folder: Path, text: str, files: dict[str, bytes], *, private: bool) -> str:
    """Upload a model as one commit, all of it or nothing, and return its address.

    Args:
        files: contents made for the hub: its card, config.json.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    name = parse(text if is_name(text) else f"hf://{text}")
    sources: dict[str, str | bytes] = {
        file: str(folder / file) for file in (*REQUIRED, *OPTIONAL) if (folder / file).is_file()
    }
    operations = [
        CommitOperationAdd(path_in_repo=file, path_or_fileobj=source) for file, source in {**sources, **files}.items()
    ]
    api = HfApi(library_name="gma", library_version=version("gma"))
    try:
        api.create_repo(name.repository, private=private, exist_ok=True)
        api.create_commit(
            name.repository, operations, commit_message=f"A model of gma {version('gma')}", revision=name.revision
        )
    # its errors have no base class in common, and those of its HTTP library change with its version
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        remedy = (
            "; log in by `hf auth login`, or set HF_TOKEN to a token that may write" if status in (401, 403) else ""
        )
        raise HubError(f"{name}: it could not be pushed: {_one_line(error)}{remedy}") from error
    return f"{api.endpoint}/{name.repository}"


def _cached(home: Path, revision: str) -> Path | None:
    """What was fetched for a revision, if all of it was."""
    commit = revision
    if not COMMIT.fullmatch(revision):
        try:
            commit = (home / "refs" / revision).read_text("utf-8").strip()
        except (OSError, ValueError):
            return None
    folder = home / "snapshots" / commit
    is_whole = COMMIT.fullmatch(commit) and all((folder / file).is_file() for file in REQUIRED)
    return folder if is_whole else None


def _list(name: Name) -> tuple[str, dict[str, _File]]:
    """The commit of a revision and, of the files of a model, those that it has."""
    from huggingface_hub import constants

    address = f"{constants.ENDPOINT}/api/models/{name.repository}/revision/{urllib.parse.quote(name.revision, safe='')}"
    answer = foreign.parse_json(_ask(name, f"{address}?blobs=true"), f"{name}, its listing")
    commit = answer.get("sha") if isinstance(answer, dict) else None
    siblings = answer.get("siblings") if isinstance(answer, dict) else None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit) or not isinstance(siblings, list):
        raise HubError(f"{name}: {constants.ENDPOINT} answers as no hub does; is HF_ENDPOINT right?")
    found = {}
    for entry in siblings:
        # nothing else is looked at, whatever it is called
        file = entry.get("rfilename") if isinstance(entry, dict) else None
        if file in REQUIRED or file in OPTIONAL:
            found[file] = _file(name, entry)
    missing = [file for file in REQUIRED if file not in found]
    if missing:
        raise HubError(f"{name}: it holds no {', '.join(missing)}; expected a model that `gma push` has put there")
    return commit, found


def _file(name: Name, entry: dict[str, Any]) -> _File:
    lfs = entry.get("lfs")
    size, digest = (lfs.get("size"), lfs.get("sha256")) if isinstance(lfs, dict) else (entry.get("size"), None)
    digest = entry.get("blobId") if digest is None else digest
    if type(size) is not int or size < 0 or not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise HubError(f"{name}: the hub lists {entry['rfilename']} without its size and digest, so it is not fetched")
    if not entry["rfilename"].endswith(".safetensors") and size > foreign.LARGEST_FILE:
        raise HubError(f"{name}: {entry['rfilename']} has {size:,} bytes; expected at most {foreign.LARGEST_FILE:,}")
    return _File(size, digest)


def _ask(name: Name, address: str) -> bytes:
    from huggingface_hub.errors import LocalTokenNotFoundError
    from huggingface_hub.utils import build_hf_headers

    request = urllib.request.Request(address)
    try:
        headers = build_hf_headers(library_name="gma", library_version=version("gma"))
    except LocalTokenNotFoundError as error:
        raise HubError(f"{name}: {_one_line(error)}") from error
    for key, value in headers.items():
        request.add_unredirected_header(key, value)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            body: bytes = response.read(LARGEST_LISTING + 1)
    except urllib.error.HTTPError as error:
        if error.code in PASSING:
            raise _Unreachable(f"the hub answered {error.code}") from error
        remedy = {
            401: "it does not exist, or is private: log in by `hf auth login`, or set HF_TOKEN",
            403: "it asks for consent or a login: accept its terms on its page, then log in by `hf auth login`",
            404: "there is no such model, or no such revision of it",
        }.get(error.code, "refused")
        raise HubError(f"{name}: the hub answered {error.code}: {remedy}") from error
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise _Unreachable(f"the hub cannot be reached ({_one_line(getattr(error, 'reason', error))})") from error
    if len(body) > LARGEST_LISTING:
        raise HubError(f"{name}: its listing is longer than {LARGEST_LISTING:,} bytes")
    return body


def _fetch_files(name: Name, commit: str, files: dict[str, _File], home: Path) -> Path:
    """All blobs, then the names that point at them: a folder that has all its names has all its files."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    blobs, folder = home / "blobs", home / "snapshots" / commit
    blobs.mkdir(parents=True, exist_ok=True)
    todo = {file: listed for file, listed in files.items() if not _is_there(blobs / listed.digest, listed)}
    missing, free = sum(listed.size for listed in todo.values()), shutil.disk_usage(home).free
    if missing > free:
        raise HubError(f"{name}: needs {missing:,} bytes more, and the disk of {home} has {free:,}; make room")
    headers = build_hf_headers(library_name="gma", library_version=version("gma"))
    for file, listed in todo.items():
        kind = "sha256" if len(listed.digest) == 64 else "git_blob"
        with byte_bar(Console(stderr=True), file, listed.size) as report:
            fetch(
                hf_hub_url(name.repository, file, revision=commit),
                blobs / listed.digest,
                length=listed.size,
                headers=headers,
                report=report,
                **{kind: listed.digest},  # type: ignore[arg-type]  # both are text
            )
    folder.mkdir(parents=True, exist_ok=True)
    for file, listed in files.items():
        _point(folder / file, blobs / listed.digest)
    return folder


def _is_there(blob: Path, listed: _File) -> bool:
    return blob.is_file() and blob.stat().st_size == listed.size


def _point(link: Path, blob: Path) -> None:
    temporary = link.with_name(link.name + atomic.TEMPORARY)
    temporary.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        temporary.symlink_to(os.path.join("..", "..", "blobs", blob.name))
        os.replace(temporary, link)
        return
    # a file system, or a Windows, without links
    atomic.replace(link, lambda path: shutil.copyfile(blob, path))


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
