"""TOML and JSON that anyone may have written: plain values within bounds, or one error that says why not."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from gma.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# bytes; the time to read TOML grows with the square of the dots in a key
LARGEST_FILE, LARGEST_TOML, MOST_DOTS = 1 << 28, 1 << 18, 500
AT_ONCE = 1 << 20
DEEPEST = 64
_SURROGATE = re.compile("[\ud800-\udfff]")


class ForeignFile(UserError, ValueError):
    """A file that cannot be used; the message says which, and why."""


def read_text(path: Path, largest: int = LARGEST_FILE) -> str:
    """A UTF-8 file of at most `largest` bytes; FileNotFoundError where there is none."""
    try:
        with path.open("rb") as file:
            data = bytearray()
            while len(data) <= largest and (block := file.read(AT_ONCE)):
                data += block
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ForeignFile(f"{path}: cannot be read ({error.strerror})") from error
    if len(data) > largest:
        raise ForeignFile(f"{path}: longer than {largest:,} bytes; no such file is")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ForeignFile(f"{path}: not UTF-8 text: byte {error.start} is {data[error.start]:#04x}") from None


def read_json(path: Path) -> Any:
    return parse_json(read_text(path), str(path))


def parse_json(text: str | bytes, name: str) -> Any:
    """name: of the file, or of its line, for messages."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ForeignFile(f"{name}: nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ForeignFile(
            f"{name}: damaged, not JSON at line {error.lineno}, column {error.colno} ({error.msg})"
        ) from None
    except ValueError as error:
        raise ForeignFile(f"{name}: damaged, not JSON ({error})") from None
    return checked(value, name)


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """name: of the file, for messages."""
    if len(text) > LARGEST_TOML or any(line.count(".") > MOST_DOTS for line in text.split("\n")):
        raise ForeignFile(f"{name}: longer than {LARGEST_TOML:,} characters, or a line with {MOST_DOTS} dots")
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise ForeignFile(f"{name}: nested too deeply") from None
    except ValueError as error:  # also for a number of thousands of digits, which is no TOMLDecodeError
        raise ForeignFile(f"{name}: not a TOML file: {error}") from None
    table: dict[str, Any] = checked(value, name)
    return table


def checked(value: Any, name: str) -> Any:
    """The value itself, unless something in it is nested too deeply, or half a character."""
    level, depth = [value], 0
    while level:
        if (depth := depth + 1) > DEEPEST:
            raise ForeignFile(f"{name}: nested too deeply: more than {DEEPEST} levels")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += item.keys()
                below += item.values()
            elif isinstance(item, list):
                below += item
            elif isinstance(item, str) and not item.isascii() and _SURROGATE.search(item):
                raise ForeignFile(f"{name}: {item[:20]!r} holds half of a character (a lone surrogate)")
        level = below
    return value
