"""The pieces of a language and their ids: whole words, or byte-pair encoding inside words.

Every word is encoded by itself, so text that arrives word by word gives the same ids. The last piece of a word carries
the marker `</w>`, so a word is known to be finished without waiting for the next one.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gma.errors import UserError
from gma.text.characters import Characters
from gma.text.rules import TextRules
from gma.text.word_counts import WordCounts

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
UNKNOWN_WORD = "⟨unk⟩"
END_OF_WORD = "</w>"
# words whose pieces are remembered, recent and older ones each, and the characters of the longest; bounded, so that
# memory does not grow with the text
CACHED_WORDS, LONGEST_CACHED = 1 << 16, 256

# so large a share of unreadable words makes a translation worth a warning
MUCH = 1 / 4

# stands for the marker inside the BPE, where it must be one character; a word that has it in its text is cut there
INSIDE_MARKER = "\ue000"
# a frequent word is given to the trainer in portions
_REPEATS = 1 << 10


def id_type(size: int) -> np.dtype:
    """Two bytes an id if all of a vocabulary's fit, else four."""
    return np.dtype("<u2" if size <= 1 << 16 else "<u4")


class _WordCache(dict[str, bytes]):
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
    def can_read(self, word: str) -> bool:
        """Whether all letters and digits of a word are in its ids."""

    @abstractmethod
    def closes_word(self, id: int) -> bool:
        """Whether a word ends with this piece. UNK ends its word; PAD, BOS and EOS are no part of one."""

    @abstractmethod
    def _text_of(self, id: int) -> str:
        """The characters a piece adds to its word."""

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """What `Tokenizer.save` writes."""

    def encode_word(self, word: str) -> tuple[int, ...]:
        """Ids of one word, the same whatever stands beside it; none if nothing in it can be read, as in 😀."""
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

    def unreadable(self, text: str) -> list[str]:
        """The words of `text` that the model cannot read, if they are a good part of it."""
        words = text.split()
        found = [word for word in words if not self.can_read(word)]
        return found if len(found) > MUCH * len(words) else []

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
    """One id per word; every other word is UNK, unless it is one of them in other characters."""

    kind = "word"

    def __init__(self, pieces: Sequence[str], rules: TextRules):
        super().__init__(pieces, rules)
        self._ids = {word: id for id, word in enumerate(pieces, len(SPECIALS))}
        self._characters = Characters(frozenset[str]().union(*pieces), self._ids.__contains__)

    @classmethod
    def train(
        cls, counts: WordCounts, rules: TextRules, *, size: int = 0, minimum_frequency: int = 1
    ) -> "WordVocabulary":
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
            raise UserError(f"vocabulary file {path}: cannot be read ({error})") from error
        header = [line.strip() for line in lines[:3]]
        if sorted(header) != ["</s>", "<s>", "<unk>"]:
            raise UserError(
                f"vocabulary file {path}: expected the lines <unk>, <s> and </s> first, got {header}; "
                "give it in this layout, or let `gma prepare` count the words"
            )
        # unescaping may make two lines the same word: the first one stands
        words = dict.fromkeys(rules.word(line.strip()) for line in lines[3:] if line.strip())
        for word in words:
            if len(word.split()) != 1:
                raise UserError(f"vocabulary file {path}: expected one word a line, got {word!r}")
        return cls(list(words), rules)

    def closes_word(self, id: int) -> bool:
        self._check_id(id)
        return id >= UNK

    def _pieces_of(self, word: str) -> tuple[int, ...]:
        if word in self._ids:
            return (self._ids[word],)
        word = self._characters.known(word)
        return (self._ids.get(word, UNK),) if word else ()

    def can_read(self, word: str) -> bool:
        return UNK not in self.encode_word(word)

    def _text_of(self, id: int) -> str:
        self._check_id(id)
        return self.pieces[id]

    def content(self) -> dict[str, Any]:
        return {"kind": self.kind, "pieces": self.pieces[len(SPECIALS) :]}


class BpeVocabulary(Vocabulary):
    """Byte-pair encoding inside words. Characters that are unknown are left out, and so there is no UNK.

    All characters of the training text are known: a model would never have been taught UNK, or pieces for single bytes.
    """

    kind = "bpe"

    def __init__(self, pieces: Sequence[str], merges: Sequence[tuple[str, str]], rules: TextRules):
        super().__init__(pieces, rules)
        from tokenizers.models import BPE

        self.merges = tuple((left, right) for left, right in merges)
        self._closes = [piece.endswith(END_OF_WORD) for piece in self.pieces]
        self._closes[UNK] = True
        self._texts = [piece.removesuffix(END_OF_WORD) for piece in self.pieces]
        known = frozenset(pieces)
        self._characters = Characters(
            {piece for piece in known if len(piece) == 1}, lambda mark: mark + END_OF_WORD in known
        )
        ids = {_inner(piece): id for id, piece in enumerate(pieces, len(SPECIALS))}
        self._model = BPE(ids, [(_inner(left), _inner(right)) for left, right in self.merges])

    @classmethod
    def train(cls, counts: WordCounts, rules: TextRules, *, size: int, minimum_frequency: int = 1) -> "BpeVocabulary":
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
        word = self._characters.without_unknown(self._characters.known(word))
        return self._ids_of(_close(_guarded(self.rules, word))) if word else ()

    def can_read(self, word: str) -> bool:
        return self._characters.all_known(self._characters.known(self.rules.word(word)))

    def _ids_of(self, segments: list[str]) -> tuple[int, ...]:
        return tuple([token.id for segment in segments for token in self._model.tokenize(segment)])

    def _text_of(self, id: int) -> str:
        self._check_id(id)
        return self._texts[id]

    def content(self) -> dict[str, Any]:
        return {"kind": self.kind, "pieces": self.pieces[len(SPECIALS) :], "merges": self.merges}


def _guarded(rules: TextRules, word: str) -> list[str]:
    """Segments of a word; also cut inside a literal `</w>`, so that no piece of text looks like the marker."""
    segments = rules.segments(word)
    if END_OF_WORD not in word:
        return segments
    cut = f"<{INSIDE_MARKER}/w>"
    return [part for segment in segments for part in segment.replace(END_OF_WORD, cut).split(INSIDE_MARKER)]


def _close(segments: list[str]) -> list[str]:
    return [*segments[:-1], segments[-1] + INSIDE_MARKER]


def _training_text(words: Iterable[tuple[str, int]], rules: TextRules) -> Iterable[str]:
    """What the BPE trainer counts: segments between spaces, the last one of each word with the marker."""
    for word, count in words:
        ruled = rules.word(word).replace(INSIDE_MARKER, "")
        if not ruled:
            continue
        segments = _close(_guarded(rules, ruled))
        while count > 0:
            yield f"{' '.join(segments)} " * min(count, _REPEATS)
            count -= _REPEATS


def _inner(piece: str) -> str:
    return piece.removesuffix(END_OF_WORD) + INSIDE_MARKER if piece.endswith(END_OF_WORD) else piece


def _outer(piece: str) -> str:
    return piece.replace(INSIDE_MARKER, END_OF_WORD)
