"""The public corpora of the recipes: where they are, fetching them, and unpacking what the recipes name."""

import html
import json
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

from rich.console import Console

from gma.corpus import tatoeba
from gma.errors import UserError
from gma.storage import atomic, foreign
from gma.storage.digest import sha256_of
from gma.storage.fetch import fetch
from gma.terminal import byte_bar

CHECKSUMS = "checksums.json"


class Remote(NamedTuple):
    """A file on a server; `sha256` only where it is known for certain."""

    url: str
    sha256: str | None = None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


class Member(NamedTuple):
    """A file inside an archive, by its name without folders."""

    archive: str
    name: str


class Corpus(NamedTuple):
    """Files to fetch, and what to unpack: each file of the corpus is one or more members of archives, joined in order.

    Files of one base name, such as train.de and train.en, must have the same number of lines. What is laid out in a
    way of its own is unpacked by `finish`, which is given the folder.
    """

    remotes: tuple[Remote, ...]
    unpacked: Mapping[str, tuple[Member, ...]] = {}
    finish: Callable[[Path], None] = lambda folder: None


_STANFORD = "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi"
_STATMT = "https://www.statmt.org"
# a fixed commit, so that the checksums stay right
_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw"

CORPORA = {
    "iwslt15-en-vi": Corpus(
        tuple(
            Remote(f"{_STANFORD}/{name}.{language}")
            for name in ("train", "tst2012", "tst2013", "vocab")
            for language in ("en", "vi")
        )
    ),
    "wmt15-de-en": Corpus(
        (
            Remote(f"{_STATMT}/wmt13/training-parallel-europarl-v7.tgz"),
            Remote(f"{_STATMT}/wmt13/training-parallel-commoncrawl.tgz"),
            Remote(f"{_STATMT}/wmt15/training-parallel-nc-v10.tgz"),
            Remote(f"{_STATMT}/wmt15/dev-v2.tgz"),
            Remote(f"{_STATMT}/wmt15/test.tgz"),
        ),
        {
            f"train.{language}": (
                Member("training-parallel-europarl-v7.tgz", f"europarl-v7.de-en.{language}"),
                Member("training-parallel-commoncrawl.tgz", f"commoncrawl.de-en.{language}"),
                Member("training-parallel-nc-v10.tgz", f"news-commentary-v10.de-en.{language}"),
            )
            for language in ("de", "en")
        }
        | {f"newstest2013.{language}": (Member("dev-v2.tgz", f"newstest2013.{language}"),) for language in ("de", "en")}
        | {
            "newstest2015.de": (Member("test.tgz", "newstest2015-deen-src.de.sgm"),),
            "newstest2015.en": (Member("test.tgz", "newstest2015-deen-ref.en.sgm"),),
        },
    ),
    "multi30k-de-en": Corpus(
        tuple(
            Remote(f"{_MULTI30K}/{name}.gz", sha256)
            for name, sha256 in {
                "train.de": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
                "train.en": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
                "val.de": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
                "val.en": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
                "test_2016_flickr.de": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
                "test_2016_flickr.en": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
            }.items()
        )
    ),
    "tatoeba-de-en": Corpus((Remote(f"https://www.manythings.org/anki/{tatoeba.ARCHIVE}"),), finish=tatoeba.unpack),
}


def download(
    name: str, folder: Path, console: Console, *, corpora: Mapping[str, Corpus] = CORPORA, wait: float = 1.0
) -> Path:
    """Fetch the corpus `name` into `folder`/`name` and return that path. What is there already is checked, not fetched.

    A checksum that is not known beforehand is recorded in checksums.json at the first download, and checked after.
    """
    if name not in corpora:
        raise UserError(f"name: expected one of {', '.join(corpora)}, got {name!r}")
    corpus = corpora[name]
    folder = Path(folder) / name
    folder.mkdir(parents=True, exist_ok=True)
    checksums = _Checksums(folder / CHECKSUMS)
    for remote in corpus.remotes:
        path = folder / remote.name
        expected = remote.sha256 or checksums.get(remote.name)
        if path.exists():
            found = _check(path, expected)
        else:
            with byte_bar(console, remote.name) as show:
                found = fetch(remote.url, path, sha256=expected, wait=wait, report=show)
        checksums.record(remote.name, found)
    _unpack(corpus, folder, console)
    corpus.finish(folder)
    return folder


class _Checksums:
    """The SHA-256 of every fetched file, as it was the first time."""

    def __init__(self, path: Path):
        self._path = path
        try:
            self._known = foreign.read_json(path) if path.exists() else {}
        except foreign.ForeignFile as error:
            raise UserError(f"{error}; delete it to record the checksums anew") from error
        if not isinstance(self._known, dict):
            raise UserError(f"{path}: damaged: expected an object; delete it to record the checksums anew")

    def get(self, name: str) -> str | None:
        return self._known.get(name)

    def record(self, name: str, sha256: str) -> None:
        if self._known.get(name) != sha256:
            self._known[name] = sha256
            atomic.replace_text(self._path, json.dumps(self._known, indent=1, sort_keys=True) + "\n")


def _check(path: Path, expected: str | None) -> str:
    found = sha256_of(path)
    if expected is not None and found != expected:
        raise UserError(
            f"{path}: wrong checksum: expected SHA-256 {expected}, got {found}; delete the file to fetch it again, "
            f"and its entry in {CHECKSUMS} if it is right as it is"
        )
    return found


def _unpack(corpus: Corpus, folder: Path, console: Console) -> None:
    """Unpack missing files; those of one base name, such as train.de and train.en, always together."""
    groups: dict[str, list[str]] = {}
    for name in corpus.unpacked:
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    missing = [names for names in groups.values() if not all((folder / name).exists() for name in names)]
    if not missing:
        return
    temporary = folder / ".unpacking"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        members = {member for names in missing for name in names for member in corpus.unpacked[name]}
        for archive in sorted({member.archive for member in members}):
            with console.status(f"unpacking {archive}"):
                _extract(folder / archive, {member.name for member in members if member.archive == archive}, temporary)
        for names in missing:
            _check_lines(temporary, zip(*(corpus.unpacked[name] for name in names)))
            for name in names:
                with open(temporary / f"{name}.joined", "wb") as joined:
                    for member in corpus.unpacked[name]:
                        with open(temporary / member.name, "rb") as file:
                            shutil.copyfileobj(file, joined)
                os.replace(temporary / f"{name}.joined", folder / name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _extract(archive: Path, names: set[str], folder: Path) -> None:
    """Write members of a tar archive, found by name, into `folder` as plain text of whole lines.

    The archive does not decide where anything is written: its paths, links and devices are not followed.
    """
    found = set()
    try:
        with tarfile.open(archive, "r|*") as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                if name not in names:
                    continue
                content = tar.extractfile(member) if member.isreg() else None
                if content is None or name in found:
                    raise UserError(f"{archive}: expected one plain file {name}, got a link or a second one")
                found.add(name)
                with open(folder / name, "wb") as output:
                    _write_text(content, output, is_sgm=name.endswith(".sgm"))
                if found == names:
                    break
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UserError(f"{archive}: damaged ({error}); delete it to fetch it again") from error
    if found != names:
        raise UserError(f"{archive}: expected {', '.join(sorted(names - found))} in it; is it the right archive?")


def _write_text(source: IO[bytes], output: BinaryIO, *, is_sgm: bool) -> None:
    if is_sgm:
        # the test sets of WMT: every sentence stands between <seg> and </seg>
        text = source.read().decode("utf-8")
        for sentence in re.findall(r"<seg\b[^>]*>(.*?)</seg>", text, re.DOTALL | re.IGNORECASE):
            output.write(" ".join(html.unescape(sentence).split()).encode() + b"\n")
        return
    last = b"\n"
    while block := source.read(1 << 20):
        output.write(block)
        last = block[-1:]
    if last != b"\n":
        # otherwise the next file's first line would be glued to this file's last one
        output.write(b"\n")


def _check_lines(folder: Path, pairs: Iterable[tuple[Member, ...]]) -> None:
    for members in pairs:
        counts = {member.name: _lines(folder / member.name) for member in members}
        if len(set(counts.values())) > 1:
            told = " and ".join(f"{name} has {count:,}" for name, count in counts.items())
            raise UserError(f"expected the same number of lines: {told}; delete {members[0].archive} to fetch it again")


def _lines(path: Path) -> int:
    count = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            count += block.count(b"\n")
    return count
