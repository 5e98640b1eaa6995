"""Models, corpora and logs with one value that a stranger has chosen: used, or refused by one named error."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gma.corpus.download import _Checksums
from gma.corpus.token_file import PreparedCorpus
from gma.decoding.translate import translate_lines
from gma.errors import UserError
from gma.evaluation.inputs import load_log
from gma.evaluation.instances import score_instances
from gma.model import directory
from gma.storage import tensor_file
from gma.storage.digest import fingerprint
from gma.storage.fetch import _Part
from gma.text.tokenizer import Tokenizer
from gma.training.average import average
from tests.support import tiny_model, tiny_run

VALUES = ("-1", "0", "1e400", "nan", "inf", "'x'", "[]", "{}", "true", "99999999999", "1979-05-27", "[[1]]", "''")
SETTINGS = tiny_run.load(Path("corpus")).values()
MODEL_KEYS = [*SETTINGS["model"], *SETTINGS["attention"], "generated", "tokenizer", "max_length", "updates", "tokens"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_run.make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def saved(corpus, tmp_path_factory):
    return tiny_model.make(tmp_path_factory.mktemp("model"), corpus)


@pytest.fixture
def model(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "model"))


def _use(folder: Path) -> None:
    lines = translate_lines(directory.load(folder), ["a b c. d e", "ba du. " + "ka " * 20])
    assert len(lines) == 2
    assert not any("\n" in line for line in lines)


def _used_or_refused(folder: Path) -> str:
    """What was refused, or nothing."""
    refused = ""
    try:
        _use(folder)
    except UserError as error:
        refused = str(error)
    assert len(refused) < 3000
    return refused


@pytest.mark.parametrize("key", MODEL_KEYS)
def test_a_setting_of_any_kind(model, key):
    config = model / "config.toml"
    text = config.read_text()
    for value in VALUES:
        config.write_text(re.sub(rf"(?m)^{key} = .*$", lambda match, value=value: f"{key} = {value}", text, count=1))
        assert config.read_text() != text or f"{key} = {value}" in text
        refused = _used_or_refused(model)
        assert not refused or str(model) in refused or key in refused


def _other_tokenizer(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Alter it, and what binds the weights to it."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content))
    tensors, record = tensor_file.read(folder / "model.safetensors")
    record["tokenizer"] = fingerprint(path.read_bytes())
    tensor_file.write(folder / "model.safetensors", tensors, record)


PIECES = ["a\nb</w>", " ", "\t", "\xa0", "\x1f", "\u2028", "\x85x", ""]
PIECES += ["\0", "\x1b[2J", "</w>", "<s>", "\ue000", "x" * 10**6]


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: ascii(piece[:10]))
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_piece_of_any_kind(model, side, piece):
    _other_tokenizer(model, lambda content: content[side]["pieces"].__setitem__(-1, piece))
    refused = _used_or_refused(model)
    assert ("tokenizer.json" in refused) == (piece.split() != [piece])


def _read_pieces(path: Path, pieces: Any, merges: Any) -> None:
    source = {"kind": "bpe", "pieces": pieces, "merges": merges}
    rules = {"lowercase": True, "unescape": True, "split_punctuation": True}
    content = {"format": "gma-tokenizer", "version": 1, "joint": True, "rules": rules, "source": source, "target": None}
    path.write_text(json.dumps(content))
    vocabulary = Tokenizer.load(path).source
    for word in ("ab", "a b", "</w>", "\ue000", "aa" * 2000, "a</w>b", "&lt;/w>"):
        vocabulary.unreadable(vocabulary.decode(vocabulary.encode(word)))
    for id in range(vocabulary.size):
        vocabulary.words([id, id])


BPE = {
    "nothing": ([], []),
    "the marker inside": (["a</w>", "b", "a</w>b"], [["a</w>", "b"]]),
    "the marker alone": (["</w>"], []),
    "two markers": (["</w></w>", "a"], []),
    "the inner marker": (["a</w>", "a\ue000", "b"], []),
    "merged into the inner marker": (["a", "\ue000", "a\ue000"], [["a", "\ue000"]]),
    "a merge twice": (["a", "b", "ab"], [["a", "b"], ["a", "b"]]),
    "a merge of nothing": (["a", "b"], [["", "a"]]),
    "a merge of itself": (["a", "aa", "aaaa"], [["a", "a"], ["aa", "aa"]]),
    "blanks merged": (["a", " ", "a "], [["a", " "]]),
    "special tokens": (["<s>", "<pad>", "<unk>"], []),
    "truths": ([True], []),
    "numbers merged": (["1", "2", "12"], [[1, 2]]),
    "merges as text": (["a", "b", "ab"], ["a b"]),
    "three merged": (["a", "b", "ab"], [["a", "b", "ab"]]),
    "lists": ([["a"]], []),
    "an object": (["a"], {"a": "b"}),
    "long pieces": (["a" * 5000, "b", "a" * 5000 + "b"], [["a" * 5000, "b"]]),
    "very many": ([str(number) for number in range(100_000)], []),
}


@pytest.mark.parametrize("name", BPE)
def test_pieces_and_merges_of_any_kind(tmp_path, name):
    with contextlib.suppress(UserError):
        _read_pieces(tmp_path / "tokenizer.json", *BPE[name])


HEADERS: dict[str, tuple[dict[str, Any], int]] = {
    "a terabyte": ({"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}, 4),
    "less than nothing": ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, 4),
    "a size that overflows": ({"dtype": "F32", "shape": [1 << 32, 1 << 32], "data_offsets": [0, 4]}, 4),
    "four bits": ({"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}, 1),
    "six bits": ({"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}, 3),
    "eight bits": ({"dtype": "F8_E5M2", "shape": [4], "data_offsets": [0, 4]}, 4),
    "exponents": ({"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}, 4),
    "complex": ({"dtype": "C64", "shape": [], "data_offsets": [0, 8]}, 8),
    "unknown": ({"dtype": "X", "shape": [4], "data_offsets": [0, 4]}, 4),
    "no numbers": ({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, 0),
    "many dimensions": ({"dtype": "F32", "shape": [1] * 200, "data_offsets": [0, 4]}, 4),
    "offsets behind the end": ({"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}, 4),
    "offsets the wrong way": ({"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}, 4),
}


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("metadata", [None, {"gma_record": "{}", "gma_digest": "x"}, {"gma_record": "["}])
def test_a_header_of_any_kind(model, name, metadata):
    tensor, size = HEADERS[name]
    header = json.dumps({**({"__metadata__": metadata} if metadata else {}), "decoder.norm.weight": tensor}).encode()
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    assert "model.safetensors" in _used_or_refused(model)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
    "nowhere": lambda path: path.symlink_to("/nowhere/at/all"),
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["config.toml", "tokenizer.json", "training.json", "model.safetensors"])
def test_a_file_of_a_model_that_is_none(model, name, kind):
    (model / name).unlink()
    SPECIAL[kind](model / name)
    assert name in _used_or_refused(model)


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["train.source.tokens", "valid.target.txt", "tokenizer.json"])
def test_a_file_of_a_corpus_that_is_none(corpus, tmp_path, name, kind):
    folder = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    (folder / name).unlink()
    SPECIAL[kind](folder / name)
    for size in (0, 4096):
        manifest = json.loads((folder / "corpus.json").read_text())
        manifest["files"][name]["bytes"] = size
        (folder / "corpus.json").write_text(json.dumps(manifest))
        with pytest.raises(UserError, match=name):
            PreparedCorpus.open(folder)


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    tiny_run.train(corpus, run, "training.updates=10")
    return run


@pytest.mark.parametrize(
    ("what", "message"),
    [("state", "does not say how far"), ("tensor", "lacks"), ("shape", "expected"), ("width", "config describes")],
)
def test_checkpoints_of_a_strange_run_are_not_averaged(run, tmp_path, what, message):
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    newest = max((folder / "checkpoints").iterdir())
    tensors, record = tensor_file.read(newest)
    name = sorted(name for name in tensors if name.startswith("model."))[0]
    if what == "state":
        record["state"] = [7]
    elif what == "tensor":
        del tensors[name]
    elif what == "shape":
        tensors[name] = tensors[name].flatten()[:-1].clone()
    else:
        config = folder / "config.toml"
        config.write_text(config.read_text().replace("feed_forward = 32", "feed_forward = 131072"))
    tensor_file.write(newest, tensors, record)
    with pytest.raises(UserError, match=message):
        average(folder, 2, tmp_path / "output")
    assert not (tmp_path / "output").exists()


LOGGED = {"index": 0, "prediction": "a b", "delays": [1, 2], "reference": "a b", "source_length": 2}
ODD = (None, True, -1, 10**400, 1e308, float("nan"), float("inf"), -0.0, "x", "a\nb", "\ud800", "a" * 10**5, [], {})
ODD_LISTS = ([[1]], ["a"], [float("nan"), 1], [2, 1], [1, 3], [True, True], [10**400, 1], [1e308, 1e308], [-1, 1])


@pytest.mark.parametrize("key", LOGGED)
def test_a_log_with_a_value_of_any_kind(tmp_path, key):
    for value in (*ODD, *ODD_LISTS):
        (tmp_path / "log").write_text(json.dumps({**LOGGED, key: value}))
        with contextlib.suppress(UserError):
            assert score_instances(load_log(tmp_path / "log")).latency is not None


NOTE = {"url": "u", "etag": None, "modified": None, "length": 5}
ODD_NOTES = [{}, [], None, {**NOTE, "etag": 7}, {**NOTE, "length": -1}, {**NOTE, "length": "5"}, {**NOTE, "url": 1}]
NOTES = ["", "\0", "[" * 100_000, '{"url": "\\ud800"}', *map(json.dumps, ODD_NOTES)]


@pytest.mark.parametrize("note", NOTES)
def test_the_note_of_a_download_that_is_none_is_left_alone(tmp_path, note):
    (tmp_path / "file.part").write_bytes(b"begun")
    (tmp_path / "file.part.json").write_text(note)
    assert _Part("u", tmp_path / "file", None, {}).size == 0


@pytest.mark.parametrize("content", ["", "[]", "null", "7", "[" * 100_000, '{"a": ', '{"\\ud800": 1}', "\0"])
def test_checksums_that_are_none_are_refused_by_name(tmp_path, content):
    (tmp_path / "checksums.json").write_text(content)
    with pytest.raises(UserError, match=r"checksums\.json.*delete it"):
        _Checksums(tmp_path / "checksums.json")
