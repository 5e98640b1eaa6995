"""Reading parallel text: line i of the source files belongs to line i of the target files."""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from gma.errors import UserError

# a longer line is no sentence, and would have to be held in memory
LONGEST_LINE = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = "\ufeff"


class TextError(UserError, ValueError):
    """Parallel text cannot be used; the message names file and line and what to do."""


class ParallelText:
    """Pairs of lines out of plain or gzipped UTF-8 files; several files of a side follow each other.

    Args:
        on_bad_line: what to do with a pair that has a line that is not UTF-8 or endless: 'error' or 'drop'.
        on_empty: what to do with a pair that has an empty side: 'error', 'drop' or 'keep'.

    Attributes:
        read, bad, empty: pairs seen so far by the running iteration, and those dropped for either reason.
    """

    def __init__(self, source: Sequence[Path], target: Sequence[Path], *, on_bad_line: str, on_empty: str):
        if len(source) != len(target):
            raise TextError(f"expected as many source as target files, got {len(source)} and {len(target)}")
        self.files = [(Path(left), Path(right)) for left, right in zip(source, target)]
        self.on_bad_line = on_bad_line
        self.on_empty = on_empty
        self.read = self.bad = self.empty = 0

    @property
    def bytes(self) -> int:
        """Size of all files as they lie on disk."""
        return sum(_size(path) for pair in self.files for path in pair)

    def pairs(self, advance: Callable[[int], object] = lambda position: None) -> Iterator[tuple[str, str]]:
        """Read everything once; `advance` is told now and then how many bytes of the files have been read."""
        self.read = self.bad = self.empty = 0
        before = 0
        for paths in self.files:
            with _Lines(paths[0]) as source, _Lines(paths[1]) as target:
                while True:
                    texts = source.next(), target.next()
                    if source.ended or target.ended:
                        break
                    self.read += 1
                    if self._keeps(texts, source, target):
                        yield texts
                    if self.read % 1024 == 0:
                        advance(before + source.position + target.position)
                if source.ended != target.ended:
                    raise TextError(
                        f"{paths[0]} has {source.count_all():,} lines and {paths[1]} has {target.count_all():,}; "
                        "line i of one must be the translation of line i of the other: were they made together?"
                    )
            before += _size(paths[0]) + _size(paths[1])
            advance(before)

    def _keeps(self, texts: tuple[str | None, str | None], source: "_Lines", target: "_Lines") -> bool:
        if None in texts:
            lines = source if texts[0] is None else target
            if self.on_bad_line == "error":
                raise TextError(
                    f"{lines.path}, line {lines.number}: {lines.problem}; "
                    'correct it, or leave such pairs out of the training text with data.on_bad_line = "drop"'
                )
            self.bad += 1
            return False
        if self.on_empty != "keep" and not (texts[0].strip() and texts[1].strip()):
            lines = target if texts[0].strip() else source
            if self.on_empty == "error":
                raise TextError(
                    f"{lines.path}, line {lines.number}: empty; "
                    'correct it, or leave such pairs out of the training text with data.on_empty = "drop"'
                )
            self.empty += 1
            return False
        return True


class _Lines:
    """The lines of one file. Only a line feed ends a line: the Unicode separators are white space within one."""

    def __init__(self, path: Path):
        self.path = path
        self.number = 0
        self.ended = False
        self.problem = ""

    def __enter__(self) -> "_Lines":
        try:
            self._file: BinaryIO = open(self.path, "rb")
        except OSError as error:
            raise TextError(
                f"{self.path}: cannot be read ({error.strerror}); check data.root and the file names, "
                "or fetch the files with `gma download`"
            ) from error
        zipped = self._file.peek(2)[:2] == _GZIP_MAGIC
        self._text = io.BufferedReader(gzip.GzipFile(fileobj=self._file), 1 << 16) if zipped else self._file
        return self

    def __exit__(self, *exception) -> None:
        self._file.close()

    @property
    def position(self) -> int:
        return self._file.tell()

    def next(self) -> str | None:
        """The next line, or None where there is none or it is bad: see `ended` and `problem`."""
        line = self._readline()
        if not line:
            self.ended = True
            return None
        self.number += 1
        if self.number == 1 and not line.endswith(b"\n") and b"\r" in line.rstrip(b"\r"):
            raise TextError(
                f"{self.path}: its lines end in CR alone; convert them to LF, for example with `tr '\\r' '\\n'`"
            )
        if len(line) >= LONGEST_LINE and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = self._readline()
            self.problem = f"longer than {LONGEST_LINE:,} bytes"
            return None
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            self.problem = f"not UTF-8 (byte {error.start + 1} of the line is 0x{line[error.start]:02x})"
            return None
        return text.removeprefix(_BYTE_ORDER_MARK) if self.number == 1 else text

    def count_all(self) -> int:
        """Lines in the whole file, reading on to its end."""
        while not self.ended:
            self.next()
        return self.number

    def _readline(self) -> bytes:
        try:
            return self._text.readline(LONGEST_LINE)
        except (OSError, EOFError, zlib.error) as error:
            raise TextError(
                f"{self.path}: cannot be read past line {self.number} ({error}); is the file cut short? Fetch it again"
            ) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        # said properly when it is opened
        return 0
