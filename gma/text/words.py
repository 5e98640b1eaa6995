"""Latency in words: from source tokens needed per target token to source words needed per target word."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from gma.text.vocabulary import Vocabulary

# characters; what goes on for longer without white space is no word
LONGEST_WORD = 4096


def typed_word(word: str, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Ids of a word that somebody has typed or sent: none, so that it is left out, where it is too long for one."""
    return vocabulary.encode_word(word) if len(word) <= LONGEST_WORD else ()


def pieces_per_word(ids: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """How many tokens each word of an encoded sentence (without EOS) has."""
    ends = [place for place, token in enumerate(ids, start=1) if vocabulary.closes_word(int(token))]
    return [end - start for start, end in zip([0, *ends], ends)]


def source_word_ends(ids: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """After how many tokens each word of an encoded source is complete."""
    return list(accumulate(pieces_per_word(ids, vocabulary)))


def used_words(pieces_per_word: Sequence[int], needed: int) -> int:
    """Words up to the last one that so many source tokens reach into, and those behind it that have no tokens."""
    ends = list(accumulate(pieces_per_word))
    return max(bisect_left([0, *ends][:-1], needed), bisect_right(ends, needed))


def word_delays(
    source_pieces_per_word: Sequence[int], target_ids: Sequence[int], needed: Sequence[int], vocabulary: Vocabulary
) -> list[int]:
    """Source words each target word had to wait for: one number per word of `vocabulary.words(target_ids)`.

    A source word arrives whole, so it is needed once any of its pieces is; the source EOS adds none. A target word is
    written when its last piece is, one without an end when EOS is, and never before the words in front of it.

    Args:
        target_ids: the written tokens.
        needed: source tokens each of them needed, and, where it is known, EOS.
        vocabulary: the target's.
    """
    if len(needed) < len(target_ids):
        raise ValueError(f"needed has {len(needed)} numbers for {len(target_ids)} tokens; expected one each at least")
    # a word is needed if more tokens are needed than precede it
    before = [0, *accumulate(source_pieces_per_word)][:-1]
    furthest = list(accumulate((bisect_left(before, tokens) for tokens in needed), max))
    return [furthest[min(end, len(furthest)) - 1] for end in word_ends(target_ids, vocabulary)]


def word_ends(ids: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """After how many tokens each word of `vocabulary.words(ids)` is complete; if the last one is not, after EOS."""
    ends, begun = [], False
    for count, token in enumerate(map(int, ids), start=1):
        # special tokens and a bare end-of-word marker bring no text and begin no word
        begun = begun or bool(vocabulary.words([token]))
        if begun and vocabulary.closes_word(token):
            ends.append(count)
            begun = False
    return [*ends, len(ids) + 1] if begun else ends
