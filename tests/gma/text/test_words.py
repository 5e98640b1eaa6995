"""Delays in words, against the definition spelled out, on random sentences of random pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gma.text.rules import TextRules
from gma.text.vocabulary import BOS, EOS, PAD, UNK, BpeVocabulary
from gma.text.words import pieces_per_word, word_delays

# ids from 4: a, b, a</w>, b</w>, </w>
VOCABULARY = BpeVocabulary(["a", "b", "a</w>", "b</w>", "</w>"], [], TextRules())
OPEN, CLOSED, MARKER = (4, 5), (6, 7, UNK), 8


@st.composite
def translations(draw):
    source = draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    tokens = draw(st.lists(st.sampled_from([*OPEN, *CLOSED, MARKER, PAD, BOS]), max_size=20))
    length = sum(source) + 1  # with EOS
    needed = draw(st.lists(st.integers(0, length), min_size=len(tokens) + 1, max_size=len(tokens) + 1))
    return source, tokens, needed


def words_needed(source: list[int], tokens_needed: int) -> int:
    """The fewest whole words that bring so many tokens, EOS coming along with the last word."""
    return next(words for words in range(len(source) + 1) if sum(source[:words]) >= min(tokens_needed, sum(source)))


@settings(max_examples=300, deadline=None)
@given(translations())
def test_a_word_waits_for_what_it_and_all_before_it_needed(translation):
    source, tokens, needed = translation
    delays = word_delays(source, tokens, needed, VOCABULARY)
    assert len(delays) == len(VOCABULARY.words(tokens))
    assert delays == sorted(delays)
    assert all(0 <= delay <= len(source) for delay in delays)
    for end in range(1, len(tokens) + 1):
        part = word_delays(source, tokens[:end], needed, VOCABULARY)
        words = VOCABULARY.words(tokens[:end])
        closes = VOCABULARY.closes_word(tokens[end - 1])
        # a token that adds text is part of the last word, which waits for everything up to it, or up to EOS
        if words != VOCABULARY.words(tokens[: end - 1]):
            assert part[-1] == words_needed(source, max(needed[: end if closes else end + 1]))
        # a finished word's delay is final
        if closes:
            assert part == delays[: len(words)]


def test_by_hand():
    # source words of 2, 1 and 3 pieces, then EOS
    source = [2, 1, 3]
    tokens = [OPEN[0], CLOSED[0], CLOSED[1], CLOSED[0], OPEN[1]]
    assert word_delays(source, tokens, [0, 1, 1, 4, 7, 7], VOCABULARY) == [1, 1, 3, 3]
    assert word_delays(source, tokens, [0, 0, 3, 2, 3, 7], VOCABULARY) == [0, 2, 2, 3]
    assert word_delays(source, [], [7], VOCABULARY) == []


def test_what_eos_needs_counts_for_a_word_without_an_end_alone():
    assert word_delays([1, 1], [CLOSED[0], OPEN[0]], [1, 1, 3], VOCABULARY) == [1, 2]
    assert word_delays([1, 1], [CLOSED[0], OPEN[0]], [1, 1], VOCABULARY) == [1, 1]
    assert word_delays([1, 1], [CLOSED[0]], [1, 3], VOCABULARY) == [1]
    assert word_delays([1, 1], [CLOSED[0], EOS], [1, 3], VOCABULARY) == [1]


def test_too_few_needs_are_an_error():
    with pytest.raises(ValueError, match="needed has 1 numbers for 2 tokens"):
        word_delays([1], [CLOSED[0], CLOSED[0]], [1], VOCABULARY)


@given(st.lists(st.text("ab", min_size=1, max_size=5), max_size=8))
def test_pieces_are_counted_as_words_are_encoded(words):
    expected = [len(VOCABULARY.encode_word(word)) for word in words]
    assert pieces_per_word(VOCABULARY.encode(" ".join(words)), VOCABULARY) == expected
