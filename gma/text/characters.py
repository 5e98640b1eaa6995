"""Characters as people type them, in those that a vocabulary knows.

Composition to NFC is for all text. The rest is done for a character that the vocabulary has never seen, and for
quotation marks and dashes that it has hardly seen: 😀 is left out, ﬁ becomes fi, Ｇ becomes G, “Ja” becomes "Ja".
"""

import re
import unicodedata
from collections.abc import Callable, Collection

# opening quotation marks, and the marks that close what they open
CLOSING = {"„": "“", "“": "”", "‟": "”", "‚": "‘", "«": "»", "»": "«", "‹": "›", "›": "‹", "「": "」", "『": "』"}
QUOTES = frozenset([*CLOSING, *CLOSING.values()])
QUOTE, COMMA, LOW_QUOTE, APOSTROPHES = '"', ",", "‚", ("'", "’")
# quotation marks of two characters, as they are typed before a word and behind it
CLOSING_PAIRS = re.compile(r"``|''|´´|<<|>>")
OPENING_PAIRS = re.compile(f"[,‚]{{2}}|{CLOSING_PAIRS.pattern}")
# typed in the place of an apostrophe, between letters
LIKE_APOSTROPHES = frozenset("‘‛´`ʻʼ′＇׳ꞌ")
DASHES = dict.fromkeys("‐‑−⁃－﹣", "-") | dict.fromkeys("‒―⸺─﹘", "–—-") | {"–": "—-", "—": "–-"}
# what Unicode's compatibility forms leave open, the nearest first
SIMILAR = {"⁄": "/", "’": "'", "'": "’"} | DASHES | dict(zip("。、؟،؛۔।", ".,?,;.."))
SIMILAR |= dict.fromkeys("″‶❝❞⹂〝〞〟״", QUOTE)
# of letters with a stroke, small capitals, letters in black boxes
LATIN = re.compile(r"LATIN (?:CAPITAL |SMALL )?LETTER (?:[A-Z]+ )*?([A-Z])\b")
# two format characters that are part of the spelling in some scripts
JOINERS = frozenset("\u200c\u200d")
REMEMBERED = 1 << 14


def composed(text: str) -> str:
    """NFC: one character for a letter with its accents, however it was typed."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


class Characters(dict[int, str]):
    """A table for `str.translate`, filled when a character is met.

    Args:
        alphabet: characters that the vocabulary knows.
        has_piece: whether it has a certain piece; of a frequent mark there is one that ends a word with it.
    """

    def __init__(self, alphabet: Collection[str], has_piece: Callable[[str], bool]):
        super().__init__()
        # one dash is as good as another that the model has seen more often
        rare = {dash for dash in DASHES if not has_piece(dash) and any(map(has_piece, DASHES[dash]))}
        self._alphabet = frozenset(alphabet) - rare
        familiar = {mark for mark in QUOTES & self._alphabet if has_piece(mark)}
        familiar |= {mark for mark, end in CLOSING.items() if mark in self._alphabet and end in familiar}
        self._strange_quotes = QUOTES - familiar if QUOTE in self._alphabet else frozenset()
        self._apostrophe = next((mark for mark in APOSTROPHES if mark in self._alphabet), None)
        self._marks = LIKE_APOSTROPHES | (QUOTES if self._strange_quotes else frozenset())
        self._plain = frozenset(letter for letter in self._alphabet - self._marks if not _is_format(letter))

    def known(self, word: str) -> str:
        """The word in known characters; unknown letters and digits stay, other unknown characters are left out."""
        if self._strange_quotes and OPENING_PAIRS.search(word):
            word = _without_pairs(word)
        if self._plain.issuperset(word):
            return word
        if not self._marks.isdisjoint(word):
            word = "".join(self._mark(word, place) for place in range(len(word)))
        return word.translate(self)

    def all_known(self, word: str) -> bool:
        return self._alphabet.issuperset(word)

    def without_unknown(self, word: str) -> str:
        """The rest of a word; nothing if only marks are left of letters."""
        if self.all_known(word):
            return word
        rest = "".join(filter(self._alphabet.__contains__, word))
        return rest if any(map(str.isalnum, rest)) else ""

    def _mark(self, word: str, place: int) -> str:
        """A character of a word, a quotation mark or apostrophe as the vocabulary knows it."""
        mark = word[place]
        if mark in LIKE_APOSTROPHES and word[place - 1 : place].isalpha() and word[place + 1 : place + 2].isalpha():
            return self._apostrophe or mark
        # “ opens in English and closes in German: what is familiar before a word need not be after it
        opens = not any(map(str.isalnum, word[:place])) and any(map(str.isalnum, word[place:]))
        if mark == LOW_QUOTE and not opens and COMMA in self._alphabet:
            return COMMA
        if mark in self._strange_quotes or (opens and CLOSING.get(mark) in self._strange_quotes):
            return QUOTE
        return mark

    def __missing__(self, code: int) -> str:
        if len(self) >= REMEMBERED:
            self.clear()
        self[code] = found = self._found(chr(code))
        return found

    def _found(self, letter: str) -> str:
        if _is_format(letter) and not (letter in JOINERS and letter in self._alphabet):
            return ""
        if letter in self._alphabet:
            return letter
        for other in filter(self._alphabet.__contains__, SIMILAR.get(letter, "")):
            return other
        compatible = unicodedata.normalize("NFKC", letter)
        base = "".join(part for part in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(part))
        if compatible != letter and _is_label(letter):
            return ""
        digit = str(unicodedata.digit(letter, ""))
        for other in (
            compatible,
            unicodedata.normalize("NFD", letter),
            base,
            letter.lower(),
            digit,
            _plain_letter(letter),
        ):
            other = "".join(self._found(part) for part in "".join(other.split())) if other != letter else ""
            if other and self._alphabet.issuperset(other):
                return other
        return letter if letter.isalnum() else ""


def _without_pairs(word: str) -> str:
    """``Ja'', ,,Ja'' and <<Ja>> with the quotation marks that they stand for."""
    places = [place for place, letter in enumerate(word) if letter.isalnum()]
    if not places:
        return word
    first, last = places[0], places[-1] + 1
    return OPENING_PAIRS.sub(QUOTE, word[:first]) + word[first:last] + CLOSING_PAIRS.sub(QUOTE, word[last:])


def _plain_letter(letter: str) -> str:
    """The Latin letter whose form this is, by its name: l of ł, A of 🅰; nothing of others."""
    name = unicodedata.name(letter, "")
    latin = LATIN.search(name)
    if latin is None:
        return ""
    return latin[1] if "CAPITAL LETTER" in name else latin[1].lower()


def _is_label(letter: str) -> bool:
    """™ and the like: letters, but no part of the word."""
    return unicodedata.category(letter) == "So" and unicodedata.decomposition(letter).startswith("<super>")


def _is_format(letter: str) -> bool:
    """Invisible: zero-width spaces, soft hyphens, marks of direction."""
    return unicodedata.category(letter) == "Cf"
