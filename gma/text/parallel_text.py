"""Reading parallel text: line i of the source files belongs to line i of the target files."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gma.errors import UserError
from gma.text.lines import Lines, open_lines


class ParallelText:
    """Pairs of lines out of plain or gzipped UTF-8 files; several files of a side follow each other.

    Args:
        part: which pairs of the files make up the text, by their number from 0.
        on_bad_line: what to do with a pair that has a line that is not UTF-8 or endless: 'error' or 'drop'.
        on_empty: what to do with a pair that has an empty side: 'error', 'drop' or 'keep'.

    Attributes:
        read, bad, empty: pairs seen so far by the running iteration, and those dropped for either reason.
    """

    def __init__(
        self,
        source: Sequence[Path],
        target: Sequence[Path],
        *,
        on_bad_line: str,
        on_empty: str,
        part: Callable[[int], bool] = lambda number: True,
    ):
        if len(source) != len(target):
            raise UserError(f"expected as many source as target files, got {len(source)} and {len(target)}")
        self.files = [(Path(left), Path(right)) for left, right in zip(source, target)]
        self.part, self.on_bad_line = part, on_bad_line
        self.on_empty = on_empty
        self.read = self.bad = self.empty = 0

    @property
    def bytes(self) -> int:
        """Size of all files as they lie on disk."""
        return sum(_size(path) for pair in self.files for path in pair)

    def pairs(self, progress: Callable[[int, int], object] = lambda done, of: None) -> Iterator[tuple[str, str]]:
        """Read everything once; `progress` is told now and then how many bytes have been read, and of how many."""
        self.read = self.bad = self.empty = 0
        before, total, number = 0, self.bytes, -1
        for paths in self.files:
            with open_lines(paths[0]) as source, open_lines(paths[1]) as target:
                while True:
                    left, right = source.next(), target.next()
                    if source.ended or target.ended:
                        break
                    number += 1
                    if number % 1024 == 0:
                        progress(before + source.position() + target.position(), total)
                    if not self.part(number):
                        continue
                    self.read += 1
                    if left is None or right is None:
                        self._bad(source if left is None else target)
                    elif self.on_empty != "keep" and not (left.strip() and right.strip()):
                        self._empty(target if left.strip() else source)
                    else:
                        yield left, right
                if source.ended != target.ended:
                    raise UserError(
                        f"{paths[0]} has {source.count_all():,} lines and {paths[1]} has {target.count_all():,}; "
                        "line i of one must be the translation of line i of the other: were they made together?"
                    )
            before += _size(paths[0]) + _size(paths[1])
            progress(before, total)

    def _bad(self, lines: Lines) -> None:
        if self.on_bad_line == "error":
            raise UserError(
                f"{lines.name}, line {lines.number}: {lines.problem}; "
                'correct it, or leave such pairs out of the training text with data.on_bad_line = "drop"'
            )
        self.bad += 1

    def _empty(self, lines: Lines) -> None:
        if self.on_empty == "error":
            raise UserError(
                f"{lines.name}, line {lines.number}: empty; "
                'correct it, or leave such pairs out of the training text with data.on_empty = "drop"'
            )
        self.empty += 1


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        # reported when the file is opened
        return 0
