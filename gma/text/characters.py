"""Characters as people type them, in those that a vocabulary knows.

Composition to NFC is for all text. The rest is done for a character that the vocabulary has never seen, and for
quotation marks that it has hardly seen: 😀 is left out, ﬁ becomes fi, Ｇ becomes G, “Ja” becomes "Ja".
"""

import unicodedata
from collections.abc import Callable, Collection

# opening quotation marks, and the marks that close what they open
CLOSING = {"„": "“", "“": "”", "‟": "”", "‚": "‘", "«": "»", "»": "«", "‹": "›", "›": "‹", "「": "」", "『": "』"}
QUOTES = frozenset([*CLOSING, *CLOSING.values()])
QUOTE, APOSTROPHES = '"', ("'", "’")
# typed in the place of an apostrophe, between letters
LIKE_APOSTROPHES = frozenset("‘‛´`ʼ′＇")
# what Unicode's compatibility forms leave open, the nearest first
SIMILAR = {"–": "—-", "—": "–-", "⁄": "/", "。": ".", "、": ",", "’": "'", "'": "’"}
SIMILAR |= dict.fromkeys("‐‑−⁃", "-") | dict.fromkeys("‒―⸺─", "–—-")
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
        self._alphabet = frozenset(alphabet)
        familiar = {mark for mark in QUOTES & self._alphabet if has_piece(mark)}
        familiar |= {mark for mark, end in CLOSING.items() if mark in self._alphabet and end in familiar}
        self._strange_quotes = QUOTES - familiar if QUOTE in self._alphabet else frozenset()
        self._apostrophe = next((mark for mark in APOSTROPHES if mark in self._alphabet), None)
        self._marks = LIKE_APOSTROPHES | (QUOTES if self._strange_quotes else frozenset())
        self._plain = frozenset(letter for letter in self._alphabet - self._marks if not _is_format(letter))

    def known(self, word: str) -> str:
        """The word in known characters; unknown letters and digits stay, other unknown characters are left out."""
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
        for other in (compatible, unicodedata.normalize("NFD", letter), base, letter.lower()):
            other = "".join(self._found(part) for part in "".join(other.split())) if other != letter else ""
            if other and self._alphabet.issuperset(other):
                return other
        return letter if letter.isalnum() else ""


def _is_format(letter: str) -> bool:
    """Invisible: zero-width spaces, soft hyphens, marks of direction."""
    return unicodedata.category(letter) == "Cf"
