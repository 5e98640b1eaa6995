"""Text that arrives bit by bit: through a pipe, from a file at the pace of speech, or from the keyboard."""

import codecs
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from gma.decoding.translate import not_utf8

_LARGEST_READ = 1 << 16
_ERASE, _END = ("\x7f", "\b"), "\x04"
# what keys without a character send: arrows, Home, Delete, functions
_ESCAPE, _SEQUENCE = "\x1b", re.compile(r"\x1b(?:[\[O][0-?]*[ -/]*)?")


def arriving(descriptor: int, name: str) -> Iterator[str]:
    """What a file descriptor gives, each part as soon as it is there.

    name: of the file, for messages.
    """
    decoder = Decoder(name)
    while data := os.read(descriptor, _LARGEST_READ):
        yield decoder.feed(data)
    yield decoder.feed(b"", end=True)


class Decoder:
    """UTF-8 that may be cut inside a character, without its byte order mark. An error names line and byte."""

    def __init__(self, name: str):
        self.name = name
        self._line, self._column, self._rest = 1, 0, b""

    def feed(self, data: bytes, end: bool = False) -> str:
        data = self._rest + data
        try:
            text, used = codecs.utf_8_decode(data, "strict", end)
        except UnicodeDecodeError as error:
            if error.start == 0:
                raise not_utf8(self.name, self._line, self._column + 1, data[0]) from None
            # what precedes is heard first
            text, used = data[: error.start].decode("utf-8"), error.start
        at_start = (self._line, self._column) == (1, 0)
        self._line, self._column = self._place(data[:used])
        self._rest = data[used:]
        # as of files: else the first word would be another one
        return text.removeprefix("\ufeff") if at_start else text

    def _place(self, data: bytes) -> tuple[int, int]:
        """Line, and bytes of it that have been read, after `data`."""
        lines = data.count(b"\n")
        return self._line + lines, len(data) - data.rfind(b"\n") - 1 if lines else self._column + len(data)


def spoken(texts: Iterable[str], seconds: float) -> Iterator[str]:
    """The same text word by word, each some seconds after the one before."""
    rest = ""
    for text in texts:
        *words, rest = re.split(r"(?<=\s)", rest + text)
        if len(rest) > _LARGEST_READ:
            # no word: whoever listens will say so
            words, rest = [*words, rest], ""
        for word in words:
            if word.strip():
                time.sleep(seconds)
            yield word
    if rest:
        time.sleep(seconds)
        yield rest


@contextmanager
def single_keys() -> Iterator[None]:
    """The terminal gives every key at once, and not whole lines; afterwards it is as it was."""
    # not on every system, as nothing else here
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    # what has been typed already stays
    tty.setcbreak(sys.stdin, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def typed(show: Callable[[str], None]) -> Iterator[str]:
    """Words from the keyboard, each when the key after it is struck; Ctrl-D ends. Needs `single_keys`.

    Args:
        show: is told the word that is being typed, which can still be corrected.
    """
    word = unnamed = ""
    for text in arriving(sys.stdin.fileno(), "standard input"):
        for key in text:
            if key == _ESCAPE or (unnamed and _SEQUENCE.fullmatch(unnamed + key)):
                unnamed += key
                continue
            if unnamed:
                # the last character of a sequence belongs to it
                unnamed = ""
                continue
            if key == _END:
                yield word
                return
            if key in _ERASE:
                word = word[:-1]
            elif key.isspace():
                yield word + key
                word = ""
            elif key.isprintable():
                word += key
            show(word)
