"""Corpora: checksums recorded and checked, archives unpacked without trusting them."""

import io
import json
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rich.console import Console

from gma import config
from gma.config import loading
from gma.corpus import tatoeba
from gma.corpus.download import CHECKSUMS, CORPORA, Corpus, Member, Remote, download
from gma.errors import UserError
from gma.storage.digest import sha256_of

QUIET = Console(quiet=True)
SGM = b'<srcset><doc><p>\n<seg id="1">A &amp; B</seg>\n<SEG id="2"> two\nlines </SEG>\n</p></doc></srcset>'


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def site(tmp_path):
    """A folder, and the address it is served at."""
    folder = tmp_path / "site"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def archive(path, members: dict[str, bytes | tarfile.TarInfo]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
                continue
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def get(corpus, folder):
    return download("c", folder, QUIET, corpora={"c": corpus}, wait=0.0)


def test_checksums_are_recorded_and_checked_after(site, tmp_path):
    folder, url = site
    (folder / "train.en").write_bytes(b"one\n")
    corpus = Corpus((Remote(f"{url}/train.en"),))
    path = get(corpus, tmp_path / "data") / "train.en"
    assert path == tmp_path / "data" / "c" / "train.en"
    assert json.loads(path.with_name(CHECKSUMS).read_text()) == {"train.en": sha256_of(path)}
    # there already: not fetched again, but looked at
    (folder / "train.en").unlink()
    get(corpus, tmp_path / "data")
    path.write_bytes(b"other\n")
    with pytest.raises(UserError, match=r"train\.en: wrong checksum.*delete the file"):
        get(corpus, tmp_path / "data")
    # gone, and another one on the server
    path.unlink()
    (folder / "train.en").write_bytes(b"changed\n")
    with pytest.raises(UserError, match="wrong checksum"):
        get(corpus, tmp_path / "data")
    assert not path.exists()
    path.with_name(CHECKSUMS).write_text("{")
    with pytest.raises(UserError, match=r"checksums\.json: damaged"):
        get(corpus, tmp_path / "data")


def test_known_checksum_and_missing_file(site, tmp_path):
    folder, url = site
    (folder / "train.en").write_bytes(b"one\n")
    good = sha256_of(folder / "train.en")
    get(Corpus((Remote(f"{url}/train.en", good),)), tmp_path / "a")
    with pytest.raises(UserError, match=f"expected SHA-256 {'0' * 64}, got {good}"):
        get(Corpus((Remote(f"{url}/train.en", "0" * 64),)), tmp_path / "b")
    with pytest.raises(UserError, match=r"train\.vi: the server answered 404"):
        get(Corpus((Remote(f"{url}/train.en"), Remote(f"{url}/train.vi"))), tmp_path / "c")
    # what was fetched before the error stays
    assert (tmp_path / "c" / "c" / "train.en").exists()
    with pytest.raises(UserError, match="expected one of c, got 'd'"):
        download("d", tmp_path, QUIET, corpora={"c": Corpus(())})


@pytest.fixture
def archives(site):
    folder, url = site
    archive(
        folder / "a.tgz", {"training/x.de": b"eins\nzwei", "training/x.en": b"one\ntwo\n", "training/x.fr": b"un\n"}
    )
    archive(folder / "b.tgz", {"./y.de": b"drei\n", "y.en": b"three\n", "test/z.de.sgm": SGM, "test/z.en.sgm": SGM})
    corpus = Corpus(
        (Remote(f"{url}/a.tgz"), Remote(f"{url}/b.tgz")),
        {
            **{f"train.{side}": (Member("a.tgz", f"x.{side}"), Member("b.tgz", f"y.{side}")) for side in ("de", "en")},
            **{f"test.{side}": (Member("b.tgz", f"z.{side}.sgm"),) for side in ("de", "en")},
        },
    )
    return folder, corpus


def test_members_are_joined_line_by_line(archives, tmp_path):
    path = get(archives[1], tmp_path / "data")
    assert (path / "train.de").read_text() == "eins\nzwei\ndrei\n"
    assert (path / "train.en").read_text() == "one\ntwo\nthree\n"
    assert (path / "test.de").read_text() == "A & B\ntwo lines\n"
    assert {file.name for file in path.iterdir()} == {
        *("a.tgz", "b.tgz", CHECKSUMS, "train.de", "train.en", "test.de", "test.en"),
    }
    # a file that was deleted is made again, from the archives that are there
    (path / "train.en").unlink()
    (archives[0] / "a.tgz").unlink()
    get(archives[1], tmp_path / "data")
    assert (path / "train.en").exists()


def link(kind, name, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"x.de": link(tarfile.SYMTYPE, "x.de", "/etc/passwd"), "x.en": b"a\n"}, "plain file x.de, got a link"),
        ({"x.de": link(tarfile.LNKTYPE, "x.de", "../secret"), "x.en": b"a\n"}, "plain file x.de, got a link"),
        ({"a/x.de": b"a\n", "b/x.de": b"b\n", "x.en": b"a\n"}, "or a second one"),
        ({"x.de": b"a\n"}, r"expected x\.en in it"),
        ({"x.de": b"a\nb\n", "x.en": b"a\n"}, r"x\.de has 2 and x\.en has 1"),
    ],
)
def test_archives_that_are_refused(archives, tmp_path, members, message):
    folder, corpus = archives
    archive(folder / "a.tgz", members)
    with pytest.raises(UserError, match=message):
        get(corpus, tmp_path / "data")
    left = {file.name for file in (tmp_path / "data" / "c").iterdir()}
    assert not left & {"train.de", "train.en", ".unpacking"}


def test_paths_in_archives_are_not_followed(archives, tmp_path):
    folder, corpus = archives
    archive(folder / "a.tgz", {"../../../x.de": b"a\n", "/tmp/../x.en": b"a\n"})
    path = get(corpus, tmp_path / "data")
    assert (path / "train.de").read_text() == "a\ndrei\n"
    assert not list(tmp_path.glob("**/x.*"))


def test_damaged_archive(archives, tmp_path):
    folder, corpus = archives
    (folder / "a.tgz").write_bytes((folder / "a.tgz").read_bytes()[:60])
    with pytest.raises(UserError, match=r"a\.tgz: damaged .*delete it to fetch it again"):
        get(corpus, tmp_path / "data")
    (folder / "a.tgz").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"a\.tgz: damaged"):
        get(corpus, tmp_path / "other")


def test_corpora_have_what_the_recipes_name():
    for recipe in config.recipes():
        data = config.load(recipe).config.data
        files = [name for split in (data.train, data.valid, data.test) for side in split for name in side[1]]
        for file in files:
            corpus, _, name = file.partition("/")
            if corpus not in CORPORA:
                # the user's own to find; the recipe says what to put where
                assert f"data/{corpus}/" in (loading._recipe_folder() / f"{recipe}.toml").read_text(encoding="utf-8")
                continue
            found = CORPORA[corpus]
            made = tatoeba.FILES if found.finish is tatoeba.unpack else ()
            assert name in {*found.unpacked, *(remote.name for remote in found.remotes), *made}
    for corpus in CORPORA.values():
        names = {remote.name for remote in corpus.remotes}
        assert {member.archive for members in corpus.unpacked.values() for member in members} <= names
        assert all(remote.url.startswith("https://") for remote in corpus.remotes)
