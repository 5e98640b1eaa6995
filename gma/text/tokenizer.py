"""The vocabularies of both languages of a translator, and the file they are kept in."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from gma.errors import UserError
from gma.storage import atomic, foreign
from gma.text.rules import TextRules
from gma.text.vocabulary import END_OF_WORD, INSIDE_MARKER, BpeVocabulary, Vocabulary, WordVocabulary

FORMAT, VERSION = "gma-tokenizer", 1


class Tokenizer:
    """The two vocabularies of a translator; the same object on both sides when they are joint."""

    def __init__(self, source: Vocabulary, target: Vocabulary):
        if source.rules != target.rules:
            raise ValueError(f"source and target: expected the same text rules, got {source.rules} and {target.rules}")
        self.source = source
        self.target = target

    @property
    def joint(self) -> bool:
        return self.source is self.target

    @property
    def rules(self) -> TextRules:
        return self.source.rules

    def save(self, path: Path) -> None:
        """Write everything needed for new text into one JSON file, complete or not at all."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "joint": self.joint,
            "rules": asdict(self.rules),
            "source": self.source.content(),
            "target": None if self.joint else self.target.content(),
        }
        atomic.replace_text(Path(path), json.dumps(content, ensure_ascii=False, indent=0) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read what `save` wrote. Data only: nothing in the file is ever executed."""
        try:
            content = foreign.read_json(Path(path))
        except FileNotFoundError as error:
            raise UserError(f"{path}: no such file; `gma prepare` writes one") from error
        except foreign.ForeignFile as error:
            raise UserError(f"{error}; restore the file or run `gma prepare` again") from error
        try:
            return cls._from_content(content)
        except UserError as error:
            raise UserError(f"{path}: {error}; restore the file or run `gma prepare` again") from error

    @classmethod
    def _from_content(cls, content: Any) -> "Tokenizer":
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise UserError(f'not a tokenizer of this project: expected "format": "{FORMAT}"')
        if content.get("version") != VERSION:
            raise UserError(f"expected version {VERSION}, got {content.get('version')!r}")
        rules = content.get("rules")
        names = [field.name for field in fields(TextRules)]
        if not isinstance(rules, dict) or sorted(rules) != sorted(names):
            raise UserError(f"damaged: expected rules with the keys {', '.join(names)}, got {rules!r}")
        if not all(isinstance(value, bool) for value in rules.values()):
            raise UserError(f"damaged: expected every rule to be true or false, got {rules!r}")
        source = _vocabulary(content.get("source"), TextRules(**rules), "source")
        joint = content.get("joint")
        if not isinstance(joint, bool) or joint != (content.get("target") is None):
            raise UserError("damaged: expected a target vocabulary, or joint to be true")
        return cls(source, source if joint else _vocabulary(content["target"], TextRules(**rules), "target"))


def _vocabulary(content: Any, rules: TextRules, side: str) -> Vocabulary:
    """The vocabulary in a parsed file, or an error that says what is wrong with it."""
    if not isinstance(content, dict) or content.get("kind") not in ("bpe", "word"):
        raise UserError(f"damaged: expected the {side} vocabulary to be of kind bpe or word")
    pieces = content.get("pieces")
    if not isinstance(pieces, list) or not all(isinstance(piece, str) and piece for piece in pieces):
        raise UserError(f"damaged: expected the {side} pieces to be a list of texts")
    # a piece with a line feed would break the lines of a translation
    for piece in pieces:
        if piece.split() != [piece] or (content["kind"] == "bpe" and INSIDE_MARKER in piece):
            raise UserError(f"damaged: the {side} vocabulary has the piece {piece[:40]!r}; expected a part of a word")
    known = set(pieces)
    if len(known) != len(pieces):
        raise UserError(f"damaged: the {side} vocabulary has a piece twice")
    if content["kind"] == "word":
        return WordVocabulary(pieces, rules)
    merges = content.get("merges")
    if not isinstance(merges, list):
        raise UserError(f"damaged: expected {side} merges of two known pieces into a third, got {merges!r}")
    for merge in merges:
        two = isinstance(merge, list) and len(merge) == 2 and all(isinstance(part, str) for part in merge)
        if not two or not known.issuperset([*merge, "".join(merge)]) or merge[0].endswith(END_OF_WORD):
            raise UserError(f"damaged: expected {side} merges of two known pieces into a third, got {merge!r}")
    return BpeVocabulary(pieces, merges, rules)
