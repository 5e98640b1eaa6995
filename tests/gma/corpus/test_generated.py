"""The generated corpus is what it says: German order, true alignments, unseen test sentences, the same everywhere."""

import hashlib
from collections import defaultdict

import pytest

from gma.corpus import generated
from tests.support import generated_statistics

SENTENCES = 6000


@pytest.fixture(scope="module")
def pairs() -> list[generated.GeneratedPair]:
    return generated.generate(SENTENCES, seed=1)


def test_size_and_order_are_those_of_the_design(pairs):
    numbers = generated_statistics.statistics(pairs)
    assert numbers.sentences == SENTENCES
    assert min(numbers.source_types, numbers.target_types) >= 200
    assert numbers.source_length >= 10
    assert numbers.moved_verbs >= 0.4
    # waiting for the aligned words only must leave room below half a sentence
    assert 1 < numbers.waiting <= 0.25 * numbers.source_length


def test_verbs_move_by_their_place_in_the_sentence_too(pairs):
    verbs = generated_statistics.VERB_WORDS

    def moved(pair):
        words = pair.source.split()
        return any(words[i] in verbs and i - j >= 3 for i, j in pair.alignment)

    assert sum(map(moved, pairs)) >= 0.4 * len(pairs)
    # not too far: most of the sentence can be translated without it
    assert max(map(generated_statistics.largest_verb_move, pairs)) <= 10


def test_links_join_words_that_are_translations(pairs):
    """A link that is off by one would give a word many partners; and little is ambiguous."""
    partners = defaultdict(set)
    for pair in pairs:
        source, target = pair.source.split(), pair.target.split()
        for i, j in pair.alignment:
            partners[source[i]].add(target[j])
    assert max(map(len, partners.values())) <= 6
    assert sum(len(words) == 1 for words in partners.values()) >= 0.9 * len(partners)
    assert partners["Hund"] == {"dog"}
    assert partners["im"] == {"in", "the"}
    assert partners["gesehen"] == {"seen"}
    assert partners["eingeladen"] == {"invited"}
    assert partners["ein"] == {"a", "invites", "invite"}
    assert partners["Tag"] == {"daily"}


def test_text_is_words_with_single_spaces(pairs):
    for pair in pairs:
        assert pair.source == " ".join(pair.source.split())
        assert pair.target == " ".join(pair.target.split())


def test_every_target_word_is_linked_and_only_commas_of_the_source_are_not(pairs):
    kinds = set()
    for pair in pairs:
        source, target = pair.source.split(), pair.target.split()
        assert all(0 <= i < len(source) and 0 <= j < len(target) for i, j in pair.alignment)
        assert {j for _, j in pair.alignment} == set(range(len(target)))
        assert {source[i] for i in set(range(len(source))) - {i for i, _ in pair.alignment}} <= {","}
        left, right = [i for i, _ in pair.alignment], [j for _, j in pair.alignment]
        kinds |= {"one to two"} if len(set(left)) < len(left) else set()
        kinds |= {"two to one"} if len(set(right)) < len(right) else set()
    assert kinds == {"one to two", "two to one"}


def test_examples_read_as_german_and_english(pairs):
    by_source = {pair.source: pair for pair in pairs}
    pair = by_source["Anna fürchtet , dass niemand deine kleine Maus stehlen muss ."]
    assert pair.target == "Anna fears that nobody must steal your small mouse ."
    assert " ".join(f"{i}-{j}" for i, j in sorted(pair.alignment)) == "0-0 1-1 3-2 4-3 5-6 6-7 7-8 8-5 9-4 10-9"
    assert generated_statistics.largest_verb_move(pair) == 4


def test_the_seed_decides_and_a_longer_corpus_starts_with_the_shorter(pairs):
    assert generated.generate(SENTENCES // 2, seed=1) == pairs[: SENTENCES // 2]
    assert generated.generate(100, seed=2) != pairs[:100]
    assert generated.generate(0, seed=1) == []
    # of the text itself: another Python or platform must make the same corpus
    text = "\n".join(f"{pair.source}\t{pair.target}\t{sorted(pair.alignment)}" for pair in pairs[:1000])
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "20a67342f0db26c8044f7758c17bdea36e0cc196e04c5fd95c1f0b18cc738586"
    )


def test_held_out_sentences_are_unseen_and_fixed():
    small, large = generated.splits(500, seed=3, held_out=200), generated.splits(3000, seed=3, held_out=200)
    assert {name: len(split) for name, split in large.items()} == {"train": 3000, "valid": 200, "test": 200}
    assert (small["valid"], small["test"]) == (large["valid"], large["test"])
    sources = [{pair.source for pair in split} for split in large.values()]
    assert sum(map(len, sources)) == len(set().union(*sources)) == 3400
    # every word of the held-out sentences can be learned
    known = {word for pair in generated.splits(5000)["train"] for word in f"{pair.source} {pair.target}".split()}
    assert {word for pair in generated.splits(0)["test"] for word in f"{pair.source} {pair.target}".split()} <= known


def test_files_hold_the_same(tmp_path, pairs):
    source, target, alignment = generated.write(tmp_path / "new", pairs[:50], "test")
    assert source.read_text(encoding="utf-8").splitlines() == [pair.source for pair in pairs[:50]]
    assert target.read_text(encoding="utf-8").splitlines() == [pair.target for pair in pairs[:50]]
    links = [
        frozenset(tuple(map(int, link.split("-"))) for link in line.split())
        for line in alignment.read_text(encoding="utf-8").splitlines()
    ]
    assert links == [pair.alignment for pair in pairs[:50]]


def test_a_in_english_never_stands_before_a_vowel(pairs):
    words = [word for pair in pairs for word in zip(pair.target.split(), pair.target.split()[1:])]
    assert not [after for before, after in words if before == "a" and after[0] in "aeiou"]


def test_wrong_calls():
    with pytest.raises(ValueError, match="sentences is -1; expected 0 or more"):
        generated.generate(-1, seed=1)
    with pytest.raises(ValueError, match="pairs is empty"):
        generated_statistics.statistics([])
