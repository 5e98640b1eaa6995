"""What the generated corpus is like, measured."""

from collections.abc import Sequence
from typing import NamedTuple

from gma.corpus import generated_lexicon as lexicon
from gma.corpus.generated import GeneratedPair
from gma.metrics import latency
from gma.metrics.step_sizes import monotone_delays


class Statistics(NamedTuple):
    sentences: int
    source_types: int
    target_types: int
    source_length: float  # mean, in words
    target_length: float
    moved_verbs: float  # share of the sentences in which a verb moves 3 places or more
    waiting: float  # mean lagging (AL, in words) of a translator that waits for exactly the aligned words


def statistics(pairs: Sequence[GeneratedPair]) -> Statistics:
    if not pairs:
        raise ValueError("pairs is empty; expected at least one")
    sources, targets = [pair.source.split() for pair in pairs], [pair.target.split() for pair in pairs]
    count = len(pairs)
    return Statistics(
        count,
        len({word for words in sources for word in words}),
        len({word for words in targets for word in words}),
        sum(map(len, sources)) / count,
        sum(map(len, targets)) / count,
        sum(largest_verb_move(pair) >= 3 for pair in pairs) / count,
        sum(map(waiting, pairs)) / count,
    )


def largest_verb_move(pair: GeneratedPair) -> int:
    """How far a verb moves to the front: source words before it whose translation comes after its own, at most."""
    words = pair.source.split()
    moves = [
        len({before for before, after in pair.alignment if before < i and after > j})
        for i, j in pair.alignment
        if words[i] in VERB_WORDS
    ]
    return max(moves, default=0)


def waiting(pair: GeneratedPair) -> float:
    """Average lagging of writing each word as soon as it, and all before it, have their aligned source words."""
    length, target_length = len(pair.source.split()), len(pair.target.split())
    return latency(monotone_delays(pair.alignment, target_length), length, target_length).al


def verb_words() -> frozenset[str]:
    """Every German form of every verb, particles left out: what may have to move."""
    words = {word for modal in (*lexicon.MODALS, lexicon.PERFECT) for word in modal[:2]}
    words |= {word for row in lexicon.OPINIONS for word in row[:2]}
    for verb in (*lexicon.TRANSITIVE, *lexicon.SEPARABLE, *lexicon.INTRANSITIVE):
        joined = {verb.particle + verb.singular, verb.particle + verb.plural}
        words |= joined | {verb.singular, verb.plural, verb.infinitive, verb.participle}
    return frozenset(words)


VERB_WORDS = verb_words()
