"""The prepared corpus on disk: sentences as ids in memory-mapped files, beside the tokenizer that made them."""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from gma.corpus.integrity import CorpusError, check_files, check_ids
from gma.storage import foreign
from gma.text.tokenizer import Tokenizer
from gma.text.vocabulary import UNK, id_type

FORMAT, VERSION = "gma-corpus", 1
SIDES = ("source", "target")
MANIFEST = "corpus.json"
TOKENIZER = "tokenizer.json"
# bytes of the text of a split that is scored, which is held in memory
LARGEST_TEXT = 1 << 30
_OFFSET = np.dtype("<i8")
_ID_TYPES = [id_type(1), id_type(1 << 32)]
# every file starts with these eight bytes and its item size; another kind of file is recognised by that
_MAGIC = b"gma\x00ids\x01"
_HEADER = len(_MAGIC) + 8


class TokenFileWriter:
    """Appends sentences to `<path>.tokens` and `<path>.offsets`; two bytes an id if the vocabulary fits, else four."""

    def __init__(self, path: Path, vocabulary_size: int):
        self._type = id_type(vocabulary_size)
        self._tokens = open(f"{path}.tokens", "wb")  # noqa: SIM115  closed by __exit__
        self._offsets = open(f"{path}.offsets", "wb")  # noqa: SIM115
        self._tokens.write(_header(self._type))
        self._offsets.write(_header(_OFFSET))
        self._offsets.write(np.zeros(1, _OFFSET).tobytes())
        self.sentences = self.tokens = self.unknown = 0

    def extend(self, sentences: Sequence[np.ndarray]) -> None:
        """Append sentences, each an array of ids."""
        lengths = np.fromiter(map(len, sentences), _OFFSET, len(sentences))
        ids = np.concatenate([np.empty(0, self._type), *sentences]).astype(self._type)
        self._tokens.write(ids.tobytes())
        self._offsets.write((self.tokens + np.cumsum(lengths)).astype(_OFFSET).tobytes())
        self.sentences += len(sentences)
        self.tokens += len(ids)
        self.unknown += int(np.count_nonzero(ids == UNK))

    def __enter__(self) -> "TokenFileWriter":
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._tokens, self._offsets):
            file.flush()
            os.fsync(file.fileno())
            file.close()


class TokenFile:
    """Sentences of one side, memory-mapped: `file[i]` are the ids of sentence i, without EOS."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self._offsets = _map(Path(f"{path}.offsets"), [_OFFSET])
        self._tokens = _map(Path(f"{path}.tokens"), _ID_TYPES)
        if not len(self._offsets) or self._offsets[0] != 0 or self._offsets[-1] != len(self._tokens):
            raise CorpusError(f"{path}: .tokens and .offsets do not belong together; run `gma prepare` again")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def check(self, vocabulary: int) -> None:
        """CorpusError unless every id is one of a vocabulary of this size."""
        check_ids(self.path, self._tokens, self._offsets, vocabulary)

    def __getitem__(self, index: int) -> np.ndarray:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index: expected less than {len(self)} sentences, got {index}")
        index = int(index) % len(self)
        return self._tokens[self._offsets[index] : self._offsets[index + 1]]

    @cached_property
    def lengths(self) -> np.ndarray:
        """Ids in every sentence, int32 [sentences]."""
        return np.diff(self._offsets).astype(np.int32)

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ids of several sentences one after the other, and the length of each (both int64)."""
        starts = self._offsets[indices]
        lengths = self._offsets[indices + 1] - starts
        ends = np.cumsum(lengths)
        positions = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)
        return self._tokens[positions].astype(np.int64), lengths


class Split:
    """The sentences of one split: ids of both sides and, for what is scored, their text as given, one string each."""

    def __init__(self, source: TokenFile, target: TokenFile):
        if len(source) != len(target):
            raise CorpusError(
                f"{source.path} has {len(source)} sentences and {target.path} {len(target)}; run `gma prepare` again"
            )
        self.source = source
        self.target = target

    def __len__(self) -> int:
        return len(self.source)

    @cached_property
    def source_text(self) -> list[str]:
        return self._text(self.source)

    @cached_property
    def target_text(self) -> list[str]:
        return self._text(self.target)

    def _text(self, side: TokenFile) -> list[str]:
        path = Path(f"{side.path}.txt")
        if not path.exists():
            raise CorpusError(f"{path} is missing; only the text of what is scored is kept, not that of training")
        # not splitlines(), which would also split at the Unicode line separators
        lines = foreign.read_text(path, LARGEST_TEXT).split("\n")[:-1]
        if len(lines) != len(side):
            raise CorpusError(f"{path}: expected {len(side)} lines, found {len(lines)}; run `gma prepare` again")
        return lines


class PreparedCorpus:
    """A folder that `gma prepare` wrote."""

    def __init__(self, folder: Path, manifest: dict):
        self.folder = folder
        self.manifest = manifest
        self._splits: dict[str, Split] = {}

    @classmethod
    def open(cls, folder: Path) -> "PreparedCorpus":
        """Open a complete corpus; what a killed `gma prepare` left, or files of another size, are refused."""
        folder = Path(folder)
        path = folder / MANIFEST
        try:
            manifest = foreign.read_json(path)
        except FileNotFoundError as error:
            raise CorpusError(f"{folder}: no prepared corpus ({MANIFEST} is missing); run `gma prepare`") from error
        except foreign.ForeignFile as error:
            raise CorpusError(f"{error}; run `gma prepare` again") from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
            raise CorpusError(f"{path}: expected {FORMAT} version {VERSION}; run `gma prepare` again")
        for key in ("files", "splits", "settings"):
            if not isinstance(manifest.get(key), dict):
                raise CorpusError(f"{path}: damaged (no `{key}` in it); run `gma prepare` again")
        check_files(folder, manifest)
        return cls(folder, manifest)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder / TOKENIZER)

    @property
    def splits(self) -> list[str]:
        return list(self.manifest["splits"])

    def split(self, name: str) -> Split:
        """The split 'train', 'valid' or 'test'."""
        if name not in self.manifest["splits"]:
            raise CorpusError(f"{self.folder}: no split {name!r}; it has {', '.join(self.splits)}")
        if name not in self._splits:
            files = [TokenFile(self.folder / f"{name}.{side}") for side in SIDES]
            for file, side in zip(files, SIDES):
                file.check(getattr(self.tokenizer, side).size)
            self._splits[name] = Split(*files)
        return self._splits[name]


def _header(kind: np.dtype) -> bytes:
    return _MAGIC + kind.itemsize.to_bytes(8, "little")


def _map(path: Path, kinds: list[np.dtype]) -> np.ndarray:
    """The items of a file, read from disk when they are used."""
    try:
        with open(path, "rb") as file:
            start = file.read(_HEADER)
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error}); run `gma prepare`") from error
    kind = next((kind for kind in kinds if start == _header(kind)), None)
    items, rest = divmod(path.stat().st_size - _HEADER, kind.itemsize) if kind else (0, 1)
    if kind is None or rest:
        raise CorpusError(f"{path}: damaged, or not written by this version; run `gma prepare` again")
    # an empty file cannot be mapped
    return np.memmap(path, kind, "r", _HEADER, (items,)).view(np.ndarray) if items else np.empty(0, kind)
