"""Word alignments: reading them, their error rate, and how many gold links a policy had read in time.

A link is a pair (source word, target word), both counted from 0.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

Link = tuple[int, int]

_LINK = re.compile(r"([0-9]+)([-p])([0-9]+)")


class GoldLinks(NamedTuple):
    """The links of one sentence pair. `possible` includes the sure ones."""

    sure: frozenset[Link]
    possible: frozenset[Link]


class AlignmentScores(NamedTuple):
    """Corpus scores; shares, not percent. Precision is against possible links, recall against sure ones."""

    error_rate: float
    precision: float
    recall: float
    links: int


class GoldCoverage(NamedTuple):
    """Of `aligned` target words with a sure link, `within` had all their source words read when they were written."""

    within: int
    aligned: int

    @property
    def share(self) -> float:
        """NaN when no target word has a sure link."""
        return self.within / self.aligned if self.aligned else float("nan")


def alignment_error_rate(hypothesis: Collection[Link], sure: Collection[Link], possible: Collection[Link]) -> float:
    """1 − (|A∩S| + |A∩P|)/(|A| + |S|) of one sentence pair.

    Sure links count as possible, listed there or not. With no link on either side nothing is wrong: 0.
    """
    return corpus_alignment_error_rate([hypothesis], [GoldLinks(frozenset(sure), frozenset(possible))]).error_rate


def corpus_alignment_error_rate(
    hypotheses: Iterable[Collection[Link]], gold: Iterable[tuple[Collection[Link], Collection[Link]]]
) -> AlignmentScores:
    """Scores over a corpus: the four counts are summed over the sentence pairs first, as published figures are."""
    hypotheses, gold = list(hypotheses), list(gold)
    if len(hypotheses) != len(gold):
        raise ValueError(f"got {len(hypotheses)} hypotheses for {len(gold)} gold sentence pairs: expected one for each")
    links = sure_links = found_sure = found_possible = 0
    for hypothesis, (sure, possible) in zip(hypotheses, gold):
        hypothesis, sure = set(hypothesis), set(sure)
        links += len(hypothesis)
        sure_links += len(sure)
        found_sure += len(hypothesis & sure)
        found_possible += len(hypothesis & (sure | set(possible)))
    claims = links + sure_links
    return AlignmentScores(
        error_rate=1 - (found_sure + found_possible) / claims if claims else 0.0,
        precision=found_possible / links if links else 1.0,
        recall=found_sure / sure_links if sure_links else 1.0,
        links=links,
    )


def gold_coverage(delays: Sequence[float], sure: Collection[Link]) -> GoldCoverage:
    """How many gold-aligned target words were written with all their source words read, j ≤ g(i) for every link.

    delays: source words read when each word of the gold target was written, so the target must have been forced.
    """
    needed: dict[int, int] = {}
    for source, target in sure:
        needed[target] = max(needed.get(target, 0), source + 1)
    if needed and max(needed) >= len(delays):
        raise ValueError(
            f"a sure link names target word {max(needed)} (from 0), but there are {len(delays)} delays: expected one "
            "delay for each word of the gold target"
        )
    return GoldCoverage(sum(delays[target] >= source for target, source in needed.items()), len(needed))


def corpus_gold_coverage(delays: Iterable[Sequence[float]], sure: Iterable[Collection[Link]]) -> GoldCoverage:
    """`gold_coverage` summed over a corpus."""
    delays, sure = list(delays), list(sure)
    if len(delays) != len(sure):
        raise ValueError(f"got delays of {len(delays)} sentences for {len(sure)} sets of links: expected one for each")
    parts = [gold_coverage(*pair) for pair in zip(delays, sure)]
    return GoldCoverage(sum(part.within for part in parts), sum(part.aligned for part in parts))


def parse_links(line: str, *, one_based: bool = False) -> GoldLinks:
    """One line of links: `i-j` sure (all there is in the pharaoh format), `ipj` possible (talp); source first."""
    sure, possible = set(), set()
    for text in line.split():
        match = _LINK.fullmatch(text)
        if not match:
            raise ValueError(f"{text!r:.60} is not a link: expected i-j (sure) or ipj (possible), source word first")
        source, kind, target = int(match[1]) - one_based, match[2], int(match[3]) - one_based
        if min(source, target) < 0:
            raise ValueError(f"{text!r} counts from 0, but one_based=True was given")
        possible.add((source, target))
        if kind == "-":
            sure.add((source, target))
    return GoldLinks(frozenset(sure), frozenset(possible))


def read_links(path: str | Path, *, one_based: bool = False) -> list[GoldLinks]:
    """A pharaoh or talp file, one sentence pair per line; an empty line is a pair without links."""
    with open(path, encoding="utf-8") as file:
        pairs = []
        for number, line in enumerate(file, start=1):
            try:
                pairs.append(parse_links(line, one_based=one_based))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
        return pairs
