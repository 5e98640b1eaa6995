"""The sentences a translator is evaluated on: from two files, or from the corpus it was trained with."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gma.corpus.token_file import MANIFEST, PreparedCorpus
from gma.errors import UserError
from gma.model.directory import Loaded
from gma.storage.digest import fingerprint
from gma.text.parallel_text import ParallelText
from gma.text.rules import TextRules

SPLITS = ("test", "valid")


@dataclass(frozen=True)
class EvaluationText:
    """Pairs of sentences as they were given, with one blank between words. A sentence without words has no latency.

    Attributes:
        name: for people, where the text comes from.
        sources, targets: what a model reads, and may be made to write; its tokenizer applies the rules to both.
        indices: the place, from 0, of each sentence in the files it comes from.
        lines: how many pairs these have, those without a source included.
        rules: of the tokenizer.
    """

    name: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    indices: tuple[int, ...]
    lines: int
    rules: TextRules

    @classmethod
    def of(cls, name: str, pairs: Sequence[tuple[str, str]], rules: TextRules) -> "EvaluationText":
        """The pairs that have a source."""
        indices = tuple(index for index, pair in enumerate(pairs) if pair[0].split())
        if not indices:
            raise UserError(f"{name}: no sentence with words; expected at least one")
        sources, targets = (tuple(" ".join(pairs[index][side].split()) for index in indices) for side in (0, 1))
        applied = [word for word, is_on in (("lower-cased", rules.lowercase), ("unescaped", rules.unescape)) if is_on]
        if applied:
            name += f" ({', '.join(applied)} as by the model's tokenizer)"
        return cls(name, sources, targets, indices, len(pairs), rules)

    @cached_property
    def references(self) -> tuple[str, ...]:
        """The targets under the rules: of a model that lower-cases, translations are compared with lower-cased ones."""
        return tuple(map(self.rules.text, self.targets))

    @property
    def fingerprint(self) -> str:
        """Another one for any other text, or for other rules that change it."""
        sides = (map(self.rules.text, self.sources), self.references)
        return fingerprint(*("\n".join((*side, "")) for side in sides))


def load_text(
    loaded: Loaded,
    source: Path | None = None,
    reference: Path | None = None,
    options: tuple[str, str] = ("--source", "--reference"),
) -> EvaluationText:
    """Two files, plain or .gz; without them the test split of the model's prepared corpus, or else its valid split.

    options: what the two are called on the command line, for messages.
    """
    if (source is None) != (reference is None):
        given, missing = options if reference is None else options[::-1]
        raise UserError(f"{given} was given without {missing}; expected both, or none for the model's own corpus")
    if source is None or reference is None:
        name, pairs = _held_out(Path(loaded.config.data.folder), " and ".join(options))
    else:
        name = f"{source}, {reference}"
        pairs = list(ParallelText([source], [reference], on_bad_line="error", on_empty="keep").pairs())
    return EvaluationText.of(name, pairs, loaded.tokenizer.rules)


def _held_out(folder: Path, options: str) -> tuple[str, list[tuple[str, str]]]:
    if not (folder / MANIFEST).exists():
        raise UserError(
            f"no {options}, and the corpus the model was trained with is not in {folder} "
            "(its data.folder); give the two files, or go to where that folder is"
        )
    corpus = PreparedCorpus.open(folder)
    for split in SPLITS:
        if split in corpus.splits and len(corpus.split(split)):
            texts = corpus.split(split)
            return f"{split} split of {folder}", list(zip(texts.source_text, texts.target_text))
    raise UserError(f"{folder} has no test or valid split with sentences; give {options}")
