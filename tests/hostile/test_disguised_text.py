"""The shipped model reads what people type: 50 sentences in other characters are translated like the plain ones."""

import string
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gma.decoding.translate import translate
from gma.model import directory
from gma.text.characters import Characters
from gma.text.sentences import SentenceFinder, rules, sentences

SUBJECTS = ("Tom", "Maria", "Mein Bruder", "Die alte Frau", "Der Lehrer")
# of what is between them, the ends need every umlaut, ß, and letters that have ligatures
ENDS = (
    "hat gestern 2 schöne Bücher gekauft.",
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
    "LaTeX's quotes": _quoted("``", "''"),
    "commas as quotes": _quoted(",,", "''"),
    "low quotes, one by one": _quoted("‚‚", "´´"),
    "less and greater": _quoted("<<", ">>"),
    "greater and less": _quoted(">>", "<<"),
    "primes": _quoted("‶", "″"),
    "ornaments": _quoted("❝", "❞"),
    "Chinese quotes": _quoted("「", "」"),
    "Japanese quotes": _quoted("〝", "〞"),
    "low quotes as commas": lambda text: text.replace(",", "‚"),
    "Arabic marks": lambda text: text.replace("?", "؟").replace(",", "،"),
    "Arabic digits": lambda text: text.translate({ord("0") + digit: 0x660 + digit for digit in range(10)}),
    "Devanagari digits": lambda text: text.translate({ord("0") + digit: 0x966 + digit for digit in range(10)}),
    "circles": lambda text: text.translate({ord("a") + place: 0x24D0 + place for place in range(26)}),
    "black boxes": lambda text: text.translate({ord("A") + place: 0x1F170 + place for place in range(26)}),
    "small capitals": lambda text: text.translate(str.maketrans("abcdeghikmnorstuvwz", "ᴀʙᴄᴅᴇɢʜɪᴋᴍɴᴏʀꜱᴛᴜᴠᴡᴢ")),
    "letters with a stroke": lambda text: text.replace("d", "đ").replace("h", "ħ").replace("t", "ŧ"),
    "long s": lambda text: text.replace("st", "ſt"),
    "struck out": lambda text: "\u0336".join(text),
    "enclosed": lambda text: "\u20dd".join(text),
    "graphemes joined": lambda text: text.replace("e", "e\u034f"),
    "private use": lambda text: text.replace("e", "e\uf8ff").replace(" ", " \ue123 ", 1),
    "no characters": lambda text: text.replace("e", "e\uffff"),
    "tags and flags": lambda text: f"🇩🇪 {text}\U000e0067\U000e007f",
    "skin colours": lambda text: text.replace(" ", "👍🏽 👍🏽 ", 1),
    "fillers": lambda text: text.replace("e", "e\u3164").replace(" ", " \u2800 ", 1),
    "trade marks": lambda text: text.replace(" ", "™ ", 1),
    "line and field separators": lambda text: text.replace(" ", "\u2028", 1).replace(" ", "\x1f\x85"),
    "notes": lambda text: f"♪ {text} ♪",
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


@pytest.mark.parametrize("dash", "‐‑−－﹣")
def test_a_dash_that_the_model_has_hardly_seen_is_a_hyphen(loaded, dash):
    vocabulary = loaded.tokenizer.source
    assert vocabulary.encode(f"Er kommt {dash} vielleicht.") == vocabulary.encode("Er kommt - vielleicht.")


@pytest.mark.parametrize("dash", "—―‒⸺")
def test_a_long_dash_is_the_one_that_the_model_has_seen(loaded, dash):
    vocabulary = loaded.tokenizer.source
    assert vocabulary.encode(f"Er kommt {dash} vielleicht.") == vocabulary.encode("Er kommt – vielleicht.")


@pytest.mark.parametrize("plain", ["so,, ja", ",,", "<<", "a<<b", "''", "rock''n''roll"])
def test_two_marks_that_quote_nothing_stay(plain):
    characters = Characters({*string.printable}, frozenset('"').__contains__)
    assert [characters.known(word) for word in plain.split()] == plain.split()


@pytest.mark.parametrize("number", ["5²", "①", "⒈", "₃", "٣", "½", "⓪", "9⒏", "Ⅳ", "5⁹⁹", "१"])
@pytest.mark.parametrize("language", ["de", "en", "xx"])
def test_a_number_in_other_digits_ends_a_sentence_or_does_not(number, language):
    words = f"Es sind {number}. Und nun?".split()
    found = sentences(words, SentenceFinder(rules(language)))
    assert [word for sentence in found for word in sentence] == words


def test_no_text_stops_a_tokenizer_or_the_finder_of_sentences(loaded):
    vocabulary = loaded.tokenizer.source

    @settings(max_examples=300, deadline=None)
    @given(st.text(st.characters()) | st.text(st.sampled_from("²①٣.!?…\"“„'’‚,-–<>`´( aÄß\u0308\ud800")))
    def read(text: str) -> None:
        finder = SentenceFinder(rules("de"))
        assert [word for sentence in sentences(text.split(), finder) for word in sentence] == text.split()
        assert vocabulary.decode(vocabulary.encode(text)) is not None
        vocabulary.unreadable(text)

    read()


def test_what_cannot_be_read_is_not_invented(loaded):
    readable, unreadable = "Ich habe Hunger.", "Я очень голоден. 日本語"
    one, none = translate(loaded, [readable, unreadable])
    assert one.words
    assert none.words == ()
    assert loaded.tokenizer.source.unreadable(unreadable) == unreadable.split()
    assert loaded.tokenizer.source.unreadable(f"{readable} 😀") == []
