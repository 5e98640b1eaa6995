"""Word links by a statistical aligner, where nobody has made them by hand: for scores of alignment and of waiting.

Links are between words as white space divides a line, so that they fit what `gma evaluate` reads; the aligner sees them
in lower case and without the punctuation around them, so that `Haus.` is `haus`.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from gma.errors import UserError
from gma.storage import atomic
from gma.terminal import say
from gma.text.parallel_text import ParallelText

BATCH = 1000
MISSING = 'gma align needs systran-align: pip install "gma[align]"'
# of the file that probabilities are learned from, beside white space
SEPARATOR = "|||"


def align(source: Path, target: Path, output: Path, console: Console, *, more: Sequence[tuple[Path, Path]] = ()) -> int:
    """Write a line of links `i-j`, source word first, from 0, for every pair of lines; returns how many links.

    more: further text that only the probabilities are learned from; a hundred thousand pairs do much.
    """
    aligner_module = _systran_align()
    own = ParallelText([source], [target], on_bad_line="error", on_empty="keep")
    other = ParallelText(*_sides(more), on_bad_line="drop", on_empty="drop")
    with TemporaryDirectory(prefix="gma-align-") as folder:
        text, forward, backward = (str(Path(folder) / name) for name in ("text", "forward", "backward"))
        learned = _write_text(Path(text), [own, other])
        if not learned:
            raise UserError(f"{source} and {target} have no pair with words on both sides; there is nothing to align")
        say(console, f"learning from {learned:,} pairs")
        aligner_module.generate_alignment_probabilities(text, forward, backward, favor_diagonal=True)
        lines = list(_links(aligner_module.Aligner(forward, backward), own))
    atomic.replace_text(output, "".join(f"{line}\n" for line in lines))
    return sum(len(line.split()) for line in lines)


def _systran_align() -> Any:
    try:
        import systran_align
    except ImportError as error:
        raise UserError(MISSING) from error
    return systran_align


def _sides(pairs: Sequence[tuple[Path, Path]]) -> tuple[list[Path], list[Path]]:
    return [source for source, _ in pairs], [target for _, target in pairs]


def _write_text(path: Path, texts: Iterable[ParallelText]) -> int:
    """All pairs with words on both sides, as the aligner reads them; how many."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for text in texts:
            for left, right in text.pairs():
                source, target = normalised(left), normalised(right)
                if source and target:
                    file.write(f"{' '.join(source)} {SEPARATOR} {' '.join(target)}\n")
                    count += 1
    return count


def _links(aligner: Any, text: ParallelText) -> Iterable[str]:
    pairs = ((normalised(left), normalised(right)) for left, right in text.pairs())
    while batch := list(islice(pairs, BATCH)):
        sources, targets = map(list, zip(*batch))
        for result in aligner.align_batch(sources, targets):
            yield " ".join(f"{i}-{j}" for i, j in sorted(result["alignments"]))


def normalised(line: str) -> list[str]:
    """One string for each word of a line."""
    return [_bare(word.lower()) for word in line.split()]


def _bare(word: str) -> str:
    """Without the punctuation around it, unless there is nothing else."""
    inside = [place for place, letter in enumerate(word) if not unicodedata.category(letter).startswith("P")]
    bare = word[inside[0] : inside[-1] + 1] if inside else word
    # it would divide the line
    return "bar" if bare == SEPARATOR else bare
