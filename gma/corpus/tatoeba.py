"""Tatoeba's German–English sentence pairs: one file, split into training, validation and test text.

An English sentence often has several German ones. All pairs of one English sentence go into one split, chosen by a hash
of it, and no German sentence of validation or test is trained on: what is measured was never seen, and a newer, longer
file leaves every sentence where it was.
"""

import hashlib
import zipfile
from pathlib import Path

from gma.errors import UserError
from gma.storage import atomic

ARCHIVE, MEMBER = "deu-eng.zip", "deu.txt"
# one of a hundred English sentences goes into each of these, the rest into training
HELD_OUT = ("test", "valid")
SPLITS = ("train", *HELD_OUT)
FILES = tuple(f"{split}.{language}" for split in SPLITS for language in ("de", "en"))


def unpack(folder: Path) -> None:
    """Write train, valid and test .de and .en beside the archive in `folder`, unless they are there."""
    if all((folder / name).exists() for name in FILES):
        return
    splits = split_pairs(_pairs(folder / ARCHIVE))
    for split in SPLITS:
        for column, language in enumerate(("de", "en")):
            text = "".join(f"{pair[column]}\n" for pair in splits[split])
            atomic.replace_text(folder / f"{split}.{language}", text)


def split_pairs(pairs: list[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """(German, English) pairs by split, in their order."""
    splits: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    for german, english in pairs:
        splits[_split(english)].append((german, english))
    held_out = {german for split in HELD_OUT for german, _ in splits[split]}
    splits["train"] = [pair for pair in splits["train"] if pair[0] not in held_out]
    return splits


def _split(english: str) -> str:
    hundredth = int(hashlib.sha256(english.encode()).hexdigest()[:8], 16) % 100
    return HELD_OUT[hundredth] if hundredth < len(HELD_OUT) else "train"


def _pairs(archive: Path) -> list[tuple[str, str]]:
    """Lines of English, tab, German (and in newer files, tab, attribution)."""
    try:
        with zipfile.ZipFile(archive) as file:
            # only a line feed ends a line: a sentence may hold another separator
            lines = [line.rstrip("\r") for line in file.read(MEMBER).decode("utf-8").removesuffix("\n").split("\n")]
    except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise UserError(f"{archive}: expected a zip file with {MEMBER} in it ({error}); fetch it again") from error
    columns = [line.split("\t") for line in lines]
    short = next((number for number, line in enumerate(columns, start=1) if len(line) < 2), None)
    if short is not None:
        raise UserError(f"{archive}: line {short} of {MEMBER} has no tab; expected English, tab, German")
    return [(" ".join(german.split()), " ".join(english.split())) for english, german, *_ in columns]
