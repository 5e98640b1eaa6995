"""`gma stream` as a program in a pipe and on a terminal."""

import contextlib
import io
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import time

import pytest
import torch
from rich.console import Console

from gma.cli import stream_input, stream_view
from gma.decoding.streaming import StreamingTranslator
from gma.decoding.translate import translate, translate_lines
from gma.model import directory
from tests.support.small_models import random_text, small_loaded, small_model

DELTA = -1.0  # writes early
PATIENCE = 120.0  # seconds until a test gives up on a process


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model = small_model(0, torch.float32, delta=DELTA)
    loaded = small_loaded(model, delta=DELTA)
    path = tmp_path_factory.mktemp("model")
    directory.save(path, model, loaded.config, loaded.tokenizer, {})
    return path


@contextlib.contextmanager
def started(folder, *options, **streams):
    arguments = [sys.executable, "-m", "gma", "stream", str(folder), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"}

    def heed_interrupts():
        # whoever runs the tests in the background may have had them ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(arguments, env=environment, bufsize=0, preexec_fn=heed_interrupts, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(descriptor: int, done) -> bytes:
    """What comes until `done` says that it is enough."""
    text, deadline = b"", time.monotonic() + PATIENCE
    while not done(text):
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing came after {text!r}"
        try:
            part = os.read(descriptor, 4096)
        except OSError:  # a terminal whose other end is closed
            part = b""
        if not part:
            break
        text += part
    return text


def test_a_word_comes_out_before_the_next_goes_in(folder):
    loaded, generator, expected = directory.load(folder), random.Random(0), []
    while sum(map(bool, expected)) < 3:
        text = random_text(generator, 12)
        stream = StreamingTranslator(loaded).open()
        expected = [[emission.word for emission in stream.push(f"{word} ")] for word in text.split()]
    with started(folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        begun = False
        for word, emissions in zip(text.split(), expected):
            process.stdin.write(f"{word} ".encode())
            shown = (" " * (begun and bool(emissions)) + " ".join(emissions)).encode()
            begun |= bool(emissions)
            assert read_until(process.stdout.fileno(), lambda text, shown=shown: len(text) >= len(shown)) == shown
        process.stdin.write(b"\n\nab")
        process.stdin.close()
        rest = read_until(process.stdout.fileno(), lambda text: False).decode().split("\n")
        assert process.wait(PATIENCE) == 0
    lines = [[*(word for emissions in expected for word in emissions), *rest[0].split()], *map(str.split, rest[1:])]
    assert all(line == line.strip() for line in rest[1:])
    assert lines == [*(list(each.words) for each in translate(loaded, [text, "", "ab"])), []]


def test_interrupted(folder):
    with started(folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(b"ab c de f ")
        read_until(process.stdout.fileno(), bool)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert b"Traceback" not in process.stderr.read()


def test_no_one_listens_any_more(folder):
    with started(folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"ab c de f\n" * 3)
            process.stdin.close()
        assert process.wait(PATIENCE) != 0
        assert b"Traceback" not in process.stderr.read()


def test_bytes_that_are_no_text(folder):
    with started(folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        written, errors = process.communicate(b"ab c\nab \xff\n", timeout=PATIENCE)
    assert process.returncode == 2
    assert errors.decode().startswith("standard input, line 2: not UTF-8 (byte 4 of the line is 0xff)")
    assert written.decode().split("\n")[0].split() == list(translate(directory.load(folder), ["ab c"])[0].words)


def test_on_a_terminal(folder):
    """Typed with a mistake; the word is heard when the key after it is struck; Ctrl-D ends."""
    ours, theirs = pty.openpty()
    with started(folder, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        read_until(ours, lambda text: b"read 0" in text)
        os.write(ours, b"ax\x7fb c ")
        read_until(ours, lambda text: b"read 2" in text)
        os.write(ours, b"d\x04")
        shown = read_until(ours, lambda text: False).decode()
        assert process.wait(PATIENCE) == 0
    os.close(ours)
    words = translate(directory.load(folder), ["ab c d"])[0].words
    plain = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).split())
    assert "ab c d" in plain
    assert words[-1] in plain


def test_spoken_words_are_the_same_text():
    generator = random.Random(0)
    for _ in range(20):
        text = " \n".join(random_text(generator) for _ in range(3)) + generator.choice(["", "\n", " "])
        cut = generator.randrange(len(text))
        parts = list(stream_input.spoken([text[:cut], "", text[cut:]], 0.0))
        assert "".join(parts) == text
        assert all(len(part.split()) <= 1 for part in parts)


def test_the_live_view_shows_what_is_awaited():
    loaded = small_loaded(small_model(0, delta=3.0), delta=3.0)
    shown = io.StringIO()
    view = stream_view.LiveView(Console(file=shown, force_terminal=True, width=100, color_system=None), "de", "en")
    translator = StreamingTranslator(loaded)
    stream_view.interpret(translator, ["ab c", " d\n", "\n", "ab"], view, 3.0)
    text = shown.getvalue()
    assert "read 1 · written 0 · waiting for source token" in text
    assert "ab ▁ ▁" in text.replace("ab c", "ab")
    for translation in translate(loaded, ["ab c d", "ab"], delta=3.0):
        assert translation.words[-1] in text
    assert translator.streams <= 1


def test_the_live_view_shows_the_end_of_a_long_sentence_and_no_control_characters():
    loaded = small_loaded(small_model(0, delta=1.0), delta=1.0)
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=40, height=12, color_system=None)
    view = stream_view.LiveView(console, "de", "en")
    stream_view.interpret(StreamingTranslator(loaded), ["a " * 300, "b\x1b[2Jb ", "c "], view, 1.0)
    last = next(frame for frame in shown.getvalue().split("read ") if "b�[2Jb c" in frame)
    assert "… a a" in last
    assert last.count("a") < 100
    assert "\x1b[2J" not in shown.getvalue()


def test_keys_without_a_character_type_nothing(monkeypatch):
    keys = "a\x1b[Ab\x1bOH\x1b[3~c \x1b[1;5Dd\x7fe\x04"
    monkeypatch.setattr(stream_input, "arriving", lambda *_: iter([keys[:2], keys[2:4], keys[4:]]))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(sys.stdin, "fileno", lambda: 0, raising=False)
    assert list(stream_input.typed(lambda word: None)) == ["abc ", "e"]


def test_an_endless_word_is_handed_on_unspoken():
    parts = list(stream_input.spoken(["a " + "b" * 70_000, "b" * 70_000, " c"], 0.0))
    assert [len(part) for part in parts] == [2, 70_000, 70_000, 1, 1]


def test_a_word_that_is_too_long_is_named_with_its_line(capsys):
    translator = StreamingTranslator(small_loaded(small_model(0)))
    view = stream_view.LiveView(Console(file=io.StringIO()), "de", "en")
    stream_view.interpret(translator, ["a\n", "a " * 10, "b" * 5000, "\na"], view, None)
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("warning: line 2: 'bbbbbbbbbbbbbbbbbbbb'… has 5,000 characters and is left out")


def test_several_sentences_on_a_line_are_several_sentences_and_one_line(capsysbinary):
    loaded = small_loaded(small_model(0, delta=DELTA), delta=DELTA)
    stream_view.interpret(StreamingTranslator(loaded), ["ab c! de", " f? g\n\na."], stream_view.PlainView(), DELTA)
    lines = capsysbinary.readouterr().out.decode().split("\n")
    expected = [" ".join(one.text for one in translate(loaded, part)) for part in (["ab c!", "de f?", "g"], [], ["a."])]
    assert [" ".join(line.split()) for line in lines] == [*expected, ""]
    assert translate_lines(loaded, ["ab c! de f? g", "", "a."]) == expected
