"""Lines of UTF-8 text, from files and bit by bit. Only a line feed ends a line; other separators are white space."""

import codecs
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gma.errors import UserError

# a longer line is no sentence, and would have to be held in memory
LONGEST_LINE = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
# some editors put it at the beginning of a file; it is no part of the first word
_BYTE_ORDER_MARK = "\ufeff"


class Lines:
    """The lines of one text, in order.

    Args:
        name: of the text, for messages.
        position: how many bytes of the file have been read.

    Attributes:
        number: of the line that was read last, from 1.
        ended: whether there are no more.
        problem: why the last line could not be used.
    """

    def __init__(self, file: BinaryIO, name: str, position: Callable[[], int] = lambda: 0):
        self.name, self.position = name, position
        self.number, self.ended, self.problem = 0, False, ""
        self._file = file

    def next(self) -> str | None:
        """The next line, or None where there is none or it is bad: see `ended` and `problem`."""
        line = self._readline()
        if not line:
            self.ended = True
            return None
        self.number += 1
        if self.number == 1 and not line.endswith(b"\n") and b"\r" in line.rstrip(b"\r"):
            raise UserError(
                f"{self.name}: its lines end in CR alone; convert them to LF, for example with `tr '\\r' '\\n'`"
            )
        if len(line) >= LONGEST_LINE and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = self._readline()
            self.problem = f"longer than {LONGEST_LINE:,} bytes"
            return None
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            self.problem = _not_utf8(error.start + 1, line[error.start])
            return None
        return text.removeprefix(_BYTE_ORDER_MARK) if self.number == 1 else text

    def count_all(self) -> int:
        """Lines in the whole text, reading on to its end."""
        while not self.ended:
            self.next()
        return self.number

    def _readline(self) -> bytes:
        try:
            return self._file.readline(LONGEST_LINE)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(
                f"{self.name}: cannot be read past line {self.number} ({error}); is the file cut short? Fetch it again"
            ) from error


@contextmanager
def open_lines(path: Path) -> Iterator[Lines]:
    """The lines of a file, plain or gzipped."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); check data.root and the file names, "
            "or fetch the files with `gma download`"
        ) from error
    with file:
        if file.peek(2)[:2] == _GZIP_MAGIC:
            yield Lines(io.BufferedReader(gzip.GzipFile(fileobj=file), 1 << 16), str(path), file.tell)
        else:
            yield Lines(file, str(path), file.tell)


def read_lines(file: BinaryIO, name: str) -> list[str]:
    """All lines of a text, each with its line feed; UserError at the first bad one."""
    lines, found = Lines(file, name), []
    while (text := lines.next()) is not None:
        found.append(text)
    if not lines.ended:
        raise UserError(f"{name}, line {lines.number}: {lines.problem}; convert the text first")
    return found


class Decoder:
    """Text that arrives in parts, which may end inside a character. An error names line and byte."""

    def __init__(self, name: str):
        self.name = name
        self._line, self._column, self._rest = 1, 0, b""

    def feed(self, data: bytes, end: bool = False) -> str:
        """The characters that are complete now; end: whether this was the last part."""
        data = self._rest + data
        try:
            text, used = codecs.utf_8_decode(data, "strict", end)
        except UnicodeDecodeError as error:
            if error.start == 0:
                problem = _not_utf8(self._column + 1, data[0])
                raise UserError(f"{self.name}, line {self._line}: {problem}; convert the text first") from None
            # text before the bad byte is handed out first
            text, used = data[: error.start].decode("utf-8"), error.start
        at_start = (self._line, self._column) == (1, 0)
        self._line, self._column = self._place(data[:used])
        self._rest = data[used:]
        return text.removeprefix(_BYTE_ORDER_MARK) if at_start else text

    def _place(self, data: bytes) -> tuple[int, int]:
        """Line, and bytes of it that have been read, after `data`."""
        lines = data.count(b"\n")
        return self._line + lines, len(data) - data.rfind(b"\n") - 1 if lines else self._column + len(data)


def _not_utf8(place: int, byte: int) -> str:
    return f"not UTF-8 (byte {place} of the line is 0x{byte:02x})"
