"""From raw parallel text to a prepared corpus: vocabularies, filters, token files. Streams; memory does not grow."""

import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from gma.config import DataSettings
from gma.corpus import generated
from gma.corpus.token_file import FORMAT, MANIFEST, SIDES, TOKENIZER, VERSION, TokenFileWriter
from gma.errors import UserError
from gma.storage import atomic, foreign
from gma.storage.digest import sha256_of
from gma.storage.folders import CORPUS, check_free_for
from gma.storage.lock import locked
from gma.terminal import byte_bar
from gma.text.parallel_text import ParallelText
from gma.text.rules import TextRules
from gma.text.tokenizer import Tokenizer
from gma.text.vocabulary import BpeVocabulary, WordVocabulary
from gma.text.word_counts import WordCounts

SPLITS = ("train", "valid", "test")
CHUNK = 1000
# at most so many different words are counted; a BPE needs only the frequent ones
COUNTED_WORDS = {"bpe": 1 << 17, "word": 1 << 20}
VOCABULARIES: dict[str, type[BpeVocabulary] | type[WordVocabulary]] = {"bpe": BpeVocabulary, "word": WordVocabulary}
PARTIAL = ".partial-"


@dataclass
class SideSummary:
    """One side of a split: how many ids without EOS, and how many of them are UNK."""

    tokens: int = 0
    unknown: int = 0


@dataclass
class SplitSummary:
    """Pairs of one split; `dropped` by reason."""

    read: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("bad", "empty", "length", "ratio"), 0))
    source: SideSummary = field(default_factory=SideSummary)
    target: SideSummary = field(default_factory=SideSummary)


@dataclass(frozen=True)
class Summary:
    """What `prepare` did.

    Attributes:
        splits: pairs and tokens by split.
        source_vocabulary, target_vocabulary: their sizes; the same vocabulary when `joint`.
        vocabulary_seconds: reading the training text once and learning the vocabularies.
        encoding_seconds: reading, encoding, filtering and writing the training pairs.
        pairs_per_second: training pairs read per second of those.
        memory_before, peak_memory: bytes of the whole process, before and at most; None where this is not known.
    """

    splits: dict[str, SplitSummary]
    source_vocabulary: int
    target_vocabulary: int
    joint: bool
    vocabulary_seconds: float
    encoding_seconds: float
    pairs_per_second: float
    memory_before: int | None
    peak_memory: int | None

    def table(self) -> Table:
        table = Table("", *self.splits, title="prepared corpus")
        splits = list(self.splits.values())
        table.add_row("pairs read", *(f"{split.read:,}" for split in splits))
        table.add_row("pairs kept", *(f"{split.kept:,}" for split in splits))
        names = {"bad": "not UTF-8", "empty": "an empty side", "length": "too long", "ratio": "lengths too unequal"}
        for reason, name in names.items():
            if any(split.dropped[reason] for split in splits):
                table.add_row(f"dropped: {name}", *(f"{split.dropped[reason]:,}" for split in splits))
        for side in SIDES:
            parts = [getattr(split, side) for split in splits]
            means = [part.tokens / max(1, split.kept) for part, split in zip(parts, splits)]
            table.add_row(f"{side} tokens", *(f"{part.tokens:,}" for part in parts))
            table.add_row(f"{side} tokens a sentence", *(f"{mean:.1f}" for mean in means))
            table.add_row(f"{side} <unk>", *(f"{part.unknown / max(1, part.tokens):.2%}" for part in parts))
        table.caption = ", ".join(self._facts())
        return table

    def _facts(self) -> Iterator[str]:
        if self.joint:
            yield f"joint vocabulary {self.source_vocabulary:,}"
        else:
            yield f"vocabularies {self.source_vocabulary:,} and {self.target_vocabulary:,}"
        yield f"made in {self.vocabulary_seconds:.1f} s"
        yield f"encoding {self.pairs_per_second:,.0f} pairs/s"
        if self.peak_memory is not None and self.memory_before is not None:
            yield f"peak memory {self.peak_memory / 2**20:,.0f} MB ({self.memory_before / 2**20:,.0f} MB before)"


def prepare(settings: DataSettings, output: Path, console: Console, tokenizer: Tokenizer | None = None) -> Summary:
    """Prepare the text of `settings` in the folder `output`: complete, or not at all.

    tokenizer: to encode with; None to learn one from the training text.

    Everything is written into a folder beside the final names and moved at the end, the manifest last: a corpus without
    one does not open, so a killed run leaves none that is half done.
    """
    output = Path(output)
    check_free_for([CORPUS], output, "choose another data.folder, or another --output")
    busy = UserError(f"another process is preparing {output}; wait for it, or choose another data.folder")
    with locked(output, busy):
        for leftover in output.glob(f"{PARTIAL}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=output))
        try:
            summary = _Preparation(settings, partial, console, tokenizer).run()
            _move(partial, output)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return summary


class _Preparation:
    def __init__(self, settings: DataSettings, folder: Path, console: Console, tokenizer: Tokenizer | None):
        self.settings = settings
        self.given = tokenizer
        self.folder = folder
        self.console = console
        self.rules = TextRules(settings.lowercase, settings.unescape, settings.split_punctuation)

    def run(self) -> Summary:
        before = _memory()
        texts = self._generated() if self.settings.generated else self._given()
        # the texts that are scored are read first: a mistake in them should not show only after minutes
        for name in texts.keys() - {"train"}:
            for _ in texts[name].pairs():
                pass
        start = time.perf_counter()
        tokenizer = self.given or self._tokenizer(texts["train"])
        learned = time.perf_counter()
        splits, seconds = {}, 0.0
        for name, text in texts.items():
            begin = time.perf_counter()
            splits[name] = self._encode(name, text, tokenizer)
            seconds = seconds or time.perf_counter() - begin
        tokenizer.save(self.folder / TOKENIZER)
        self._write_manifest(splits, tokenizer)
        return Summary(
            splits,
            tokenizer.source.size,
            tokenizer.target.size,
            tokenizer.joint,
            vocabulary_seconds=learned - start,
            encoding_seconds=seconds,
            pairs_per_second=splits["train"].read / seconds,
            memory_before=before,
            peak_memory=_memory(),
        )

    def _given(self) -> dict[str, ParallelText]:
        """The texts of the settings, training first; lines that are scored are never dropped."""
        root = Path(self.settings.root)
        texts = {}
        for name in SPLITS:
            files = getattr(self.settings, name)
            if files.source:
                source, target = ([root / path for path in getattr(files, side)] for side in SIDES)
                texts[name] = self._text(name, source, target)
        if "train" in texts and (every := self.settings.held_out):
            source, target = ([pair[side] for pair in texts["train"].files] for side in (0, 1))
            texts["train"] = self._text("train", source, target, lambda number: number % every != every - 1)
            texts["valid"] = self._text("valid", source, target, lambda number: number % every == every - 1)
        if "train" not in texts:
            raise UserError(
                "data.train.source: expected at least one file, got none; name the files of the training text, or set "
                "data.generated to a number of sentences"
            )
        return texts

    def _generated(self) -> dict[str, ParallelText]:
        """The generated corpus as text; its true alignments stay beside the prepared splits that are scored."""
        texts = {}
        raw = self.folder / "generated"
        for name, pairs in generated.splits(self.settings.generated).items():
            source, target, alignment = generated.write(raw, pairs, name)
            texts[name] = self._text(name, [source], [target])
            if name != "train":
                shutil.move(alignment, self.folder / alignment.name)
        return texts

    def _text(
        self,
        name: str,
        source: Sequence[Path],
        target: Sequence[Path],
        part: Callable[[int], bool] = lambda number: True,
    ) -> ParallelText:
        bad: str = self.settings.on_bad_line
        empty: str = self.settings.on_empty
        if name != "train" and not self.settings.held_out:
            bad, empty = "error", "keep" if empty == "drop" else empty
        return ParallelText(source, target, on_bad_line=bad, on_empty=empty, part=part)

    def _tokenizer(self, train: ParallelText) -> Tokenizer:
        settings = self.settings
        if settings.source_vocabulary:
            root = Path(settings.root)
            paths = (root / settings.source_vocabulary, root / settings.target_vocabulary)
            return Tokenizer(*(WordVocabulary.read(path, self.rules) for path in paths))
        source = WordCounts(limit=COUNTED_WORDS[settings.tokenizer])
        target = source if settings.joint else WordCounts(limit=COUNTED_WORDS[settings.tokenizer])
        with byte_bar(self.console, "counting words", train.bytes) as show:
            for source_text, target_text in train.pairs(show):
                source.add(source_text)
                target.add(target_text)
        kind = VOCABULARIES[settings.tokenizer]
        with self.console.status("learning the vocabulary"):
            vocabularies = [
                kind.train(
                    counts, self.rules, size=settings.vocabulary_size, minimum_frequency=settings.minimum_frequency
                )
                for counts in ([source] if settings.joint else [source, target])
            ]
        return Tokenizer(vocabularies[0], vocabularies[-1])

    def _encode(self, name: str, text: ParallelText, tokenizer: Tokenizer) -> SplitSummary:
        """Write the token files of a split and, if it is scored, its text as it was given."""
        summary = SplitSummary()
        paths = [self.folder / f"{name}.{side}" for side in SIDES]
        writers = [TokenFileWriter(path, side.size) for path, side in zip(paths, (tokenizer.source, tokenizer.target))]
        with byte_bar(self.console, f"encoding {name}", text.bytes) as show, writers[0], writers[1]:
            pairs = text.pairs(show)
            while chunk := list(islice(pairs, CHUNK)):
                encoded = [
                    (tokenizer.source.encode_array(source), tokenizer.target.encode_array(target))
                    for source, target in chunk
                ]
                if name == "train":
                    encoded = [pair for pair in encoded if self._fits(*pair, summary.dropped)]
                else:
                    self._write_text(paths, chunk)
                for side, writer in enumerate(writers):
                    writer.extend([pair[side] for pair in encoded])
        summary.read, summary.kept = text.read, writers[0].sentences
        summary.dropped["bad"] += text.bad
        summary.dropped["empty"] += text.empty
        summary.source, summary.target = (SideSummary(writer.tokens, writer.unknown) for writer in writers)
        if not summary.kept:
            raise UserError(
                f"data.{name}: no pair is left of {summary.read:,} read (dropped: {_reasons(summary.dropped)}); "
                "check the files, data.max_length and data.max_ratio"
            )
        return summary

    def _fits(self, source: np.ndarray, target: np.ndarray, dropped: dict[str, int]) -> bool:
        longer, shorter = max(len(source), len(target)), min(len(source), len(target))
        if not shorter and self.settings.on_empty == "drop":
            dropped["empty"] += 1
            return False
        if self.settings.max_length and longer > self.settings.max_length:
            dropped["length"] += 1
            return False
        if self.settings.max_ratio and longer > self.settings.max_ratio * shorter:
            dropped["ratio"] += 1
            return False
        return True

    def _write_text(self, paths: list[Path], chunk: list[tuple[str, str]]) -> None:
        for side, path in enumerate(paths):
            with open(f"{path}.txt", "a", encoding="utf-8", newline="\n") as file:
                file.writelines(" ".join(pair[side].split()) + "\n" for pair in chunk)

    def _write_manifest(self, splits: dict[str, SplitSummary], tokenizer: Tokenizer) -> None:
        shutil.rmtree(self.folder / "generated", ignore_errors=True)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "settings": self.settings.model_dump(mode="json"),
            "vocabulary": {side: getattr(tokenizer, side).size for side in SIDES},
            "splits": {name: asdict(split) for name, split in splits.items()},
            "files": {
                path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
                for path in sorted(self.folder.iterdir())
            },
        }
        atomic.replace_text(self.folder / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


def _move(partial: Path, output: Path) -> None:
    """Replace an older corpus by a finished one; while this runs, neither can be opened."""
    old = output / MANIFEST
    names = {path.name for path in partial.iterdir()}
    if old.exists():
        try:
            stale = foreign.read_json(old)["files"].keys() - names
        except (ValueError, KeyError, AttributeError, TypeError):
            stale = set()
        old.unlink()
        for name in stale:
            (output / Path(name).name).unlink(missing_ok=True)
    for name in sorted(names - {MANIFEST}):
        os.replace(partial / name, output / name)
    os.replace(partial / MANIFEST, old)


def _reasons(dropped: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count) or "none"


def _memory() -> int | None:
    """Peak memory of this process in bytes; None where it is not known."""
    status = Path("/proc/self/status")
    if status.exists():
        # on Linux getrusage includes the memory of the parent process
        kilobytes = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), flags=re.MULTILINE)
        return int(kilobytes[1]) * 1024 if kilobytes else None
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
