"""Every reader of a foreign file, fed with files that are nearly right: what it takes works, all else is a named error.

`GMA_FUZZ=10000 pytest tests/hostile/test_fuzzed_files.py` tries so many for each reader.
"""

import contextlib
import copy
import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gma.config import load
from gma.corpus.token_file import PreparedCorpus
from gma.errors import UserError
from gma.evaluation.inputs import load_gold, load_log
from gma.evaluation.instances import score_instances
from gma.evaluation.sweep import Point, load_curve
from gma.model import directory
from gma.serve import protocol
from gma.storage import tensor_file
from gma.storage.digest import fingerprint, sha256_of
from gma.text.lines import open_lines
from gma.text.sentences import SentenceFinder, rules, sentences
from gma.text.tokenizer import Tokenizer
from gma.training import history
from tests.support import tiny_model, tiny_run

INPUTS = int(os.environ.get("GMA_FUZZ", "40"))
# bytes that reading one file may add to what the process has
MEMORY = 1 << 31

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([10**9, 1 << 40, -(1 << 63), 10**400, 1e308, 1e-320, float("nan"), float("inf"), -0.0]),
    st.sampled_from(["", "a", "a b", "\n", "\ud800", "</w>", "\0", "../x", "bpe", "word", "gaussian", "inf", "1e9"]),
    st.text(max_size=5),
)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=3), SCALARS, max_size=2)


def _places(tree: Any, path: tuple = ()) -> Iterator[tuple]:
    """The path of everything in a tree of objects and lists."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


@st.composite
def trees(draw: st.DrawFn, tree: Any) -> Any:
    """The tree with one to three of its values replaced, left out, or beside another one."""
    found = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(found))
        if not places:
            break
        *path, last = draw(st.sampled_from(places))
        around = found
        for key in path:
            around = around[key]
        way = draw(st.integers(0, 3))
        if way == 0:
            del around[last]
        elif way == 1 and isinstance(around, dict):
            around[draw(st.text(max_size=5))] = draw(VALUES)
        else:
            around[last] = draw(VALUES)
    return found


ODD_BYTES = (b"", b"\n", b"[", b'"', b"\xff", b"-1", b"= 1", b"9" * 30)


@st.composite
def texts(draw: st.DrawFn, text: bytes) -> bytes:
    """The bytes with some of them cut out, altered, doubled, or followed by others."""
    found = bytearray(text)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(found)))
        end = min(len(found), start + draw(st.integers(0, 12)))
        found[start:end] = draw(st.sampled_from([*ODD_BYTES, bytes(found[start:end]) * 2]) | st.binary(max_size=6))
    return bytes(found)


def _json(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def jsons(tree: Any) -> st.SearchStrategy[bytes]:
    """Three of four keep the syntax."""
    return st.one_of(trees(tree).map(_json), trees(tree).map(_json), trees(tree).map(_json), texts(_json(tree)))


@contextlib.contextmanager
def _little_memory() -> Iterator[None]:
    """Nothing may take more than MEMORY bytes beyond what is there."""
    kilobytes = next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmSize" in line)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (int(kilobytes) * 1024 + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _fuzz(contents: st.SearchStrategy[Any], read: Callable[[Any], object]) -> None:
    """read: of one input; UserError is the only error it may raise, and some input in ten at least must raise it."""
    refused: list[str] = []

    @settings(max_examples=INPUTS, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(contents)
    def run(content: Any) -> None:
        try:
            read(content)
        except UserError as error:
            refused.append(str(error))

    with _little_memory():
        run()
    assert len(refused) >= INPUTS // 10
    assert all(0 < len(message) < 20_000 for message in refused)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_run.make_corpus(tmp_path_factory.mktemp("corpus"), *tiny_model.BPE)


@pytest.fixture(scope="module")
def model(corpus, tmp_path_factory):
    return tiny_model.make(tmp_path_factory.mktemp("model"), corpus, *tiny_model.BPE)


def test_settings(model, tmp_path):
    path = tmp_path / "file.toml"
    tables = load(model / "config.toml").config.values()

    def lines(tables: Any) -> bytes:
        """TOML as far as it can be; JSON's values are nearly TOML's."""
        found = []
        for section, table in tables.items() if isinstance(tables, dict) else ():
            found.append(f"[{section}]")
            for key, value in table.items() if isinstance(table, dict) else ():
                shown = json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf").replace("null", "[]")
                found.append(f"{key} = {shown if not isinstance(value, dict) else '{ x = 1 }'}")
        return "\n".join(found).encode("utf-8", "surrogatepass")

    def read(content: bytes) -> None:
        path.write_bytes(content)
        load(path)

    _fuzz(trees(tables).map(lines) | texts((model / "config.toml").read_bytes()), read)


def _small_tokenizer(model: Path) -> Any:
    content = json.loads((model / "tokenizer.json").read_text("utf-8"))
    for side in filter(None, (content["source"], content["target"])):
        letters = [piece for piece in side["pieces"] if len(piece) == 1][:6]
        side["pieces"] = [*letters, *(f"{piece}</w>" for piece in letters), letters[0] + letters[1]]
        side["merges"] = [letters[:2]]
    return content


def test_tokenizers(model, tmp_path):
    path = tmp_path / "tokenizer.json"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        tokenizer = Tokenizer.load(path)
        for side in (tokenizer.source, tokenizer.target):
            ids = side.encode("ab abba </w> 😀 a\u0308 &lt;")
            assert "\n" not in side.decode(ids)
            side.unreadable("ab 日本")
            side.words(range(side.size))

    _fuzz(jsons(_small_tokenizer(model)), read)


def test_headers_of_weights(model, tmp_path):
    data = (model / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    path = tmp_path / "model.safetensors"

    def read(header: bytes) -> None:
        path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
        tensor_file.read(path)

    _fuzz(jsons(json.loads(data[8 : 8 + length])), read)


def test_weights_whose_digest_is_right(model, tmp_path):
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    tensors, record = tensor_file.read(model / "model.safetensors")
    names = sorted(tensors)
    types = st.sampled_from([torch.float16, torch.float64, torch.int8, torch.bool, torch.float8_e5m2, torch.bfloat16])
    changes = st.tuples(st.sampled_from(names), st.integers(0, 5), types, SCALARS, trees(record))

    def read(change: Any) -> None:
        name, way, dtype, value, other = change
        altered = dict(tensors)
        if way == 0:
            del altered[name]
        elif way == 1:
            altered[name] = altered[name].to(dtype)
        elif way == 2:
            altered[name] = altered[name].flatten()[:-1].clone()
        elif way == 3:
            number = torch.tensor(value if isinstance(value, float) else torch.nan, dtype=torch.float64)
            altered[name] = number.to(altered[name].dtype).expand_as(altered[name]).clone()
        elif way == 4:
            altered[f"{name}.more"] = torch.zeros(1)
        tensor_file.write(folder / "model.safetensors", altered, other if way == 5 else record)
        directory.load(folder)

    _fuzz(changes, read)


def test_models(model, tmp_path):
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    tensors, record = tensor_file.read(model / "model.safetensors")
    config = (model / "config.toml").read_bytes()

    def read(contents: tuple[bytes, bytes, bytes]) -> None:
        for name, content in zip(("config.toml", "tokenizer.json", "training.json"), contents):
            (folder / name).write_bytes(content)
        bound = {**record, "tokenizer": fingerprint(contents[1])}
        tensor_file.write(folder / "model.safetensors", tensors, bound)
        directory.load(folder)

    training, tokenizer = {"update": 0, "validation": {"loss": 1.0}}, (model / "tokenizer.json").read_bytes()
    _fuzz(
        st.tuples(texts(config) | st.just(config), texts(tokenizer) | st.just(tokenizer), jsons(training)),
        read,
    )


def test_manifests_of_corpora(corpus, tmp_path):
    folder = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    manifest = json.loads((corpus / "corpus.json").read_text("utf-8"))

    def read(content: bytes) -> None:
        (folder / "corpus.json").write_bytes(content)
        opened = PreparedCorpus.open(folder)
        for split in opened.splits:
            assert len(opened.split(split).source) >= 0

    _fuzz(jsons(manifest), read)


def test_files_of_corpora_whose_digest_is_right(corpus, tmp_path):
    folder = Path(shutil.copytree(corpus, tmp_path / "corpus"))
    manifest = json.loads((corpus / "corpus.json").read_text("utf-8"))
    name = st.sampled_from(["valid.source.tokens", "valid.target.offsets", "valid.source.txt", "valid.source.offsets"])
    originals = {path.name: path.read_bytes() for path in corpus.iterdir() if path.is_file()}
    changes = name.flatmap(lambda name: st.tuples(st.just(name), texts(originals[name])))

    def read(change: tuple[str, bytes]) -> None:
        name, content = change
        (folder / name).write_bytes(content)
        try:
            entry = {"bytes": len(content), "sha256": sha256_of(folder / name)}
            written = {**manifest, "files": {**manifest["files"], name: entry}}
            (folder / "corpus.json").write_text(json.dumps(written))
            split = PreparedCorpus.open(folder).split("valid")
            for index in range(len(split)):
                assert split.source[index].size + split.target[index].size >= 0
            assert len(split.source_text) == len(split.target_text)
        finally:
            (folder / name).write_bytes(originals[name])

    _fuzz(changes, read)


LOGGED = [
    {"index": index, "prediction": "a b", "delays": [1, 2], "reference": "a b c", "source_length": 3, "elapsed": [2, 3]}
    for index in range(2)
]


def test_logs(tmp_path):
    path = tmp_path / "instances.log"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        score_instances(load_log(path))

    whole = trees(LOGGED).map(lambda lines: b"\n".join(map(_json, lines)))
    _fuzz(whole | texts(b"\n".join(map(_json, LOGGED))), read)


def test_histories(tmp_path):
    path = tmp_path / "history.jsonl"
    records = [{"kind": "training", "update": update, "loss": 1.5} for update in (1, 2, 3)]

    def read(content: bytes) -> None:
        path.write_bytes(content)
        assert all(record["update"] <= 10**400 for record in history.read(path))

    _fuzz(
        trees(records).map(lambda lines: b"\n".join(map(_json, lines))) | texts(b"\n".join(map(_json, records))), read
    )


def test_curves(tmp_path):
    path = tmp_path / "curve.json"
    point = dict.fromkeys(Point.__dataclass_fields__, 1.0) | {"sentences": 1, "empty": 0, "cut_off": 0}
    point |= {name: "x" for name, field in Point.__dataclass_fields__.items() if field.type in (str, "str")}
    curve = {"format": "gma-sweep", "version": 2, "text": "a text", "points": [point, {**point, "delta": "inf"}]}

    def read(content: bytes) -> None:
        path.write_bytes(content)
        for found in load_curve(path):
            assert isinstance(found.bleu, int | float)

    _fuzz(jsons(curve), read)


def test_links(tmp_path):
    path = tmp_path / "gold.talp"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        load_gold(path, one_based=len(content) % 2 == 0)

    _fuzz(texts(b"0-0 1-1 2p3\n\n5-4\n0-0 1p1\n"), read)


def test_lines_of_text(tmp_path):
    path = tmp_path / "text"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        with open_lines(path) as lines:
            problem = ""
            while not lines.ended:
                text = lines.next() or ""
                problem = problem or lines.problem
                words = text.split()
                assert [word for one in sentences(words, SentenceFinder(rules("de"))) for word in one] == words
        if problem:
            raise UserError(problem)

    _fuzz(texts("Am 3. Mai kam Dr. „Roth“.\nEr blieb… 5². Nein!\r\n".encode()) | st.binary(max_size=40), read)


COUNTS = dict.fromkeys(("n", "sentence", "source", "target", "words", "heard"), 1)
RESUME = {"key": "0" * 32, "model": "m", **COUNTS, "pieces": [[5, 6]], "changes": [[0, 1.0]]}
MESSAGES = [
    {"type": "hello", "v": 1, "delta": 2.0, "resume": RESUME},
    {"type": "text", "seq": 1, "text": "ab c "},
    {"type": "delta", "seq": 1, "value": "inf"},
    {"type": "tail", "text": "ab"},
    {"type": "end", "seq": 1},
]


def test_messages_of_the_protocol():
    def read(content: bytes) -> None:
        try:
            protocol.CLIENT.validate_json(content)
        except ValidationError as error:
            raise UserError(str(error)[:1000]) from None

    _fuzz(st.sampled_from(MESSAGES).flatmap(jsons), read)
