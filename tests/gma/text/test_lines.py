"""Lines and parts of UTF-8 text: what is read, and what an error names."""

import io
import random

import pytest

from gma.errors import UserError
from gma.text.lines import Decoder, read_lines


def test_a_byte_order_mark_does_not_shift_what_an_error_names():
    with pytest.raises(UserError, match=r"line 1: not UTF-8 \(byte 6 of the line is 0xff"):
        read_lines(io.BytesIO(b"\xef\xbb\xbfab\xff\n"), "text")
    assert read_lines(io.BytesIO(b"\xef\xbb\xbfab\n\xef\xbb\xbfc\n"), "text") == ["ab\n", "\ufeffc\n"]


def test_a_line_without_end_and_lines_that_end_in_cr_are_named():
    with pytest.raises(UserError, match=r"text, line 2: longer than 1,048,576 bytes"):
        read_lines(io.BytesIO(b"a\n" + b"b" * (1 << 21) + b"\nc\n"), "text")
    with pytest.raises(UserError, match="text: its lines end in CR alone"):
        read_lines(io.BytesIO(b"a\rb\r"), "text")
    assert read_lines(io.BytesIO(b"a\r\nb"), "text") == ["a\r\n", "b"]


def test_text_cut_anywhere_is_decoded():
    text = "ein Mädchen\n日本語 \ufeff🦋\n"
    generator = random.Random(0)
    # a byte order mark at the beginning is no part of the first word
    for encoding in ["utf-8", "utf-8-sig"] * 25:
        data, decoder, heard = text.encode(encoding), Decoder("text"), ""
        while data:
            count = generator.randint(1, 4)
            heard += decoder.feed(data[:count])
            data = data[count:]
        assert heard + decoder.feed(b"", end=True) == text


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"\xff", "line 1: not UTF-8 (byte 1 "),
        (b"ab\nc\xc3", "line 2: not UTF-8 (byte 2 "),
        ("ä\nöü".encode() + b"\x80x\n", "line 2: not UTF-8 (byte 5 "),
    ],
)
@pytest.mark.parametrize("count", [1, 2, 99])
def test_where_text_is_damaged(data, place, count):
    decoder = Decoder("text")
    parts = [data[start : start + count] for start in range(0, len(data), count)]
    with pytest.raises(UserError) as error:
        [*map(decoder.feed, parts), decoder.feed(b"", end=True), decoder.feed(b"", end=True)]
    assert place in str(error.value)
