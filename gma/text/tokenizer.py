"""From words to ids and back. Every word is encoded by itself, so text that arrives word by word gives the same ids.

The last piece of a word carries the marker `</w>`, so a word is known to be finished without waiting for the next one.
"""

import json
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from gma.errors import UserError
from gma.storage import atomic
from gma.text.word_counts import WordCounts

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
UNKNOWN_WORD = "⟨unk⟩"
END_OF_WORD = "</w>"
FORMAT, VERSION = "gma-tokenizer", 1
# words whose pieces are remembered, recent and older ones each, and the characters of the longest; bounded, so that
# memory does not grow with the text
CACHED_WORDS, LONGEST_CACHED = 1 << 16, 256

# stands for the marker inside the BPE, where it must be one character; a word that has it in its text is cut there
_END = "\ue000"
# a frequent word is given to the trainer in portions
_REPEATS = 1 << 10
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


def id_type(size: int) -> np.dtype:
    """Two bytes an id if all of a vocabulary's fit, else four."""
    return np.dtype("<u2" if size <= 1 << 16 else "<u4")


class TokenizerError(UserError, ValueError):
    """A tokenizer or vocabulary file cannot be used; the message says which, why, and what to do."""


@dataclass(frozen=True)
class TextRules:
    """What is done to every word of new text before it is looked up.

    Attributes:
        lowercase: lower-case it.
        unescape: undo the escapes of tokenised corpora, such as `&quot;` and `&apos;`.
        split_punctuation: pieces never reach from letters into punctuation: `shirt.` is `shirt` `.</w>`. BPE only.
    """

    lowercase: bool = False
    unescape: bool = False
    split_punctuation: bool = False

    def word(self, word: str) -> str:
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


class _WordCache(dict):
    """The ids of recent words as bytes, which join fast; a look-up that succeeds runs no Python code."""

    def __init__(self, compute: Callable[[str], bytes]):
        super().__init__()
        self._compute = compute
        self._older: dict[str, bytes] = {}

    def __missing__(self, word: str) -> bytes:
        if len(self) >= CACHED_WORDS:
            self._older = dict(self)
            self.clear()
        ids = self._older.get(word) or self._compute(word)
        if len(word) <= LONGEST_CACHED:
            self[word] = ids
        return ids


class Vocabulary(ABC):
    """The pieces of one language (or of both) and their ids; ids 0 to 3 are PAD, BOS, EOS and UNK on every side."""

    kind: str

    def __init__(self, pieces: Sequence[str], rules: TextRules):
        self.rules = rules
        self.pieces = (*SPECIALS, *pieces)
        self._id_type = id_type(self.size)
        self._cache = _WordCache(self._encode_word)

    @property
    def size(self) -> int:
        return len(self.pieces)

    @abstractmethod
    def _pieces_of(self, word: str) -> tuple[int, ...]:
        """Ids of a word that the rules have been applied to."""

    @abstractmethod
    def closes_word(self, id: int) -> bool:
        """Whether a word ends with this piece. UNK ends its word; PAD, BOS and EOS are no part of one."""

    @abstractmethod
    def _text_of(self, id: int) -> str:
        """The characters a piece adds to its word."""

    @abstractmethod
    def _content(self) -> dict:
        """What `Tokenizer.save` writes."""

    def encode_word(self, word: str) -> tuple[int, ...]:
        """Ids of one word, never empty, the same whatever stands beside it."""
        return tuple(np.frombuffer(self._cache[word], self._id_type).tolist())

    def _encode_word(self, word: str) -> bytes:
        if word.split() != [word]:
            raise ValueError(f"word: expected text without white space, got {word!r}; use encode for several words")
        return np.array(self._pieces_of(self.rules.word(word)), self._id_type).tobytes()

    def encode(self, text: str) -> list[int]:
        """Ids of the white-space words of `text`, without BOS and EOS."""
        return self.encode_array(text).tolist()

    def encode_array(self, text: str) -> np.ndarray:
        """`encode` for large texts: an array of the smallest type that holds every id."""
        return np.frombuffer(b"".join(map(self._cache.__getitem__, text.split())), self._id_type)

    def words(self, ids: Iterable[int]) -> list[str]:
        """The words of `ids`, a trailing unfinished one included; PAD, BOS and EOS are left out, UNK shows as ⟨unk⟩."""
        words: list[str] = []
        word = ""
        for id in map(int, ids):
            if id in (PAD, BOS, EOS):
                continue
            word += UNKNOWN_WORD if id == UNK else self._text_of(id)
            # a bare marker right after a finished word adds none
            if word and self.closes_word(id):
                words.append(word)
                word = ""
        return [*words, word] if word else words

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.words(ids))

    def _check_id(self, id: int) -> None:
        if not 0 <= id < len(self.pieces):
            raise ValueError(f"id: expected 0 to {len(self.pieces) - 1}, got {id}; is this another vocabulary's?")


class WordVocabulary(Vocabulary):
    """One id per word; every other word is UNK."""

    kind = "word"

    def __init__(self, pieces: Sequence[str], rules: TextRules):
        super().__init__(pieces, rules)
        self._ids = {word: id for id, word in enumerate(pieces, len(SPECIALS))}

    @classmethod
    def train(cls, counts: WordCounts, rules: TextRules, *, size: int = 0, minimum_frequency: int = 1):
        """The words seen at least `minimum_frequency` times, most frequent first; `size` ids at most, 0 = no limit."""
        # the rules may make one of several words
        ruled: Counter[str] = Counter()
        for word, count in counts.ranked():
            ruled[rules.word(word)] += count
        ranked = sorted((-count, word) for word, count in ruled.items() if count >= minimum_frequency)
        return cls([word for _, word in ranked[: max(0, size - len(SPECIALS)) if size else None]], rules)

    @classmethod
    def read(cls, path: Path, rules: TextRules) -> "WordVocabulary":
        """Read a vocabulary file in the layout of IWSLT15: one word a line, `<unk>`, `<s>` and `</s>` first."""
        try:
            lines = Path(path).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"vocabulary file {path}: cannot be read ({error})") from error
        header = [line.strip() for line in lines[:3]]
        if sorted(header) != ["</s>", "<s>", "<unk>"]:
            raise TokenizerError(
                f"vocabulary file {path}: expected the lines <unk>, <s> and </s> first, got {header}; "
                "give it in this layout, or let `gma prepare` count the words"
            )
        # unescaping may make two lines the same word: the first one stands
        words = dict.fromkeys(rules.word(line.strip()) for line in lines[3:] if line.strip())
        for word in words:
            if len(word.split()) != 1:
                raise TokenizerError(f"vocabulary file {path}: expected one word a line, got {word!r}")
        return cls(list(words), rules)

    def closes_word(self, id: int) -> bool:
        self._check_id(id)
        return id >= UNK

    def _pieces_of(self, word: str) -> tuple[int, ...]:
        return (self._ids.get(word, UNK),)

    def _text_of(self, id: int) -> str:
        self._check_id(id)
        return self.pieces[id]

    def _content(self) -> dict:
        return {"kind": self.kind, "pieces": self.pieces[len(SPECIALS) :]}


class BpeVocabulary(Vocabulary):
    """Byte-pair encoding inside words. A word is cut at its first unknown character: what precedes, then UNK."""

    kind = "bpe"

    def __init__(self, pieces: Sequence[str], merges: Sequence[tuple[str, str]], rules: TextRules):
        super().__init__(pieces, rules)
        from tokenizers.models import BPE

        self.merges = tuple((left, right) for left, right in merges)
        self._closes = [piece.endswith(END_OF_WORD) for piece in self.pieces]
        self._closes[UNK] = True
        self._texts = [piece.removesuffix(END_OF_WORD) for piece in self.pieces]
        self._alphabet = {piece for piece in pieces if len(piece) == 1}
        ids = {_inner(piece): id for id, piece in enumerate(pieces, len(SPECIALS))}
        self._model = BPE(ids, [(_inner(left), _inner(right)) for left, right in self.merges])

    @classmethod
    def train(cls, counts: WordCounts, rules: TextRules, *, size: int, minimum_frequency: int = 1):
        """Learn at most `size` pieces, each merged from a pair seen at least `minimum_frequency` times."""
        from tokenizers import Tokenizer as Trainable
        from tokenizers import models, pre_tokenizers, trainers

        words = counts.ranked()
        trainable = Trainable(models.BPE())
        trainable.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.BpeTrainer(
            vocab_size=max(0, size - len(SPECIALS)),
            min_frequency=minimum_frequency,
            # letter by letter: in a row, some could be taken for an escape
            initial_alphabet=sorted({ruled for letter in counts.letters for ruled in rules.word(letter)}),
            show_progress=False,
        )
        trainable.train_from_iterator(_training_text(words, rules), trainer)
        model = json.loads(trainable.to_str())["model"]
        pieces = [_outer(piece) for piece, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
        merges = [(merge if isinstance(merge, list) else merge.split(" ")) for merge in model["merges"]]
        return cls(pieces, [(_outer(left), _outer(right)) for left, right in merges], rules)

    def closes_word(self, id: int) -> bool:
        self._check_id(id)
        return self._closes[id]

    def _pieces_of(self, word: str) -> tuple[int, ...]:
        if self._alphabet.issuperset(word):
            return self._ids_of(_close(_guarded(self.rules, word)))
        known = next(index for index, letter in enumerate(word) if letter not in self._alphabet)
        return (*self._ids_of(_guarded(self.rules, word[:known]) if known else []), UNK)

    def _ids_of(self, segments: list[str]) -> tuple[int, ...]:
        return tuple([token.id for segment in segments for token in self._model.tokenize(segment)])

    def _text_of(self, id: int) -> str:
        self._check_id(id)
        return self._texts[id]

    def _content(self) -> dict:
        return {"kind": self.kind, "pieces": self.pieces[len(SPECIALS) :], "merges": self.merges}


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
            "source": self.source._content(),
            "target": None if self.joint else self.target._content(),
        }
        atomic.replace_text(Path(path), json.dumps(content, ensure_ascii=False, indent=0) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read what `save` wrote. Data only: nothing in the file is ever executed."""
        try:
            text = Path(path).read_text("utf-8")
        except FileNotFoundError as error:
            raise TokenizerError(f"{path}: no such file; `gma prepare` writes one") from error
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{path}: cannot be read ({error})") from error
        try:
            return cls._from_content(json.loads(text))
        except TokenizerError as error:
            raise TokenizerError(f"{path}: {error}; restore the file or run `gma prepare` again") from error
        except json.JSONDecodeError as error:
            raise TokenizerError(
                f"{path}: damaged, not JSON at line {error.lineno} ({error.msg}); restore the file or run "
                "`gma prepare` again"
            ) from error

    @classmethod
    def _from_content(cls, content) -> "Tokenizer":
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise TokenizerError(f'not a tokenizer of this project: expected "format": "{FORMAT}"')
        if content.get("version") != VERSION:
            raise TokenizerError(f"expected version {VERSION}, got {content.get('version')!r}")
        rules = content.get("rules")
        names = [field.name for field in fields(TextRules)]
        if not isinstance(rules, dict) or sorted(rules) != sorted(names):
            raise TokenizerError(f"damaged: expected rules with the keys {', '.join(names)}, got {rules!r}")
        if not all(isinstance(value, bool) for value in rules.values()):
            raise TokenizerError(f"damaged: expected every rule to be true or false, got {rules!r}")
        source = _vocabulary(content.get("source"), TextRules(**rules), "source")
        joint = content.get("joint")
        if not isinstance(joint, bool) or joint != (content.get("target") is None):
            raise TokenizerError("damaged: expected a target vocabulary, or joint to be true")
        return cls(source, source if joint else _vocabulary(content["target"], TextRules(**rules), "target"))


def _vocabulary(content, rules: TextRules, side: str) -> Vocabulary:
    """The vocabulary in a parsed file, or an error that says what is wrong with it."""
    if not isinstance(content, dict) or content.get("kind") not in ("bpe", "word"):
        raise TokenizerError(f"damaged: expected the {side} vocabulary to be of kind bpe or word")
    pieces = content.get("pieces")
    if not isinstance(pieces, list) or not all(isinstance(piece, str) and piece for piece in pieces):
        raise TokenizerError(f"damaged: expected the {side} pieces to be a list of texts")
    known = set(pieces)
    if len(known) != len(pieces):
        raise TokenizerError(f"damaged: the {side} vocabulary has a piece twice")
    if content["kind"] == "word":
        return WordVocabulary(pieces, rules)
    merges = content.get("merges")
    for merge in merges if isinstance(merges, list) else [None]:
        two = isinstance(merge, list) and len(merge) == 2 and all(isinstance(part, str) for part in merge)
        if not two or not known.issuperset([*merge, "".join(merge)]):
            raise TokenizerError(f"damaged: expected {side} merges of two known pieces into a third, got {merge!r}")
    return BpeVocabulary(pieces, merges, rules)


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


def _guarded(rules: TextRules, word: str) -> list[str]:
    """Segments of a word; also cut inside a literal `</w>`, so that no piece of text looks like the marker."""
    segments = rules.segments(word)
    if END_OF_WORD not in word:
        return segments
    return [part for segment in segments for part in segment.replace(END_OF_WORD, f"<{_END}/w>").split(_END)]


def _close(segments: list[str]) -> list[str]:
    return [*segments[:-1], segments[-1] + _END]


def _training_text(words: Iterable[tuple[str, int]], rules: TextRules) -> Iterable[str]:
    """What the BPE trainer counts: segments between spaces, the last one of each word with the marker."""
    for word, count in words:
        ruled = rules.word(word).replace(_END, "")
        if not ruled:
            continue
        segments = _close(_guarded(rules, ruled))
        while count > 0:
            yield f"{' '.join(segments)} " * min(count, _REPEATS)
            count -= _REPEATS


def _inner(piece: str) -> str:
    return piece.removesuffix(END_OF_WORD) + _END if piece.endswith(END_OF_WORD) else piece


def _outer(piece: str) -> str:
    return piece.replace(_END, END_OF_WORD)
