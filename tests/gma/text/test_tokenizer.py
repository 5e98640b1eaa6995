"""Words to ids and back: exactness, independence of the context, markers, rules, and files that are damaged."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gma.errors import UserError
from gma.text import vocabulary as module
from gma.text.characters import composed
from gma.text.rules import TextRules
from gma.text.tokenizer import Tokenizer
from gma.text.vocabulary import BOS, EOS, PAD, UNK, BpeVocabulary, Vocabulary, WordVocabulary
from gma.text.word_counts import WordCounts

TEXTS = [
    "Ein kleines Mädchen im roten shirt spielt.",
    "A little girl in a red shirt. She wears a shirt, not two shirts!",
    "»Ja«, sagte er: a</w>b <s> </s> <unk> (shirt) don't e-mail 3,50 & 'so' \U0001f600 a\u0301",
] * 3
LETTERS = sorted({letter for text in TEXTS for letter in composed(text) if not letter.isspace()})
RULES = [
    TextRules(),
    TextRules(split_punctuation=True),
    TextRules(lowercase=True, unescape=True, split_punctuation=True),
]


def bpe(rules: TextRules, size: int = 150) -> BpeVocabulary:
    return BpeVocabulary.train(WordCounts(TEXTS), rules, size=size)


VOCABULARIES: list[Vocabulary] = [
    *(bpe(rules) for rules in RULES),
    # no merges: every letter a piece, the marker too
    bpe(TextRules(), size=10),
    WordVocabulary.train(WordCounts(TEXTS), TextRules()),
]
BPE = [vocabulary for vocabulary in VOCABULARIES if isinstance(vocabulary, BpeVocabulary)]

known_words = st.text(st.sampled_from(LETTERS), min_size=1, max_size=12)
any_words = st.text(st.characters(exclude_categories=("Z", "C")), min_size=1, max_size=8)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_training_text_comes_back(vocabulary):
    for text in TEXTS:
        assert vocabulary.decode(vocabulary.encode(text)) == vocabulary.rules.text(text)


@settings(max_examples=200, deadline=None)
@given(words=st.lists(known_words, max_size=8), index=st.integers(0, len(BPE) - 1))
def test_any_words_of_known_letters_come_back(words, index):
    vocabulary = BPE[index]
    ids = vocabulary.encode("  ".join(words))
    assert UNK not in ids
    assert vocabulary.words(ids) == [vocabulary.rules.word(word) for word in words]


@settings(max_examples=200, deadline=None)
@given(words=st.lists(st.one_of(known_words, any_words), max_size=8), index=st.integers(0, len(VOCABULARIES) - 1))
def test_every_word_is_encoded_by_itself_and_closed_by_its_last_piece_only(words, index):
    vocabulary = VOCABULARIES[index]
    words = " ".join(words).split()
    pieces = [vocabulary.encode_word(word) for word in words]
    assert vocabulary.encode(" ".join(words)) == [id for word in pieces for id in word]
    for ids in filter(None, pieces):
        assert [vocabulary.closes_word(id) for id in ids] == [False] * (len(ids) - 1) + [True]
    # whatever is unknown, the words that say something are kept
    assert len(vocabulary.words([id for ids in pieces for id in ids])) == len(list(filter(None, pieces)))
    for word, ids in zip(words, pieces):
        assert ids or not vocabulary.can_read(word) or not any(map(str.isalnum, word))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_specials_are_no_words_and_never_made_from_text(vocabulary):
    assert not any(vocabulary.closes_word(id) for id in (PAD, BOS, EOS))
    assert vocabulary.closes_word(UNK)
    assert vocabulary.words([BOS, UNK, UNK, EOS, PAD]) == ["⟨unk⟩", "⟨unk⟩"]
    assert not {PAD, BOS, EOS} & set(vocabulary.encode("<pad> <s> </s> <unk> </w>"))
    with pytest.raises(ValueError, match=f"0 to {vocabulary.size - 1}, got {vocabulary.size}"):
        vocabulary.closes_word(vocabulary.size)
    for word in ("", " ", "two words", "end\n"):
        with pytest.raises(ValueError, match="white space"):
            vocabulary.encode_word(word)


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("shirtЖshirt Ж red", ["shirtshirt", "red"]),
        ("\U0001f680red \U0001f680 #red red\u2764\ufe0f", ["red", "red", "red"]),
        # a private character stands for the marker inside; in text it is unknown like any other
        ("re\ue000d", ["red"]),
        # what a terminal passes on for bytes that are not UTF-8
        ("re\udcffd", ["red"]),
        ("Ma\u0308dchen", ["Mädchen"]),
        ("\ufb01nger ｓｈｉｒｔ 𝐬𝐡𝐢𝐫𝐭 Ⅰ", ["finger", "shirt", "shirt", "I"]),
        ("r\u200be\u00add \u202ered\u202c \ufeff", ["red", "red"]),
        ("rèd \u2010 don\u2019t don\u00b4t 3\u2044e", ["red", "-", "don't", "don't", "3/e"]),
    ],
)
def test_what_people_type_reaches_known_pieces(typed, read):
    vocabulary = BpeVocabulary.train(WordCounts([*TEXTS, "finger I"]), TextRules(), size=200)
    ids = vocabulary.encode(typed)
    assert UNK not in ids
    assert vocabulary.words(ids) == read
    words = WordVocabulary.train(WordCounts([*TEXTS, "red shirt finger I Mädchen - don't 3/e"]), TextRules())
    known = words.encode(" ".join(read))
    assert [id for id in words.encode(typed) if id != UNK][-1:] == known[-1:]


def test_quotation_marks_that_a_vocabulary_hardly_knows_become_those_that_it_knows():
    german = WordCounts(['„Ja“, sagte er: „Nein“. "Ja" “x” ‚y‘ „Ja“ „Nein“ "Nein"'] * 3)
    vocabulary = BpeVocabulary.train(german, TextRules(split_punctuation=True), size=60, minimum_frequency=4)
    for typed, read in (
        ("„Ja“", "„Ja“"),
        ("“Ja”", '"Ja"'),
        ("‚Ja‘,", '"Ja",'),
        ("»Ja«", '"Ja"'),
        ("«Ja»", '"Ja"'),
        ('"Ja"', '"Ja"'),
        ("„Ja Nein“.", "„Ja Nein“."),
    ):
        assert vocabulary.decode(vocabulary.encode(typed)) == read


def test_a_vocabulary_says_which_words_it_cannot_read():
    vocabulary = bpe(TextRules())
    assert list(map(vocabulary.can_read, ("red", "Владимир", "redЖ", "\U0001f600", "日本"))) == [
        True,
        False,
        False,
        True,
        False,
    ]
    words = WordVocabulary.train(WordCounts(["red shirt"]), TextRules())
    assert list(map(words.can_read, ("red", "rot", "\U0001f600"))) == [True, False, True]


def test_unfinished_word_and_bare_marker():
    vocabulary = bpe(TextRules(), size=10)
    *start, marker = vocabulary.encode_word("red")
    assert vocabulary.pieces[marker] == "</w>"
    assert vocabulary.words([*start, marker, *start]) == ["red", "red"]
    assert vocabulary.words([marker, *start, marker, marker]) == ["red"]


def test_pieces_do_not_reach_into_punctuation():
    vocabulary = bpe(TextRules(split_punctuation=True), size=400)
    pieces = [vocabulary.pieces[id] for id in vocabulary.encode("shirt.")]
    assert "".join(pieces) == "shirt.</w>"
    assert pieces[-1] == ".</w>"
    texts = [piece.removesuffix("</w>") for piece in vocabulary.pieces[4:]]
    assert not any(text.isalpha() < any(map(str.isalpha, text)) for text in texts if "\u0301" not in text)
    # accents belong to their letter
    assert TextRules(split_punctuation=True).segments("a\u0301b.'x") == ["a\u0301b", ".'", "x"]


def test_rules_are_applied_to_new_text():
    rules = TextRules(lowercase=True, unescape=True)
    assert rules.text("It &apos;s\u00a0&quot;A&quot; &amp;lt; &#91;B&#93;") == 'it \'s "a" &lt; [b]'
    vocabulary = WordVocabulary.train(WordCounts(["&apos;S 's it"]), rules)
    assert vocabulary.pieces[4:] == ("'s", "it")
    assert vocabulary.encode("IT &apos;s") == vocabulary.encode("it 's")


def test_word_vocabulary_threshold_and_size():
    counts = WordCounts(["a a a b b c c d"])
    assert WordVocabulary.train(counts, TextRules(), minimum_frequency=2).pieces[4:] == ("a", "b", "c")
    limited = WordVocabulary.train(counts, TextRules(), size=6)
    assert limited.size == 6
    assert limited.encode("a d b") == [4, UNK, 5]


def test_vocabulary_file_in_the_layout_of_iwslt15(tmp_path):
    path = tmp_path / "vocab.en"
    path.write_text("<unk>\n<s>\n</s>\nRachel\n:\n&apos;s\n's\n", "utf-8")
    assert WordVocabulary.read(path, TextRules()).pieces[4:] == ("Rachel", ":", "&apos;s", "'s")
    assert WordVocabulary.read(path, TextRules(unescape=True)).pieces[4:] == ("Rachel", ":", "'s")
    path.write_text("Rachel\n:\nscience\n", "utf-8")
    with pytest.raises(UserError, match=r"vocab\.en.*<unk>, <s> and </s> first.*Rachel"):
        WordVocabulary.read(path, TextRules())
    with pytest.raises(UserError, match=r"nowhere"):
        WordVocabulary.read(tmp_path / "nowhere", TextRules())


def test_training_is_deterministic_and_forgets_rare_words_only():
    first, second = bpe(RULES[1]), bpe(RULES[1])
    assert first.pieces == second.pieces
    assert first.merges == second.merges
    counts = WordCounts(["common common common", *(f"rare{index}Ω" for index in range(50))], limit=4)
    ranked = counts.ranked()
    assert ranked[0] == ("common", 3)
    assert len(ranked) == 4
    # a letter seen only in forgotten words is still known
    assert UNK not in BpeVocabulary.train(counts, TextRules(), size=64).encode("Ω9")


def test_cache_is_bounded_and_changes_nothing(monkeypatch):
    fresh = bpe(RULES[1])
    words = [f"{letter}{other}" for letter in LETTERS[:12] for other in LETTERS[:12]] * 2
    expected = [fresh.encode_word(word) for word in words]
    monkeypatch.setattr(module, "CACHED_WORDS", 5)
    small = bpe(RULES[1])
    assert [small.encode_word(word) for word in words] == expected
    assert len(small._cache) <= 5
    assert len(small._cache._older) <= 5


@pytest.mark.parametrize("joint", [True, False])
def test_saved_and_loaded(tmp_path, joint):
    for source in VOCABULARIES:
        target = source if joint else type(source).train(WordCounts(TEXTS[:1]), source.rules, size=40)
        Tokenizer(source, target).save(tmp_path / "tokenizer.json")
        loaded = Tokenizer.load(tmp_path / "tokenizer.json")
        assert loaded.joint is joint
        assert loaded.rules == source.rules
        for old, new in ((source, loaded.source), (target, loaded.target)):
            assert new.pieces == old.pieces
            for text in [*TEXTS, "shirtЖ unseen-words"]:
                assert new.encode(text) == old.encode(text)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content.clear(), "not a tokenizer"),
        (lambda content: content.update(version=99), "expected version 1, got 99"),
        (lambda content: content["rules"].pop("lowercase"), "rules with the keys"),
        (lambda content: content["rules"].update(lowercase="yes"), "true or false"),
        (lambda content: content.update(target=content["source"]), "joint"),
        (lambda content: content["source"].update(kind="pickle"), "kind bpe or word"),
        (lambda content: content["source"]["pieces"].append(3), "list of texts"),
        (lambda content: content["source"]["pieces"].append(content["source"]["pieces"][0]), "twice"),
        (lambda content: content["source"]["merges"].append(["no", "such"]), "merges of two known pieces"),
        (lambda content: content["source"].pop("merges"), "merges of two known pieces"),
    ],
)
def test_damaged_file_is_refused(tmp_path, damage, message):
    path = tmp_path / "tokenizer.json"
    Tokenizer(BPE[0], BPE[0]).save(path)
    content = json.loads(path.read_text("utf-8"))
    damage(content)
    path.write_text(json.dumps(content), "utf-8")
    with pytest.raises(UserError, match=message) as error:
        Tokenizer.load(path)
    assert str(path) in str(error.value)
    assert "gma prepare" in str(error.value)


def test_cut_or_missing_file_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match="no such file"):
        Tokenizer.load(path)
    Tokenizer(BPE[0], BPE[0]).save(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="damaged, not JSON at line"):
        Tokenizer.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        Tokenizer.load(path)


def test_a_word_of_nothing_but_the_inner_marker_does_no_harm():
    counts = WordCounts(["a \ue000 b"])
    for rules in RULES:
        vocabulary = BpeVocabulary.train(counts, rules, size=50)
        assert vocabulary.encode("\ue000") == []
        assert vocabulary.decode(vocabulary.encode("a b")) == "a b"


def test_forgotten_letters_do_not_make_an_escape_together():
    counts = WordCounts(["a"])
    # of words that were forgotten; a set may give them in any order, so also in this one
    counts.letters = ["&", "l", "t", ";"]
    vocabulary = BpeVocabulary.train(counts, TextRules(unescape=True), size=50)
    assert vocabulary.decode(vocabulary.encode("lt;")) == "lt;"
