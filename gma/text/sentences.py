"""Where sentences end, in text that comes word by word: known with the word itself, or with the one after it.

    finder = SentenceFinder(rules("de"))
    for word in "Am 3. Mai kam Dr. Roth. Er blieb.".split():
        print(word, finder.hear(word))

A word that ends in `.`, `!`, `?` or `…` ends a sentence, at once, unless it may be an abbreviation, an ordinal, an
initial, or the end of a quotation that its sentence goes on after: then the next word decides, and no later one.
"""

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Reason = Literal["punctuation", "limit"]
# source tokens of a sentence that does not end by itself
SENTENCE_LIMIT = 256

_OPENING = "\"'„“”‚‘’»«›‹([{-–—*•"
_CLOSING = "\"'”“’‘»«›‹)]}*"
_QUOTES = "\"'”“’‘»«›‹"
_ROMAN = re.compile(r"[IVXLC]+")
# a word after which text without full stops may be cut
_COMMA = re.compile(r"[,;:–—]$|^-$")


@dataclass(frozen=True)
class Rules:
    """What a language's data file says. Words are without their full stop.

    Attributes:
        never: abbreviations that something always follows: titles, "z. B.".
        seldom: abbreviations that end a sentence where a word follows that begins one.
        endings: of words that are such abbreviations, as "Goethestr.".
        starters: words that are capitalised only at the beginning of a sentence.
        ordinals: numbers with a full stop are ordinals, up to this one; 0 for none.
    """

    never: frozenset[str] = frozenset()
    seldom: frozenset[str] = frozenset()
    endings: tuple[str, ...] = ()
    starters: frozenset[str] = frozenset()
    ordinals: int = 0


@cache
def rules(language: str) -> Rules:
    """Of a language by its code, such as "de"; of an unknown one, those that need no lists."""
    # a configured language is any text, and no path
    file = resources.files("gma.text") / "rules" / f"{language}.toml"
    if not re.fullmatch(r"[a-z]{2,3}", language) or not file.is_file():
        return Rules()
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    lists = {name: frozenset(" ".join(content[name]).split()) for name in ("never", "seldom", "starters")}
    return Rules(**lists, endings=tuple(content["endings"]), ordinals=content["ordinals"])


class Ends(NamedTuple):
    """Whether a sentence ends in front of a word, which is known only now, and whether one ends with it."""

    before: Reason | None = None
    after: Reason | None = None


class SentenceFinder:
    """Hears words in their order; remembers one word, and how long the sentence is.

    Args:
        limit: size of a sentence that has not ended by itself. From three quarters of it on a comma ends it, and at
            the limit any word does.
    """

    def __init__(self, rules: Rules, limit: float = SENTENCE_LIMIT):
        self.rules, self.limit = rules, limit
        self.size = 0.0
        self._pending: str = ""  # how the word before may have ended a sentence

    @property
    def undecided(self) -> bool:
        """Whether the next word decides if the sentence has ended."""
        return bool(self._pending)

    def hear(self, word: str, size: float = 1) -> Ends:
        """size: of the word, in the limit's unit."""
        before: Reason | None = None
        if self._pending and self._begins(word, self._pending):
            before = "punctuation"
        elif self.size and self.size + size > self.limit:
            before = "limit"
        if before:
            self.end()
        self.size += size
        kind = self._kind(word)
        self._pending = "" if kind == "end" else kind
        if kind == "end":
            self.end()
            return Ends(before, "punctuation")
        if self.size >= self.limit or (4 * self.size >= 3 * self.limit and _COMMA.search(word)):
            self.end()
            return Ends(before, "limit")
        return Ends(before)

    def end(self) -> None:
        """The sentence has ended, for whatever reason."""
        self.size, self._pending = 0.0, ""

    def _kind(self, word: str) -> str:
        """ "end" of a sentence, "" for none, or what the next word decides."""
        core = word.rstrip(_CLOSING)
        closing = word[len(core) :]
        if core.endswith(("...", "…")):
            return "ellipsis"
        if core.endswith(("?", "!")):
            return "quotation" if _quoted(closing) else "end"
        if not core.endswith("."):
            return ""
        stem = core[:-1].lstrip(_OPENING)
        if _quoted(closing):
            return "quotation"
        last = re.split(r"[-/(]", stem)[-1] or stem
        if last in self.rules.never or stem in self.rules.never:
            return ""
        if last in self.rules.seldom or stem in self.rules.seldom or last.endswith(self.rules.endings):
            return "abbreviation"
        if len(last) == 1 and last.isalpha():
            return "initial"
        if self.rules.ordinals and ((last.isdecimal() and int(last) <= self.rules.ordinals) or _ROMAN.fullmatch(last)):
            return "ordinal"
        if "." in stem and re.fullmatch(r"(?:\w{1,3}\.)+\w{1,3}", stem) and not stem[-1].isdigit():
            return "abbreviation"
        return "end"

    def _begins(self, word: str, pending: str) -> bool:
        """Whether a word begins a sentence after one that may have ended it."""
        bare = word.lstrip(_OPENING)
        if pending in ("ellipsis", "quotation"):
            # "…", sagte er; „…“ – und
            return bool(bare) and not bare[0].islower() and not word.startswith(("-", "–", "—", ",", ";"))
        return _first_letters(bare) in self.rules.starters


def _first_letters(word: str) -> str:
    return re.split(r"\W", word, maxsplit=1)[0]


def _quoted(closing: str) -> bool:
    return any(character in _QUOTES for character in closing)


def sentences(
    words: Iterable[str], finder: SentenceFinder, size: Callable[[str], float] = lambda word: 1
) -> list[list[str]]:
    """The words of a whole text by sentences; size: of a word, in the unit of the finder's limit."""
    found: list[list[str]] = [[]]
    for word in words:
        ends = finder.hear(word, size(word))
        if ends.before and found[-1]:
            found.append([])
        found[-1].append(word)
        if ends.after:
            found.append([])
    finder.end()
    return [words for words in found if words]
