"""The sentences a translator is evaluated on: from two files, or from the corpus it was trained with."""

from dataclasses import dataclass
from pathlib import Path

from gma.corpus.token_file import MANIFEST, PreparedCorpus
from gma.errors import UserError
from gma.model.directory import Loaded
from gma.storage.digest import fingerprint
from gma.text.parallel_text import ParallelText

SPLITS = ("test", "valid")


@dataclass(frozen=True)
class EvaluationText:
    """Sources and references, one string a sentence, one blank between words.

    Attributes:
        name: for people, where the text comes from.
        indices: the place, from 0, of each sentence in the files it comes from.
        lines: how many pairs these have, those without a source included.
    """

    name: str
    sources: tuple[str, ...]
    references: tuple[str, ...]
    indices: tuple[int, ...]
    lines: int

    @property
    def fingerprint(self) -> str:
        """Another one for any other text."""
        return fingerprint(*("\n".join((*side, "")) for side in (self.sources, self.references)))


def load_text(
    loaded: Loaded,
    source: Path | None = None,
    reference: Path | None = None,
    options: tuple[str, str] = ("--source", "--reference"),
) -> EvaluationText:
    """Two files, plain or .gz; without them the test split of the model's prepared corpus, or else its valid split.

    The tokenizer's rules are applied to both sides, so that the reference of a model that lower-cases is lower-cased.

    options: what the two are called on the command line, for messages.
    """
    if (source is None) != (reference is None):
        given, missing = options if reference is None else reversed(options)
        raise UserError(f"{given} was given without {missing}; expected both, or none for the model's own corpus")
    rules = loaded.tokenizer.rules
    if source is None:
        name, pairs = _held_out(Path(loaded.config.data.folder), " and ".join(options))
    else:
        name = f"{source}, {reference}"
        pairs = list(ParallelText([source], [reference], on_bad_line="error", on_empty="keep").pairs())
    # a sentence without words has no latency
    kept = [(index, *map(rules.text, pair)) for index, pair in enumerate(pairs) if pair[0].split()]
    if not kept:
        raise UserError(f"{name}: no sentence with words; expected at least one")
    indices, sources, references = zip(*kept)
    applied = [word for word, is_on in (("lower-cased", rules.lowercase), ("unescaped", rules.unescape)) if is_on]
    if applied:
        name += f" ({', '.join(applied)} as by the model's tokenizer)"
    return EvaluationText(name, sources, references, indices, len(pairs))


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
