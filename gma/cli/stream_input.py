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
# escape sequences of keys without a character: arrows, Home, Delete, function keys
_ESCAPE, _SEQUENCE = "\x1b", re.compile(r"\x1b(?:[\[O][0-?]*[ -/]*)?")


def arriving(descriptor: int, name: str) -> Iterator[str]:
    """Text from a file descriptor, each part as soon as it arrives.

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
            # far too long for a word: the translator will refuse it by name
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
    """Make the terminal deliver single keys instead of whole lines; restore it afterwards."""
    # Unix only, unlike the rest of this file
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    # keeps what has been typed already
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
                # this was the last character of the sequence
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
