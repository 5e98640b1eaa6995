"""The generated corpus: sentences of a small German with their English and the true word alignment.

German puts the verb of a subordinate clause, the participle of a perfect, the infinitive after a modal and the particle
of a separable verb last; English wants them right after the subject. There a simultaneous translator has to wait.
"""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from gma.corpus import generated_lexicon as lexicon

T = TypeVar("T")
HELD_OUT = 500
_COLUMNS = {"m": 0, "f": 1, "n": 2, "plural": 3}


class GeneratedPair(NamedTuple):
    """A sentence pair; `alignment` holds the true links (source word, target word), counted from 0."""

    source: str
    target: str
    alignment: frozenset[tuple[int, int]]


class Phrase(NamedTuple):
    """Words of both sides, and links between them."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    links: tuple[tuple[int, int], ...]


class Verbs(NamedTuple):
    """The verbal parts of a clause: finite, the rest (participle, infinitive) and a particle linked to `finite`."""

    finite: Phrase
    rest: Phrase
    particle: Phrase


EMPTY = Phrase((), (), ())
STOP = Phrase((".",), (".",), ((0, 0),))
COMMA = Phrase((",",), (",",), ((0, 0),))
DROPPED_COMMA = Phrase((",",), (), ())


def generate(sentences: int, seed: int) -> list[GeneratedPair]:
    """Distinct sentence pairs, the same on every platform and Python; a longer list begins with the shorter one."""
    if sentences < 0:
        raise ValueError(f"sentences is {sentences}; expected 0 or more")
    grammar = _Grammar(seed)
    pairs: dict[str, GeneratedPair] = {}
    while len(pairs) < sentences:
        phrase = grammar.sentence()
        source = " ".join(phrase.source)
        if source not in pairs:
            pairs[source] = GeneratedPair(source, " ".join(phrase.target), frozenset(phrase.links))
    return list(pairs.values())


def splits(train: int, seed: int = 1, held_out: int = HELD_OUT) -> dict[str, list[GeneratedPair]]:
    """'train', 'valid' and 'test' without a common sentence; the last two do not depend on the size of the first."""
    pairs = generate(train + 2 * held_out, seed)
    return {"train": pairs[2 * held_out :], "valid": pairs[held_out : 2 * held_out], "test": pairs[:held_out]}


def write(folder: Path, pairs: Iterable[GeneratedPair], name: str) -> tuple[Path, Path, Path]:
    """Write name.de, name.en and name.align ('i-j' from 0, source first) and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"{name}.de", folder / f"{name}.en", folder / f"{name}.align"
    with (
        paths[0].open("w", encoding="utf-8", newline="\n") as source,
        paths[1].open("w", encoding="utf-8", newline="\n") as target,
        paths[2].open("w", encoding="utf-8", newline="\n") as alignment,
    ):
        for pair in pairs:
            source.write(pair.source + "\n")
            target.write(pair.target + "\n")
            alignment.write(" ".join(f"{i}-{j}" for i, j in sorted(pair.alignment)) + "\n")
    return paths


def _word(source: str, target: str) -> Phrase:
    return Phrase((source,), (target,), ((0, 0),))


def _linked(source: Sequence[str], target: Sequence[str]) -> Phrase:
    """Every word with every word: 'noch einmal' — 'again'."""
    links = tuple((i, j) for i in range(len(source)) for j in range(len(target)))
    return Phrase(tuple(source), tuple(target), links)


def _arrange(phrases: Sequence[Phrase], target_order: Sequence[int], tied: tuple[int, int] | None = None) -> Phrase:
    """Join phrases, given in source order, with their translations in another order.

    target_order: indices into `phrases`. tied: (a, b), phrase a's source word belongs to the translation of b, too.
    """
    starts = [0] * len(phrases)
    target: list[str] = []
    for index in target_order:
        starts[index] = len(target)
        target += phrases[index].target
    source: list[str] = []
    links: list[tuple[int, int]] = []
    for phrase, start in zip(phrases, starts):
        offset = len(source)
        links += [(offset + i, start + j) for i, j in phrase.links]
        source += phrase.source
    if tied is not None and phrases[tied[0]].source:
        place = sum(len(phrase.source) for phrase in phrases[: tied[0]])
        links += [(place, starts[tied[1]] + j) for j in range(len(phrases[tied[1]].target))]
    return Phrase(tuple(source), tuple(target), tuple(links))


def _join(*phrases: Phrase) -> Phrase:
    return _arrange(phrases, range(len(phrases)))


class _Grammar:
    """Draws sentences. Only `Random.random` is used: it alone is the same on every platform and Python version."""

    def __init__(self, seed: int):
        self._random = random.Random(seed).random
        self._tables = {
            (name, case): (forms.split(), lexicon.ENDINGS[name][case].split())
            for name, (_, _, cases) in lexicon.DETERMINERS.items()
            for case, forms in cases.items()
        }
        self._determiners = {
            False: ("the", "the", "the", "a", "a", "this", "every", "my", "your"),
            True: ("the", "the", "the", "this", "my", "your"),
        }

    def _choose(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def sentence(self) -> Phrase:
        kind = self._random()
        if kind < 0.45:
            return _join(self._main(long=True), STOP)
        if kind < 0.65:
            return _join(self._main(), self._subordinate(), STOP)
        if kind < 0.82:
            return _join(self._opinion(), STOP)
        if kind < 0.92:
            source, target = self._choose(lexicon.COORDINATORS)
            return _join(self._main(), COMMA, _word(source, target), self._main(), STOP)
        opening = self._subordinate(comma=EMPTY)
        return _join(opening, COMMA, self._main(fronted=EMPTY), STOP)

    def _main(self, long: bool = False, fronted: Phrase | None = None) -> Phrase:
        """Verb second: subject first, or something fronted and the subject after the finite verb."""
        if fronted is None and self._random() < 0.25:
            fronted = _linked(*self._choose(lexicon.ADVERBS))
        subject, plural = self._subject(long)
        verbs, complements = self._predicate(plural, long, final=False)
        if fronted is None:
            usual = (subject, verbs.finite, complements, verbs.rest, verbs.particle)
            return _arrange(usual, (0, 1, 3, 2, 4), tied=(4, 1))
        inverted = (fronted, verbs.finite, subject, complements, verbs.rest, verbs.particle)
        return _arrange(inverted, (0, 2, 1, 4, 3, 5), tied=(5, 1))

    def _subordinate(self, comma: Phrase = DROPPED_COMMA) -> Phrase:
        source, target = self._choose(lexicon.SUBORDINATORS)
        return _join(comma, _linked((source,), target), self._verb_final(*self._subject()))

    def _opinion(self) -> Phrase:
        subject, plural = self._subject()
        singular, many, english_singular, english = self._choose(lexicon.OPINIONS)
        verb = _word(many, english) if plural else _word(singular, english_singular)
        return _join(subject, verb, DROPPED_COMMA, _word("dass", "that"), self._verb_final(*self._subject()))

    def _verb_final(self, subject: Phrase, plural: bool) -> Phrase:
        verbs, complements = self._predicate(plural, final=True)
        return _arrange((subject, complements, verbs.rest, verbs.finite), (0, 3, 2, 1))

    def _subject(self, long: bool = False) -> tuple[Phrase, bool]:
        """A phrase and whether it is plural."""
        kind = self._random()
        if kind < 0.2:
            name = self._choose(lexicon.NAMES)
            return _word(name, name), False
        if kind < 0.4:
            pronoun = self._choose(tuple(lexicon.PRONOUNS))
            english, plural = lexicon.PRONOUNS[pronoun]
            return _word(pronoun, english), plural
        plural = self._random() < 0.3
        phrase, column = self._noun_phrase(lexicon.PEOPLE, "nom", plural)
        if long and self._random() < 0.1:
            relative = ("der", "die", "das", "die")[column]
            phrase = _join(phrase, DROPPED_COMMA, self._verb_final(_word(relative, "who"), plural), DROPPED_COMMA)
        return phrase, plural

    def _predicate(self, plural: bool, long: bool = False, *, final: bool) -> tuple[Verbs, Phrase]:
        """Verbs, and what stands between them: object and place."""
        kind = self._random()
        if kind < 0.15:
            verb, complements = self._choose(lexicon.INTRANSITIVE), []
        else:
            verb = self._choose(lexicon.TRANSITIVE if kind < 0.8 else lexicon.SEPARABLE)
            thing = lexicon.OBJECTS[self._choose(verb.objects)]
            complements = [self._noun_phrase(thing, "acc", self._random() < 0.3)[0]]
        if not complements or self._random() < (0.6 if long else 0.3):
            complements.append(self._place())
        return self._verbs(verb, plural, final), _join(*complements)

    def _verbs(self, verb: lexicon.Verb, plural: bool, final: bool) -> Verbs:
        kind = self._random()
        if kind < 0.4:
            german = verb.plural if plural else verb.singular
            english = verb.english if plural else verb.english_singular
            if final or not verb.particle:
                return Verbs(_word(verb.particle + german, english), EMPTY, EMPTY)
            return Verbs(_word(german, english), EMPTY, Phrase((verb.particle,), (), ()))
        if kind < 0.75:
            helper, rest = lexicon.PERFECT, _word(verb.participle, verb.english_participle)
        else:
            helper, rest = self._choose(lexicon.MODALS), _word(verb.infinitive, verb.english)
        finite = _linked((helper[1],), helper[3]) if plural else _linked((helper[0],), helper[2])
        return Verbs(finite, rest, EMPTY)

    def _place(self) -> Phrase:
        source, target = self._choose(lexicon.PREPOSITIONS)
        place = self._noun_phrase(lexicon.PLACES, "dat", self._random() < 0.2)[0]
        contracted = lexicon.CONTRACTIONS.get((source, place.source[0]))
        if contracted is None:
            return _join(_word(source, target), place)
        links = ((0, 0), *((i, j + 1) for i, j in place.links))
        return Phrase((contracted, *place.source[1:]), (target, *place.target), links)

    def _noun_phrase(self, kind: lexicon.NounClass, case: str, plural: bool) -> tuple[Phrase, int]:
        """A phrase, and the column of its gender and number in the tables of forms."""
        noun, determiner = self._choose(kind.nouns), self._choose(self._determiners[plural])
        column = _COLUMNS["plural" if plural else noun.gender]
        forms, endings = self._tables[determiner, case]
        english_determiner = lexicon.DETERMINERS[determiner][plural]
        german, english = (noun.plural, noun.english_plural) if plural else (noun.singular, noun.english)
        if plural and case == "dat" and german[-1] not in "ns":
            german += "n"
        pairs = [(forms[column], english_determiner), (german, english)]
        if self._random() < 0.35:
            stem, adjective = self._choose(kind.adjectives)
            pairs.insert(1, (stem + endings[column], adjective))
        source, target = zip(*pairs)
        return Phrase(source, target, tuple((i, i) for i in range(len(pairs)))), column
