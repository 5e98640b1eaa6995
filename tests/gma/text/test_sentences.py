"""Where sentences end: hard cases, and real text."""

import gzip
import os
from itertools import accumulate
from pathlib import Path

import pytest

from gma.text.sentences import SentenceFinder, rules, sentences

LEAST_F1 = 0.98
LINES_OF_A_PARAGRAPH = 10

# a | is where a sentence ends
HARD = {
    "de": [
        "Am 3. Mai kam Dr. Roth nach Berlin.| Er blieb.",
        "Das gilt z. B. für Kinder, d. h. für alle unter 14 Jahren.| Sonst nicht.",
        "Das gilt z.B. für Prof. Dr. Meier u.a. Forscher.| Gut.",
        "Im 20. Jahrhundert regierte Ludwig XIV. nicht mehr.| Wer dann?| Niemand!",
        "Er wurde 3.| Wir gratulieren.",
        "Das war 2003.| Dann kam er.",
        "Sie kam am 3.| Der Zug war voll.",
        "Es war der 3. Versuch.| Ja.",
        "„Kommst du?“ fragte sie.| „Nein.“| Er ging.",
        "„Komm!“, rief er.| Sie kam.",
        "Er sagte: „Das ist gut.“| Dann ging er.",
        "Ich weiß nicht … vielleicht doch.| Gut …| Aber wie?",
        "Es kostet 3.50 Euro, d. h. 1.000.000 Cent.| Viel!",
        "Die Fa. X. Müller GmbH zahlt.| Alle.",
        "Er wohnt in der Goethestr. 5.| Sie auch.",
        "Äpfel, Birnen usw. sind Obst.| Tomaten usw.| Das ist bekannt.",
        "Was?!| Doch (wirklich).| So.",
        "J. S. Bach lebte in Leipzig.| Er komponierte.",
        "Siehe Art. 5 Abs. 2 Nr. 1.| Das gilt.",
        "Wirklich?| Ja, ca. 5 Mio. Menschen.| Viele.",
    ],
    "en": [
        "Mr. Smith met Dr. Jones.| They talked.",
        "It was 5 p.m. on Monday.| He left at 6 p.m.| The train was late.",
        "The U.S. economy grew.| He lives in the U.S.| They do not.",
        "Acme Inc. said so.| He works at Acme Inc.| She does not.",
        "We need e.g. apples, i.e. fruit.| Good.",
        "“Are you coming?” she asked.| “No.”| He left.",
        "Pi is 3.14, No. 5 is alive.| Yes!",
        "J. R. R. Tolkien wrote it.| Who else?",
        "Well … maybe.| Really…| No.",
        "Born in 1970.| He died.",
        "He asked why.| Nobody knew (not even I).| So what?",
        "Bring pens, paper, etc. and come.| Bring pens etc.| We start.",
    ],
}


def found(text: str, language: str) -> list[str]:
    return [" ".join(words) for words in sentences(text.split(), SentenceFinder(rules(language)))]


@pytest.mark.parametrize(("language", "case"), [(name, case) for name, cases in HARD.items() for case in cases])
def test_hard_cases(language, case):
    assert found(case.replace("|", ""), language) == [part.strip() for part in case.split("|")]


def test_what_is_certain_is_known_at_once_and_nothing_later_than_with_the_next_word():
    finder = SentenceFinder(rules("de"))
    told = [finder.hear(word) for word in ["Gut.", "Am", "3.", "Mai.", "Am", "3.", "Der"]]
    assert [ends.after for ends in told] == ["punctuation", None, None, "punctuation", None, None, None]
    assert [ends.before for ends in told] == [None] * 6 + ["punctuation"]
    assert finder.size == 1


def test_text_without_full_stops_is_cut_at_a_comma_or_at_the_limit():
    finder = SentenceFinder(rules("de"), limit=8)
    assert [finder.hear(word).after for word in ["a,", "b", "c,", "d", "e", "f,", "g"]] == [None] * 5 + ["limit", None]
    finder = SentenceFinder(rules("de"), limit=8)
    assert [finder.hear(word, 2).after for word in ["a", "b", "c", "d", "e"]] == [None] * 3 + ["limit", None]
    # a word that would go past it begins the next sentence
    finder = SentenceFinder(rules("de"), limit=8)
    assert [finder.hear(word, 3).before for word in ["a", "b", "c", "d"]] == [None, None, "limit", None]


@pytest.mark.parametrize("language", ["xx", "../rules/de", "", "generated", "de.toml"])
def test_an_unknown_language_has_the_rules_that_need_no_lists(language):
    assert found("Abc def. Ghi j? k", language) == ["Abc def.", "Ghi j?", "k"]


@pytest.mark.parametrize("language", ["de", "en"])
def test_lists_do_not_contradict_each_other(language):
    lists = rules(language)
    assert not lists.never & lists.seldom
    assert len(lists.starters) > 100


@pytest.mark.parametrize("language", ["de", "en"])
@pytest.mark.parametrize("corpus", ["europarl-de-en/valid", "newstest-de-en/newstest2015"])
def test_real_text(corpus, language):
    """F1 of sentence ends inside paragraphs of ten lines; a line without a full stop, as a headline, ends one."""
    path = Path(os.environ.get("GMA_DATA", "data")) / f"{corpus}.{language}.gz"
    if not path.exists():
        pytest.skip(f"needs {path}: set GMA_DATA to the folder of the corpora")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = [line.split() for line in file if line.strip()]
    right = wrong = missed = 0
    for paragraph in paragraphs(lines):
        gold = ends(paragraph[:-1])
        given = ends(sentences([word for line in paragraph for word in line], SentenceFinder(rules(language)))[:-1])
        right, wrong, missed = right + len(gold & given), wrong + len(given - gold), missed + len(gold - given)
    f1 = 2 * right / (2 * right + wrong + missed)
    print(f"{corpus}.{language}: F1 {f1:.4f} ({right} right, {wrong} wrong, {missed} missed)")
    assert right > 1000
    assert f1 >= LEAST_F1


def paragraphs(lines: list[list[str]]) -> list[list[list[str]]]:
    made: list[list[list[str]]] = [[]]
    for line in lines:
        made[-1].append(line)
        closed = line[-1].rstrip("\"'”“’‘»«›‹)]").endswith((".", "!", "?", "…"))
        if len(made[-1]) == LINES_OF_A_PARAGRAPH or not closed:
            made.append([])
    return [paragraph for paragraph in made if paragraph]


def ends(lines: list[list[str]]) -> set[int]:
    """After how many words each of them ends."""
    return set(accumulate(map(len, lines)))
