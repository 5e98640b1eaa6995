"""A thousand damaged model folders before the native engine: each is refused by name, or decodes; nothing crashes."""

import json
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gma.decoding import hypothesis
from gma.decoding.streaming import StreamingTranslator
from gma.errors import UserError
from gma.model import directory
from gma.model.inference import WEIGHTS, Inference
from gma_kernels import engine
from tests.support import tiny_model, tiny_run

FOLDERS = 1000
FILES = ("config.toml", "tokenizer.json", "model.safetensors")
NUMBERS = (0, 1, -1, 3, 17, 255, 2**31, 2**63, -(2**63), 2**64, 1e308, "nan", "inf", '""', "[]", "true")


def flip(data: bytes, generator: random.Random) -> bytes:
    """A few bytes are others; of weights, mostly those of the header."""
    found = bytearray(data)
    for _ in range(generator.randrange(1, 5)):
        reach = min(len(found), generator.choice((200, 4000, len(found))))
        found[generator.randrange(reach)] = generator.randrange(256)
    return bytes(found)


def cut(data: bytes, generator: random.Random) -> bytes:
    return data[: generator.randrange(len(data))]


def doubled(data: bytes, generator: random.Random) -> bytes:
    """A part comes twice."""
    start, end = sorted(generator.randrange(len(data)) for _ in range(2))
    return data[:end] + data[start:]


def renumbered(data: bytes, generator: random.Random) -> bytes:
    """A line of the settings has another number."""
    lines = data.decode().splitlines()
    places = [place for place, line in enumerate(lines) if " = " in line]
    place = generator.choice(places)
    lines[place] = f"{lines[place].split(' = ')[0]} = {generator.choice(NUMBERS)}"
    return "\n".join(lines).encode()


def retold(data: bytes, generator: random.Random) -> bytes:
    """The header of the weights says something else of a tensor: its shape, its type, its place or its name."""
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    name, other = generator.sample([key for key in header if key != "__metadata__"], 2)
    way = generator.randrange(6)
    if way == 0:
        header[name]["shape"] = [generator.choice((0, 1, 2, 16, 2**40, -1)) for _ in header[name]["shape"]]
    elif way == 1:
        header[name]["shape"] = header[name]["shape"][::-1]
    elif way == 2:
        header[name]["dtype"] = generator.choice(("F32", "F16", "BF16", "I64", "U8", "F64", "BOOL", "?"))
    elif way == 3:
        header[name]["data_offsets"] = [generator.choice((0, 4, len(data), 2**62)) for _ in range(2)]
    elif way == 4:
        header[name], header[other] = header[other], header[name]
    else:
        header[generator.choice(("", "more", other + ".weight"))] = header.pop(name)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


WAYS: dict[str, list[Callable[[bytes, random.Random], bytes]]] = {
    "config.toml": [flip, cut, doubled, renumbered, renumbered],
    "tokenizer.json": [flip, cut, doubled],
    "model.safetensors": [flip, cut, doubled, retold, retold, retold],
}


def attack(folder: Path) -> None:
    """Every mutation in turn, in place; prints how many folders were refused and how many decoded."""
    whole = {name: (folder / name).read_bytes() for name in FILES}
    counts = {"refused": 0, "decoded": 0, "no reason": 0}
    hypothesis.length_limit = lambda needed: needed + 3
    for seed in range(FOLDERS):
        generator = random.Random(seed)
        print(seed, file=sys.stderr, flush=True)  # whom a crash is due to
        name = generator.choice(FILES)
        (folder / name).write_bytes(generator.choice(WAYS[name])(whole[name], generator))
        try:
            loaded = directory.load(folder, inference=Inference("native", generator.choice(WEIGHTS)))
            stream = StreamingTranslator(loaded).open()
            stream.push("a b c ")
            stream.finish()
            counts["decoded"] += 1
        except UserError as error:
            counts["refused" if str(error).strip() else "no reason"] += 1
        (folder / name).write_bytes(whole[name])
    print(json.dumps(counts))


@pytest.mark.skipif(not engine.status()[0], reason="the native engine is missing")
def test_a_thousand_damaged_folders_are_refused_or_decode(tmp_path):
    folder = tiny_model.make(tmp_path / "model", tiny_run.make_corpus(tmp_path / "corpus"))
    command = [sys.executable, "-c", f"from {__name__} import attack, Path; attack(Path({str(folder)!r}))"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    assert sum(counts.values()) == FOLDERS
    assert counts["no reason"] == 0
    assert counts["refused"] > FOLDERS / 2
    assert counts["decoded"] > FOLDERS / 50
