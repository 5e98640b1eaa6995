"""What is done to the words of new text before they are looked up in a vocabulary."""

import unicodedata
from dataclasses import dataclass

from gma.text.characters import composed

# what the Moses tokenizer escapes; the ampersand last, or &amp;lt; would be unescaped twice
_ESCAPES = (
    ("&quot;", '"'),
    ("&apos;", "'"),
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&#124;", "|"),
    ("&#91;", "["),
    ("&#93;", "]"),
    ("&amp;", "&"),
)


@dataclass(frozen=True)
class TextRules:
    """What is done to every word of new text before it is looked up, once its characters are composed (NFC).

    Attributes:
        lowercase: lower-case it.
        unescape: undo the escapes of tokenised corpora, such as `&quot;` and `&apos;`.
        split_punctuation: pieces never reach from letters into punctuation: `shirt.` is `shirt` `.</w>`. BPE only.
    """

    lowercase: bool = False
    unescape: bool = False
    split_punctuation: bool = False

    def word(self, word: str) -> str:
        word = composed(word)
        if self.unescape and "&" in word:
            for escape, character in _ESCAPES:
                word = word.replace(escape, character)
        return word.lower() if self.lowercase else word

    def text(self, text: str) -> str:
        """The words of `text`, one space between them: what the metrics count and compare."""
        return " ".join(map(self.word, text.split()))

    def segments(self, word: str) -> list[str]:
        """The parts of a word that no piece reaches across; they join to the word."""
        if self.split_punctuation and not word.isalnum():
            return _split_punctuation(word)
        return [word]


def _split_punctuation(word: str) -> list[str]:
    """Cut a word into runs of punctuation or symbols and runs of everything else."""
    segments: list[str] = []
    last = None
    for character in word:
        # not the regular expression \W, which would also cut off combining accents
        kind = unicodedata.category(character)[0] in "PS"
        if kind is last:
            segments[-1] += character
        else:
            segments.append(character)
            last = kind
    return segments
