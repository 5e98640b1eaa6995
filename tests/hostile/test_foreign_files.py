"""Files from strangers: a right result or one named error, in little memory, from every reader there is."""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gma.config import load
from gma.corpus.token_file import PreparedCorpus
from gma.errors import UserError
from gma.evaluation.inputs import load_gold, load_log
from gma.evaluation.sweep import load_curve
from gma.model import directory
from gma.storage import foreign, tensor_file
from gma.storage.digest import sha256_of
from gma.text.tokenizer import Tokenizer
from gma.training import history
from tests.support import tiny_model, tiny_run

DEEP = 200_000
# what no reader may stumble over, whatever it expects
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "a zero": b"\0",
    "white space": b" \n\t\n",
    "not UTF-8": b'{"a": "\xff\xfe"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "deep lists": b"[" * DEEP,
    "deep lists, closed": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP,
    "deep value": b"a = " + b"[" * DEEP,
    "deep inline tables": b"a = " + b"{b=" * DEEP,
    "deep dotted key": b".".join([b"a"] * DEEP) + b" = 1",
    "deep header": b"[" + b".".join([b"a"] * DEEP) + b"]",
    "some deep keys": b"".join(b".".join([b"a%d" % n] * 400) + b" = 1\n" for n in range(50)),
    "a long number": b"9" * 100_000,
    "a long number in TOML": b"[model]\nwidth = " + b"9" * 100_000,
    "a lone surrogate": b'{"format": "\\ud800", "kind": "\\udfff"}',
    "a lone surrogate in TOML": b'[data]\nfolder = "\\ud800"',
    "not a number": b'{"update": NaN, "kind": "training"}',
    "infinite": b'{"update": Infinity, "kind": "training"}',
    "null": b"null",
    "a list": b"[]",
    "text": b'"text"',
    "true": b"true",
    "an empty object": b"{}",
    "a key twice": b'{"a": 1, "a": 2}',
    "cut off": b'{"format": "gma-tokenizer", "version',
    "comments": b"# nothing\n" * 1000,
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93.",
    "a large header": (1 << 62).to_bytes(8, "little") + b"{}",
    "a negative header": b"\xff" * 8 + b"{}",
    "control characters": bytes(range(32)),
    "one line": b"a" * 3_000_000,
    "many lines": b"\n" * 1_000_000,
    "links": b"0-0 " * 1000 + b"99999999999999999999-1",
    "negative links": b"-1--1",
}


def _refusal(act: Callable[[], Any]) -> str | None:
    """The message of the one error that may be raised; None if there was none."""
    try:
        act()
    except UserError as error:
        return str(error)
    return None


READERS: dict[str, Callable[[Path], Any]] = {
    "settings": lambda path: load(path),
    "tokenizer": Tokenizer.load,
    "weights": tensor_file.read,
    "log": load_log,
    "curve": load_curve,
    "history": history.read,
    "links": load_gold,
    "corpus": lambda path: PreparedCorpus.open(path.parent),
    "json": foreign.read_json,
}
NAMES = {"corpus": "corpus.json"}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("reader", READERS)
def test_a_hostile_file_is_read_or_refused_by_name(tmp_path, reader, name):
    path = tmp_path / NAMES.get(reader, "file")
    path.write_bytes(HOSTILE[name])
    message = _refusal(lambda: READERS[reader](path))
    assert message is None or str(path if reader != "corpus" else tmp_path) in message
    assert len(message or "") < 3000


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_or_a_missing_file_is_refused_by_name(tmp_path, reader):
    place = tmp_path / "place"
    (place / NAMES["corpus"] if reader == "corpus" else place).mkdir(parents=True)
    with pytest.raises((UserError, OSError), match="place"):
        READERS[reader](place / "corpus.json" if reader == "corpus" else place)
    if reader != "history":
        with pytest.raises((UserError, OSError), match="missing"):
            READERS[reader](tmp_path / "missing" / "file")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_run.make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def saved(corpus, tmp_path_factory):
    return tiny_model.make(tmp_path_factory.mktemp("model"), corpus)


@pytest.fixture
def model(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "model"))


HUGE = {
    "width": ("width = 16", "width = 131072"),
    "feed_forward": ("feed_forward = 32", "feed_forward = 131072"),
    "layers": ("encoder_layers = 1", "encoder_layers = 256"),
    "too wide": ("width = 16", f"width = {1 << 40}"),
    "too deep": ("decoder_layers = 2", "decoder_layers = 1000000000"),
    "no heads": ("heads = 2", "heads = 0"),
}


@pytest.mark.parametrize("what", HUGE)
def test_sizes_are_compared_before_anything_is_built(model, what):
    config = model / "config.toml"
    before, after = HUGE[what]
    text = config.read_text()
    assert before in text
    config.write_text(text.replace(before, after, 1))
    with pytest.raises(UserError, match=r"model\.|config describes"):
        directory.load(model)


@pytest.mark.parametrize("name", ["config.toml", "tokenizer.json", "training.json", "model.safetensors"])
@pytest.mark.parametrize("content", HOSTILE)
def test_a_model_with_a_hostile_file_is_refused_or_works(model, name, content):
    (model / name).write_bytes(HOSTILE[content])
    message = _refusal(lambda: directory.load(model))
    assert name == "training.json" if message is None else str(model) in message


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers_are_refused(model, value):
    tensors, record = tensor_file.read(model / "model.safetensors")
    name = sorted(tensors)[0]
    tensors[name].view(-1)[0] = value
    tensor_file.write(model / "model.safetensors", tensors, record)
    with pytest.raises(UserError, match=f"{name} holds what is no finite number"):
        directory.load(model)


def test_whole_numbers_are_no_weights(model):
    tensors, record = tensor_file.read(model / "model.safetensors")
    tensor_file.write(model / "model.safetensors", {name: t.long() for name, t in tensors.items()}, record)
    with pytest.raises(UserError, match="no finite number"):
        directory.load(model)


@pytest.fixture
def copied(corpus, tmp_path):
    return Path(shutil.copytree(corpus, tmp_path / "corpus"))


@pytest.mark.parametrize("name", ["train.source.tokens", "train.target.offsets", "valid.source.txt", "tokenizer.json"])
def test_one_other_byte_in_a_corpus_is_noticed(copied, name):
    PreparedCorpus.open(copied)
    data = bytearray((copied / name).read_bytes())
    data[-3] ^= 1
    (copied / name).write_bytes(data)
    with pytest.raises(UserError, match=f"{name}: altered since it was written"):
        PreparedCorpus.open(copied)


def _forge(folder: Path, name: str, data: bytes) -> None:
    """Alter a file, and its digest with it."""
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / "corpus.json").read_text())
    manifest["files"][name] = {"bytes": len(data), "sha256": sha256_of(folder / name)}
    (folder / "corpus.json").write_text(json.dumps(manifest))


def test_an_id_that_the_vocabulary_has_not_is_noticed(copied):
    data = (copied / "train.source.tokens").read_bytes()
    _forge(copied, "train.source.tokens", data[:-2] + np.array([60_000], "<u2").tobytes())
    with pytest.raises(UserError, match="has the id 60000, and the vocabulary"):
        PreparedCorpus.open(copied).split("train")


def test_sentences_that_end_before_they_begin_are_noticed(copied):
    data = bytearray((copied / "train.source.offsets").read_bytes())
    data[24:32] = (10**6).to_bytes(8, "little")
    _forge(copied, "train.source.offsets", bytes(data))
    with pytest.raises(UserError, match="ends before it begins"):
        PreparedCorpus.open(copied).split("train")


@pytest.mark.parametrize(
    "entry", [None, [], {}, {"bytes": "1"}, {"bytes": 1}, {"bytes": 1 << 70, "sha256": 3}, {"bytes": -1, "sha256": ""}]
)
@pytest.mark.parametrize("name", ["train.source.tokens", "../../etc/passwd", "missing"])
def test_a_manifest_with_a_wrong_entry_is_refused(copied, name, entry):
    manifest = json.loads((copied / "corpus.json").read_text())
    manifest["files"][name] = entry
    (copied / "corpus.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="corpus"):
        PreparedCorpus.open(copied)


def test_a_corpus_is_read_for_its_digests_once(copied, monkeypatch):
    PreparedCorpus.open(copied)
    monkeypatch.setattr("gma.corpus.integrity.sha256_of", lambda path: pytest.fail("read again"))
    PreparedCorpus.open(copied)


# json's own values, and among them the keys that readers look for
KEYS = st.sampled_from(
    [
        "format",
        "version",
        "kind",
        "update",
        "pieces",
        "merges",
        "source",
        "target",
        "joint",
        "rules",
        "files",
        "index",
        "prediction",
        "delays",
        "reference",
        "source_length",
        "points",
        "splits",
        "settings",
        "model",
        "width",
        "delta",
    ]
)
VALUES = st.sampled_from(["gma-tokenizer", "gma-corpus", "gma-sweep", "bpe", "word", 1, 2, "a", "</w>", "training"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | VALUES
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS | st.text(), inner), max_leaves=20)
TOML = st.lists(
    st.sampled_from(["[model]", "[data]", "[attention]", "[training]", "[a.b]", "[[a]]", "width", "delta", "=", "\n"])
    | st.sampled_from(['"', "'''", "{", "}", "[", "]", ",", ".", "inf", "nan", "-1", "1e999", "\\ud800", "1979-05-27"])
    | st.text(max_size=3),
    max_size=40,
).map(" ".join)
CONTENTS = st.one_of(
    st.binary(max_size=300),
    TREES.map(lambda tree: json.dumps(tree).encode()),
    TOML.map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.builds(lambda header, rest: len(header).to_bytes(8, "little") + header + rest, st.binary(), st.binary()),
)


@pytest.mark.parametrize("reader", READERS)
def test_fuzzed_files_are_read_or_refused(tmp_path_factory, reader):
    path = tmp_path_factory.mktemp("fuzz") / NAMES.get(reader, "file")

    @settings(deadline=None, suppress_health_check=list(HealthCheck))
    @given(CONTENTS)
    def read(content: bytes) -> None:
        path.write_bytes(content)
        with contextlib.suppress(UserError):
            READERS[reader](path)

    read()
