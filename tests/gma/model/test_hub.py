"""Models by name, from a hub on this machine: honest, out of reach, cut off on the way, and hostile in every way."""

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest
from huggingface_hub import constants

from gma import StreamingTranslator
from gma.errors import Caution, UserError
from gma.model import directory, hub
from gma.storage import fetch
from tests.support.hub_server import Hub
from tests.support.tiny_model import command

# enough to be fetched; loaded are only models of the tests that say so
FILES = {
    "config.toml": b"[model]\n",
    "model.safetensors": bytes(range(256)) * 2000,
    "tokenizer.json": b"{}",
    "training.json": b"{}",
    "config.json": b"{}",
    "README.md": b"# a model\n",
}
NAME = "hf://org/name"


@pytest.fixture
def server(monkeypatch, tmp_path):
    found = Hub()
    found.models["org/name"] = dict(FILES)
    monkeypatch.setattr(constants, "ENDPOINT", found.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", found.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(fetch, "TIMEOUT", 5)
    monkeypatch.setattr(fetch.time, "sleep", lambda seconds: None)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield found
    found.close()


@pytest.fixture
def cache(server, tmp_path):
    return tmp_path / "cache" / "models--org--name"


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def is_empty(cache):
    """No name that a model could be found by, and no blob."""
    blobs = [path for path in cache.glob("blobs/*") if not path.name.endswith((".part", ".part.json"))]
    return not blobs and not list(cache.glob("snapshots/*")) and not list(cache.glob("refs/*"))


def test_a_model_is_fetched_once_and_found_again(server, cache):
    folder = hub.fetch_model(NAME)
    assert files(folder) == FILES
    assert folder == cache / "snapshots" / server.commit("org/name")
    asked = len(server.log)
    assert hub.fetch_model(NAME) == folder
    # only whether the revision has moved
    assert len(server.log) == asked + 1
    # a commit never moves
    assert hub.fetch_model(f"{NAME}@{folder.name}") == folder
    assert len(server.log) == asked + 1


def test_a_revision_that_has_moved_fetches_what_is_new(server):
    before = hub.fetch_model(NAME)
    server.models["org/name"]["training.json"] = b'{"update": 2}'
    server.log.clear()
    after = hub.fetch_model(NAME)
    assert server.fetched() == ["training.json"]
    assert (files(before), files(after)) == (FILES, server.models["org/name"])


def test_huggingface_hub_finds_what_was_fetched(server, cache):
    from huggingface_hub import snapshot_download

    folder = hub.fetch_model(NAME)
    assert snapshot_download("org/name", local_files_only=True, cache_dir=cache.parent) == str(folder)


def test_only_files_of_a_model_are_fetched(server, tmp_path):
    evil = dict.fromkeys(("model.py", "__init__.py", "pytorch_model.bin", "main.yaml"), b"print('executed')")
    server.models["org/name"] |= {**evil, "../../../outside.txt": b"x", "sub/config.toml": b"x", "/etc/x": b"x"}
    assert files(hub.fetch_model(NAME)) == FILES
    assert sorted(server.fetched()) == sorted(FILES)
    assert not list(tmp_path.glob("**/outside.txt"))


def test_out_of_reach_what_was_fetched_serves(server, monkeypatch):
    folder = hub.fetch_model(NAME)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        free = nobody.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{free}")
    with pytest.warns(Caution, match="cannot be reached .* taken is what was fetched before"):
        assert hub.fetch_model(NAME) == folder
    with pytest.raises(hub.HubError, match=r"hf://org/other@main: the hub cannot be reached .* not been fetched"):
        hub.fetch_model("hf://org/other")
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    server.failures = [503]
    with pytest.warns(Caution, match="answered 503"):
        assert hub.fetch_model(NAME) == folder
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(server.log)
    assert hub.fetch_model(NAME) == folder
    with pytest.raises(hub.HubError, match="HF_HUB_OFFLINE is set, and the model has not been fetched"):
        hub.fetch_model(f"{NAME}@other")
    assert len(server.log) == asked


def test_cut_off_on_the_way_it_goes_on_where_it_was(server, cache):
    server.cuts = [None, 200_000]
    assert files(hub.fetch_model(NAME)) == FILES
    again = [path for _, path, _ in server.log if path.endswith("model.safetensors")]
    assert len(again) == 2


def test_cut_off_for_good_leaves_nothing_half_written(server, cache):
    del server.models["org/name"]["config.json"]
    server.cuts = [None, 200_000, *[0] * 20]
    with pytest.raises(UserError, match=r"gave up after 5 attempts .*200,000 bytes are kept, run the command again"):
        hub.fetch_model(NAME)
    assert not [*cache.glob("snapshots/*"), *cache.glob("refs/*")]
    server.cuts.clear()
    assert hub.fetch_model(NAME).name == server.commit("org/name")


@pytest.mark.parametrize("file", ["model.safetensors", "training.json"])
def test_wrong_contents_are_refused(server, cache, file):
    """By SHA-256, and by git's name of small files."""
    server.served[file] = bytes(reversed(FILES[file])) if file == "model.safetensors" else b"[]"
    with pytest.raises(UserError, match=rf"{file}: wrong checksum: expected .* or was damaged on the way"):
        hub.fetch_model(NAME)
    assert not [*cache.glob("snapshots/*"), *cache.glob("refs/*")]
    server.served.clear()
    assert files(hub.fetch_model(NAME)) == FILES


def test_more_than_was_listed_is_never_written(server, cache):
    server.served["model.safetensors"] = FILES["model.safetensors"] + b"more"
    with pytest.raises(UserError, match=r"sends 512,004 bytes; expected 512,000"):
        hub.fetch_model(NAME)
    server.served.clear()
    server.endless = True
    with pytest.raises(UserError, match=r"sends more than the [0-9,]+ bytes that are expected"):
        hub.fetch_model(NAME)
    assert not [*cache.glob("snapshots/*"), *cache.glob("refs/*")]
    assert sum(path.stat().st_size for path in cache.glob("blobs/*")) < 2**20


def change(listing, file, **values):
    entries = [{**entry, **values} if entry["rfilename"] == file else entry for entry in listing["siblings"]]
    return {**listing, "siblings": entries}


HUGE = 10**17
LISTINGS = {
    "huge weights": (
        lambda listing: change(listing, "model.safetensors", lfs={"size": HUGE, "sha256": "0" * 64}),
        r"needs 100,000,000,000,000,0.. bytes more, and the disk of .* make room",
    ),
    "huge settings": (
        lambda listing: change(listing, "config.toml", size=HUGE),
        r"config\.toml has 100,000,000,000,000,000 bytes; expected at most",
    ),
    "a digest that is a path": (
        lambda listing: change(listing, "config.toml", blobId="../../../../outside"),
        r"lists config\.toml without its size and digest",
    ),
    "a digest of weights that is a path": (
        lambda listing: change(listing, "model.safetensors", lfs={"size": 5, "sha256": "../../outside"}),
        r"lists model\.safetensors without its size and digest",
    ),
    "a negative size": (lambda listing: change(listing, "config.toml", size=-1), "without its size and digest"),
    "a size that is none": (lambda listing: change(listing, "config.toml", size=True), "without its size and digest"),
    "a commit that is a path": (lambda listing: {**listing, "sha": "../../../outside"}, "answers as no hub does"),
    "no commit": (lambda listing: {"siblings": listing["siblings"]}, "answers as no hub does"),
    "no object": (lambda listing: [listing], "answers as no hub does"),
    "names that are none": (lambda listing: {**listing, "siblings": [7, {"rfilename": ["a"]}]}, "it holds no config"),
    "no model": (
        lambda listing: {**listing, "siblings": listing["siblings"][1:]},
        r"it holds no config\.toml; expected a model that `gma push` has put there",
    ),
}


@pytest.mark.parametrize("case", LISTINGS)
def test_hostile_listings_are_refused(server, cache, tmp_path, case):
    server.listed, message = LISTINGS[case]
    with pytest.raises(hub.HubError, match=message):
        hub.fetch_model(NAME)
    assert server.fetched() == []
    assert is_empty(cache)
    assert not list(tmp_path.glob("**/outside*"))


def test_answers_that_are_no_listing(server, monkeypatch):
    server.listed = lambda listing: json.loads("[" * 100 + "]" * 100)
    with pytest.raises(UserError, match="nested too deeply"):
        hub.fetch_model(NAME)
    monkeypatch.setattr(hub, "LARGEST_LISTING", 100)
    with pytest.raises(hub.HubError, match="its listing is longer than 100 bytes"):
        hub.fetch_model(NAME)


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "does not exist, or is private: log in by `hf auth login`"), (403, "accept its terms"), (404, "no such")],
)
def test_refusals_say_what_to_do(server, status, message):
    hub.fetch_model(NAME)
    server.failures = [status]
    # what was fetched before must not hide that it is gone
    with pytest.raises(hub.HubError, match=message):
        hub.fetch_model(NAME)


@pytest.mark.parametrize(
    "text",
    [
        "hf://name",
        "hf://org/name/file",
        "hf://../name",
        "hf://org/..",
        "hf://org/na--me",
        "hf://org/name@../../x",
        "hf://org/name@",
        "hf://org/name@a//b",
        "hf://datasets/org/name",
        "hf://org/name@-x",
        "hf:///name",
        "hf://",
        "hf://org/name\n",
        "hf://örg/name",
        "hf://org/name?x",
    ],
)
def test_names_that_are_none(text):
    with pytest.raises(hub.HubError, match="no name of a model on a hub; expected hf://organisation/name"):
        hub.parse(text)


def test_the_token_is_for_the_hub_alone(server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.elsewhere = "localhost"
    assert files(hub.fetch_model(NAME)) == FILES
    for method, path, authorization in server.log:
        assert method == "GET"
        if "/api/" in path:
            assert authorization == "Bearer hf_secret"
    # every file twice: at the hub, with the token, and where that sent us, without
    tokens = [authorization for _, path, authorization in server.log if "/resolve/" in path]
    assert tokens == ["Bearer hf_secret", None] * len(FILES)


def test_a_file_system_without_links(server, monkeypatch):
    def refuse(self, target):
        raise OSError("no links here")

    monkeypatch.setattr("pathlib.Path.symlink_to", refuse)
    folder = hub.fetch_model(NAME)
    assert files(folder) == FILES
    assert not any(path.is_symlink() for path in folder.iterdir())


def test_another_process_is_fetching(server, cache):
    with hub.locked(cache, UserError("")), pytest.raises(hub.HubError, match="another process is fetching"):
        hub.fetch_model(NAME)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """For commands in processes of their own."""
    found = Hub()
    home = tmp_path_factory.mktemp("home")
    yield (
        found,
        {**os.environ, "HF_ENDPOINT": found.url, "HF_HOME": str(home), "HF_TOKEN": "hf_x", "HF_HUB_DISABLE_XET": "1"},
    )
    found.close()


def gma(environment, *arguments, text=""):
    return subprocess.run(
        [sys.executable, "-m", "gma", *map(str, arguments)],
        env=environment,
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_pushed_and_loaded_by_name(environment, tmp_path, monkeypatch):
    """The whole way, by commands: a model with a sweep is pushed, fetched, and translates as the folder does."""
    server, variables = environment
    folder = tmp_path / "model"
    shutil.copytree(directory.SHIPPED / "de-en", folder)
    (folder / "README.md").unlink()
    (folder / "secrets.txt").write_text("not a file of a model")
    (tmp_path / "text.de").write_text("Das ist gut.\n")
    (tmp_path / "text.en").write_text("That is good.\n")
    texts = ("--source", tmp_path / "text.de", "--reference", tmp_path / "text.en")
    assert command(monkeypatch, "sweep", folder, "--delta", "2", *texts) == 0
    done = gma(variables, "push", folder, "org/de-en", "--license", "mit")
    assert (done.returncode, done.stdout) == (0, f"pushed: {server.url}/org/de-en\n"), done.stderr
    pushed = server.models["org/de-en"]
    assert sorted(pushed) == sorted([*hub.REQUIRED, "config.json", "README.md"])
    assert {"library_name": "gma", "model_type": "gma"}.items() <= json.loads(pushed["config.json"]).items()
    card = pushed["README.md"].decode()
    header = card.split("---")[1]
    for line in ("- de\n- en", "license: mit", "pipeline_tag: translation", "- tatoeba-de-en", "- bleu"):
        assert line in header
    assert "BLEU at δ = 2.0, AL" in header or "BLEU at δ = 2, AL" in header
    assert 'StreamingTranslator.load("hf://org/de-en")' in card

    sentence = "Ich glaube nicht, dass Tom heute kommen wird.\n"
    done = gma(variables, "translate", "hf://org/de-en", "--delta", "4", text=sentence)
    assert (done.returncode, done.stdout) == (0, "I don't think Tom will come today.\n"), done.stderr
    refused = gma({**variables, "HF_HUB_OFFLINE": "1"}, "translate", "hf://org/en-de")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "hf://org/en-de@main: HF_HUB_OFFLINE is set, and the model has not been fetched before\n"


def test_a_push_that_is_refused(environment):
    server, variables = environment
    server.failures = [403] * 5
    done = gma(variables, "push", "de-en", "org/refused", "--license", "mit")
    server.failures.clear()
    assert done.returncode == 2
    assert "hf://org/refused@main: it could not be pushed: " in done.stderr
    assert done.stderr.endswith("log in by `hf auth login`, or set HF_TOKEN to a token that may write\n")
    assert "Traceback" not in done.stderr


def test_loading_by_name(server):
    shipped = directory.SHIPPED / "de-en"
    server.models["org/name"] = {name: (shipped / name).read_bytes() for name in hub.REQUIRED}
    translator = StreamingTranslator.load(NAME)
    with translator.open(delta=4.0) as stream:
        assert [emission.word for emission in [*stream.push("Danke schön!"), *stream.finish()]]
    assert hub.title(hub.fetch_model(NAME)) == f"org/name@{server.commit('org/name')[:7]}"


def test_a_dry_run_pushes_nothing(monkeypatch, capsys, server):
    assert command(monkeypatch, "push", "de-en", "org/dry", "--license", "mit", "--dry-run") == 0
    printed = capsys.readouterr().out
    # the model has a card: it keeps its words, under a header
    assert "license: mit" in printed
    assert "# de-en: German into English while it is being heard" in printed
    assert server.log == []


def test_a_curve_of_a_hub_s_model_needs_a_place(monkeypatch, capsys, server):
    assert command(monkeypatch, "sweep", NAME) == 2
    assert capsys.readouterr().err.startswith("--output is needed: hf://org/name lies on a hub")
