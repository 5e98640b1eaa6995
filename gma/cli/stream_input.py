"""Text that arrives bit by bit: through a pipe, from a file at the pace of speech, or from the keyboard."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from gma.text.lines import Decoder

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
