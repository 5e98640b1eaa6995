"""Translating texts and files: order, empty lines, what goes wrong, and that a file is whole or not there."""

import io
import math
import os
import random
import threading

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from gma.cli import app
from gma.decoding import greedy
from gma.decoding import translate as translating
from gma.decoding.streaming import StreamingTranslator
from gma.decoding.translate import TranslateError, read_lines, translate, translate_file
from gma.model import directory
from gma.text.parallel_text import TextError
from gma.text.words import word_delays
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


def test_each_text_gets_its_own_translation(loaded, texts):
    finished = []
    together = translate(loaded, texts, delta=0.6, progress=finished.append)
    assert sum(finished) == len(texts)
    for text, translation in zip(texts[:5], together):
        alone = translate(loaded, [text], delta=0.6, slots=1)[0]
        assert (translation.text, translation.delays, translation.tokens) == (alone.text, alone.delays, alone.tokens)
        assert translation.text.split() == list(translation.words)
        pieces = [len(loaded.tokenizer.source.encode_word(word)) for word in text.split()]
        target = loaded.tokenizer.target
        assert list(translation.delays) == word_delays(pieces, translation.tokens, translation.needed, target)
        assert translation.source_tokens == sum(pieces) + 1
        assert len(translation.seconds) == len(translation.words)
        assert list(translation.seconds) == sorted(translation.seconds)
        assert len(translation.needed) == len(translation.positions) == len(translation.tokens) + 1


def test_texts_without_words(loaded):
    finished = []
    assert [each.text for each in translate(loaded, ["", " \t", "\u2003"], progress=finished.append)] == [""] * 3
    assert sum(finished) == 3
    assert translate(loaded, []) == []


def test_a_long_source_shares_the_batch_with_few(loaded, texts, monkeypatch):
    sizes = []
    reserve = greedy.IncrementalBatch.reserve
    monkeypatch.setattr(greedy, "LONG_SOURCE", 30)
    monkeypatch.setattr(
        greedy.IncrementalBatch, "reserve", lambda batch, slots: (sizes.append(slots), reserve(batch, slots))[1]
    )
    long = " ".join("ab" for _ in range(40))
    expected = translate(loaded, [long], delta=0.6)[0]
    sizes.clear()
    translations = translate(loaded, [*texts[:3], long, *texts[3:]], delta=0.6, slots=12)
    assert translations[3].tokens == expected.tokens
    assert translations[0].tokens == translate(loaded, texts[:1], delta=0.6)[0].tokens
    assert min(sizes) <= 12 * 30 // 81 < max(sizes)


def test_every_sentence_is_in_one_portion():
    generator = random.Random(0)
    lengths = [generator.choice([5, 700, 1025, 5_000, 70_000]) for _ in range(300)]
    seen = []
    for indices, slots in greedy.portions(lengths, 64):
        seen += indices
        longest = max(lengths[index] for index in indices)
        assert slots == 1 or slots * longest <= 64 * greedy.LONG_SOURCE
        assert longest <= greedy.LONG_SOURCE or len(indices) <= slots
    assert sorted(seen) == list(range(300))


@pytest.mark.parametrize("portion", [1, 5, 2048])
def test_a_file_keeps_its_lines(loaded, texts, tmp_path, monkeypatch, portion):
    monkeypatch.setattr(translating, "PORTION", portion)
    lines = [texts[0], "", texts[1], "   ", *texts[2:6]]
    translate_file(loaded, file(*lines), "text", tmp_path / "out.txt", SILENT, delta=0.6)
    written = (tmp_path / "out.txt").read_text("utf-8").split("\n")
    assert written == [*(translation.text for translation in translate(loaded, lines, delta=0.6)), ""]


def test_separators_inside_a_line_are_white_space(loaded, tmp_path):
    translate_file(loaded, file("a\u2028b\x0bc\r"), "text", tmp_path / "out.txt", SILENT)
    assert (tmp_path / "out.txt").read_text("utf-8") == translate(loaded, ["a b c"])[0].text + "\n"


def test_bytes_that_are_no_text_are_named_and_nothing_is_written(loaded, tmp_path):
    with pytest.raises(TextError, match=r"speech\.txt, line 2: not UTF-8 \(byte 4 of the line is 0xff\)"):
        translate_file(loaded, io.BytesIO(b"ab\nabc\xff\n"), "speech.txt", tmp_path / "out.txt", SILENT)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_whole_or_not_there(loaded, texts, tmp_path, monkeypatch):
    (tmp_path / "out.txt").write_text("before")
    monkeypatch.setattr(translating, "PORTION", 2)
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


@pytest.mark.parametrize(
    ("delta", "beam", "message"),
    [
        (None, 2, "at δ = 1 this model writes while the source is still arriving"),
        (3.0, 4, "δ = 3"),
        (None, 0, "beam is 0"),
        (None, 1.5, "beam is 1.5"),
    ],
)
def test_a_beam_that_makes_no_sense(loaded, delta, beam, message):
    with pytest.raises(TranslateError, match=message):
        translate(loaded, ["ab"], delta=delta, beam=beam)


def test_a_beam_where_the_whole_source_is_awaited(loaded, texts):
    for translation, text in zip(translate(loaded, texts[:3], delta=math.inf, beam=3), texts):
        assert set(translation.delays) <= {len(text.split())}
        assert len(translation.seconds) == len(translation.words)


def test_the_command(loaded, texts, tmp_path):
    """From file to file and through pipes; the stream agrees."""
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
    with pytest.raises(TextError, match="nowhere"):
        CliRunner().invoke(app, [*arguments, "--input", str(tmp_path / "nowhere.txt")], catch_exceptions=False)


@pytest.mark.parametrize("command", ["translate", "stream"])
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--delta", "nan", "nan; expected a number"),
        ("--device", "abacus", "expected auto, cpu, cuda or cuda:N"),
        ("--device", "meta", "expected auto, cpu, cuda or cuda:N"),
        ("--device", "cpu:3", "expected auto, cpu, cuda or cuda:N"),
    ],
)
def test_options_that_make_no_sense_are_named(loaded, tmp_path, monkeypatch, capsys, command, option, value, message):
    directory.save(tmp_path, small_model(0, torch.float32), loaded.config, loaded.tokenizer, {})
    assert tiny_model.command(monkeypatch, command, tmp_path, option, value) == 2
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


def test_a_sentence_without_end_is_refused(loaded, monkeypatch):
    monkeypatch.setattr("gma.decoding.translate.LONGEST_ALONE", 20)
    with pytest.raises(TranslateError, match=r"begins with 'a a a a.*41 tokens; expected at most 20"):
        translate(loaded, ["ab c", "a " * 40])


def test_a_byte_order_mark_does_not_shift_what_an_error_names():
    with pytest.raises(TextError, match=r"line 1: not UTF-8 \(byte 6 of the line is 0xff"):
        read_lines(io.BytesIO(b"\xef\xbb\xbfab\xff\n"), "text")
    assert read_lines(io.BytesIO(b"\xef\xbb\xbfab\n\xef\xbb\xbfc\n"), "text") == ["ab\n", "\ufeffc\n"]


def test_an_output_that_is_no_plain_file(loaded, texts, tmp_path):
    (tmp_path / "in.txt").write_bytes(file(*texts[:2]).getvalue())
    with (tmp_path / "in.txt").open("rb") as source, pytest.raises(TranslateError, match="a folder; expected a file"):
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
