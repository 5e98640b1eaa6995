"""`gma translate`: lines keep their place, a file is whole or not there, and wrong options are named."""

import io
import os
import random
import threading

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from gma.cli import translate as command
from gma.cli.app import app
from gma.cli.translate import translate_file
from gma.decoding import translate as translating
from gma.decoding.streaming import StreamingTranslator
from gma.decoding.translate import translate
from gma.errors import UserError
from gma.model import directory
from tests.support import tiny_model
from tests.support.small_models import random_text, small_loaded, small_model

SILENT = Console(quiet=True)


@pytest.fixture(scope="module")
def loaded():
    return small_loaded(small_model(0, delta=1.0), delta=1.0)


@pytest.fixture(scope="module")
def texts():
    generator = random.Random(0)
    return [random_text(generator) for _ in range(12)]


def file(*lines: str) -> io.BytesIO:
    return io.BytesIO("".join(f"{line}\n" for line in lines).encode())


@pytest.mark.parametrize("portion", [1, 5, 2048])
def test_a_file_keeps_its_lines(loaded, texts, tmp_path, monkeypatch, portion):
    monkeypatch.setattr(command, "PORTION", portion)
    lines = [texts[0], "", texts[1], "   ", *texts[2:6]]
    translate_file(loaded, file(*lines), "text", tmp_path / "out.txt", SILENT, delta=0.6)
    written = (tmp_path / "out.txt").read_text("utf-8").split("\n")
    assert written == [*(translation.text for translation in translate(loaded, lines, delta=0.6)), ""]


def test_separators_inside_a_line_are_white_space(loaded, tmp_path):
    translate_file(loaded, file("a\u2028b\x0bc\r"), "text", tmp_path / "out.txt", SILENT)
    assert (tmp_path / "out.txt").read_text("utf-8") == translate(loaded, ["a b c"])[0].text + "\n"


def test_bytes_that_are_no_text_are_named_and_nothing_is_written(loaded, tmp_path):
    with pytest.raises(UserError, match=r"speech\.txt, line 2: not UTF-8 \(byte 4 of the line is 0xff\)"):
        translate_file(loaded, io.BytesIO(b"ab\nabc\xff\n"), "speech.txt", tmp_path / "out.txt", SILENT)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_whole_or_not_there(loaded, texts, tmp_path, monkeypatch):
    (tmp_path / "out.txt").write_text("before")
    monkeypatch.setattr(command, "PORTION", 2)
    calls = []

    def fail_late(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return translate(*arguments, **options)

    monkeypatch.setattr(translating, "translate", fail_late)
    with pytest.raises(KeyboardInterrupt):
        translate_file(loaded, file(*texts), "text", tmp_path / "out.txt", SILENT)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


def test_from_file_to_file_and_through_pipes(loaded, texts, tmp_path):
    """The stream agrees."""
    model = small_model(0, torch.float32, delta=1.0)
    directory.save(tmp_path / "model", model, loaded.config, loaded.tokenizer, {})
    again = directory.load(tmp_path / "model")
    expected = "".join(f"{translation.text}\n" for translation in translate(again, texts[:4], delta=0.6))
    (tmp_path / "in.txt").write_bytes(file(*texts[:4]).getvalue())
    arguments = ["translate", str(tmp_path / "model"), "--delta", "0.6"]
    # into a folder that is not there yet, as of all commands
    written = tmp_path / "new" / "out.txt"
    to_file = [*arguments, "--input", str(tmp_path / "in.txt"), "--output", str(written)]
    assert CliRunner().invoke(app, to_file, catch_exceptions=False).exit_code == 0
    assert written.read_text("utf-8") == expected
    piped = CliRunner().invoke(app, arguments, input=file(*texts[:4]).getvalue(), catch_exceptions=False)
    assert piped.stdout == expected
    stream = StreamingTranslator(again).open(0.6)
    emissions = [*stream.push(texts[0]), *stream.finish()]
    assert " ".join(emission.word for emission in emissions) == expected.split("\n")[0]
    with pytest.raises(UserError, match="nowhere"):
        CliRunner().invoke(app, [*arguments, "--input", str(tmp_path / "nowhere.txt")], catch_exceptions=False)


@pytest.mark.parametrize("name", ["translate", "stream"])
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--delta", "nan", "nan; expected a number"),
        ("--device", "abacus", "expected auto, cpu, cuda or cuda:N"),
        ("--device", "meta", "expected auto, cpu, cuda or cuda:N"),
        ("--device", "cpu:3", "expected auto, cpu, cuda or cuda:N"),
    ],
)
def test_options_that_make_no_sense_are_named(loaded, tmp_path, monkeypatch, capsys, name, option, value, message):
    directory.save(tmp_path, small_model(0, torch.float32), loaded.config, loaded.tokenizer, {})
    assert tiny_model.command(monkeypatch, name, tmp_path, option, value) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
def test_a_delay_that_never_ends_is_refused(monkeypatch, capsys, seconds):
    assert tiny_model.command(monkeypatch, "stream", "--delay", seconds) == 2
    assert "--delay" in capsys.readouterr().err


def test_a_closed_standard_input_is_named(loaded, tmp_path, monkeypatch, capsys):
    directory.save(tmp_path, small_model(0, torch.float32), loaded.config, loaded.tokenizer, {})
    monkeypatch.setattr("sys.stdin", None)
    assert tiny_model.command(monkeypatch, "translate", tmp_path) == 2
    assert "standard input is closed; give a file by --input" in capsys.readouterr().err


def test_an_output_that_is_no_plain_file(loaded, texts, tmp_path):
    (tmp_path / "in.txt").write_bytes(file(*texts[:2]).getvalue())
    with (tmp_path / "in.txt").open("rb") as source, pytest.raises(UserError, match="a folder; expected a file"):
        translate_file(loaded, source, "in.txt", tmp_path, SILENT)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text("utf-8")))
    reader.start()
    with (tmp_path / "in.txt").open("rb") as source:
        translate_file(loaded, source, "in.txt", pipe, SILENT)
    reader.join()
    assert heard == ["".join(f"{translation.text}\n" for translation in translate(loaded, texts[:2]))]
    assert pipe.is_fifo()
