"""How often each word occurs, in memory that does not grow with the text."""

from collections import Counter
from collections.abc import Iterable

from gma.text.characters import composed


class WordCounts:
    """Counts the white-space words of texts.

    Only the `limit` most frequent ones are kept: whenever there are twice as many, the others, seen a few times at most
    in a text of that size, are forgotten. Their letters stay in `letters`.
    """

    def __init__(self, texts: Iterable[str] = (), *, limit: int = 1 << 17):
        if limit < 1:
            raise ValueError(f"limit: expected at least 1, got {limit}")
        self.limit = limit
        self.letters: set[str] = set()
        self._counts: Counter[str] = Counter()
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        self._counts.update(composed(text).split())
        if len(self._counts) > 2 * self.limit:
            self._forget()

    def ranked(self) -> list[tuple[str, int]]:
        """Words with their counts, most frequent first, equally frequent ones in alphabetical order."""
        self._forget()
        return list(self._counts.items())

    def _forget(self) -> None:
        ranked = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        self._counts = Counter(dict(ranked[: self.limit]))
        for word, _ in ranked[self.limit :]:
            self.letters.update(word)
