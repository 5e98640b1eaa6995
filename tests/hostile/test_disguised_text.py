"""The shipped model reads what people type: 50 sentences in other characters are translated like the plain ones."""

import unicodedata

import pytest

from gma.decoding.translate import translate
from gma.model import directory

SUBJECTS = ("Tom", "Maria", "Mein Bruder", "Die alte Frau", "Der Lehrer")
# of what is between them, the ends need every umlaut, ß, and letters that have ligatures
ENDS = (
    "hat gestern ein schönes Buch gekauft.",
    "findet den Schlüssel nicht, den er sucht.",
    "will morgen früh nach Hause fahren!",
    "weiß, dass es heute regnen wird.",
    "hört um 10 Uhr auf zu arbeiten.",
    "spielt im Sommer oft Fußball.",
    "öffnet langsam das große Fenster.",
    "hofft auf eine Antwort.",
    "fragt: wo ist der Bahnhof?",
    'sagt immer "Guten Morgen" zu mir.',
)
PLAIN = [f"{subject} {end}" for subject in SUBJECTS for end in ENDS]
FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
BOLD = {ord("a") + place: 0x1D41A + place for place in range(26)} | {
    ord("A") + place: 0x1D400 + place for place in range(26)
}


def _quoted(opening: str, closing: str):
    return lambda text: text.replace('"Guten', f"{opening}Guten").replace('Morgen"', f"Morgen{closing}")


DISGUISES = {
    "NFD": lambda text: unicodedata.normalize("NFD", text),
    "full width": lambda text: text.translate(FULL_WIDTH),
    "mathematical bold": lambda text: text.translate(BOLD),
    "ligatures": lambda text: text.replace("ff", "ﬀ").replace("fi", "ﬁ").replace("fl", "ﬂ").replace("st", "ﬆ"),
    "an emoji before": lambda text: f"😀{text}",
    "emojis between and after": lambda text: text.replace(" ", " 👩‍👩‍👧 ", 1) + " 🎉🎉",
    "symbols": lambda text: "#" + text.replace(" ", " ☎", 1),
    "zero-width spaces": lambda text: "\u200b".join(text),
    "zero-width words": lambda text: text.replace(" ", " \u200b ") + " \u2060",
    "byte order mark": lambda text: f"\ufeff{text}",
    "soft hyphens": lambda text: text.replace("en", "\u00aden"),
    "directions": lambda text: f"\u202b\u200f{text}\u202c\u2069",
    "variation selectors": lambda text: text.replace(" ", "\ufe0f "),
    "other spaces": lambda text: text.replace(" ", "\u00a0").replace("\u00a0", "\u3000", 1),
    "control characters": lambda text: text.replace("e", "e\x07\x00", 1),
    "lone surrogates": lambda text: text.replace("e", "e\udcff", 1),
    "English quotes": _quoted("“", "”"),
    "low single quotes": _quoted("‚", "‘"),
    "guillemets": _quoted("»", "«"),
    "French guillemets": _quoted("«", "»"),
    "single guillemets": _quoted("›", "‹"),
}


@pytest.fixture(scope="module")
def loaded():
    return directory.load(directory.find("de-en"))


@pytest.fixture(scope="module")
def plain(loaded) -> list[str]:
    return [translation.text for translation in translate(loaded, PLAIN)]


@pytest.mark.parametrize("name", DISGUISES)
def test_a_disguise_changes_no_piece(name, loaded):
    """And so no word: what is written depends on the pieces alone."""
    vocabulary = loaded.tokenizer.source
    for text in PLAIN:
        assert vocabulary.encode(DISGUISES[name](text)) == vocabulary.encode(text)


def test_disguised_sentences_are_translated_like_plain_ones(loaded, plain):
    assert len(set(plain)) > 40
    texts = [list(DISGUISES.values())[place % len(DISGUISES)](text) for place, text in enumerate(PLAIN)]
    assert [translation.text for translation in translate(loaded, texts)] == plain


def test_german_quotes_stay_as_the_model_has_learned_them(loaded):
    vocabulary = loaded.tokenizer.source
    assert vocabulary.decode(vocabulary.encode("„Guten Morgen“ …")) == "„Guten Morgen“ …"


def test_what_cannot_be_read_is_not_invented(loaded):
    readable, unreadable = "Ich habe Hunger.", "Я очень голоден. 日本語"
    one, none = translate(loaded, [readable, unreadable])
    assert one.words
    assert none.words == ()
    assert loaded.tokenizer.source.unreadable(unreadable) == unreadable.split()
    assert loaded.tokenizer.source.unreadable(f"{readable} 😀") == []
