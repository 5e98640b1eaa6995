"""Translation of whole texts, many sentences at a time; words and delays are those of a stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gma.decoding.beam import beam_search
from gma.decoding.greedy import LONGEST_ALONE, greedy
from gma.decoding.hypothesis import Hypothesis
from gma.errors import UserError
from gma.model.directory import Loaded
from gma.text.sentences import SENTENCE_LIMIT, SentenceFinder, rules, sentences
from gma.text.vocabulary import EOS, Vocabulary
from gma.text.words import typed_word, used_words, word_delays, word_ends


@dataclass(frozen=True)
class Translation:
    """A translated sentence. Lists over steps have an entry per target token and one for the end of the sentence.

    Attributes:
        text: the words, a blank between them.
        delays: source words needed for each word.
        seconds: computing time from the sentence's beginning to each word; other sentences of the batch share in it,
            so that only `slots=1` gives what one sentence alone takes.
        tokens: ids, without the end of the sentence.
        needed: source tokens used by each step, g(i).
        positions: of every step and layer, aligned positions in source tokens, 1-based; only of the policy `gaussian`.
        source_tokens: length of the source, its end-of-sentence token included.
        complete: whether the model ended the sentence; if not, it was cut off at the length limit.
        used_words: source words up to the last one that any step needed; of those behind it, nothing is translated.
    """

    text: str
    words: tuple[str, ...]
    delays: tuple[int, ...]
    seconds: tuple[float, ...]
    tokens: list[int]
    needed: list[int]
    positions: list[list[float]]
    source_tokens: int
    complete: bool
    used_words: int


EMPTY = Translation("", (), (), (), [], [], [], 1, True, 0)


def translate(
    loaded: Loaded,
    texts: Sequence[str],
    *,
    delta: float | None = None,
    beam: int = 1,
    slots: int = 64,
    progress: Callable[[int], None] = lambda count: None,
) -> list[Translation]:
    """Translate sentences. One without words that the model can read gives an empty translation.

    >>> import gma
    >>> model = gma.load("de-en")
    >>> (translation,) = gma.translate(model, ["Guten Morgen!"], delta=4.0)
    >>> translation.text, translation.delays  # each word with the source words that it waited for
    ('Good morning.', (2, 2))

    Args:
        delta: the latency to keep; None for the configured one.
        beam: hypotheses kept while searching; more than one only where every step waits for the whole source.
        slots: sentences decoded together.
        progress: is told how many sentences have just been finished.
    """
    _check_beam(loaded, beam, delta)
    source, target = loaded.tokenizer.source, loaded.tokenizer.target
    pieces = [[typed_word(word, source) for word in text.split()] for text in texts]
    indices = [index for index, words in enumerate(pieces) if any(words)]
    sources = [[*(token for word in pieces[index] for token in word), EOS] for index in indices]
    for index, tokens in zip(indices, sources):
        if len(tokens) > LONGEST_ALONE:
            raise UserError(
                f"the sentence that begins with {texts[index][:40]!r} has {len(tokens):,} tokens; expected at most "
                f"{LONGEST_ALONE:,}: one line is one sentence"
            )
    progress(len(texts) - len(indices))
    if beam == 1:
        hypotheses = greedy(loaded.model, sources, delta=delta, slots=slots, finished=progress)
    else:
        hypotheses = beam_search(loaded.model, sources, beam, delta=delta, slots=slots, finished=progress)
    translations = [replace(EMPTY, used_words=len(words)) for words in pieces]
    for index, hypothesis in zip(indices, hypotheses):
        translations[index] = _translation([len(word) for word in pieces[index]], hypothesis, target)
    return translations


def translate_lines(
    loaded: Loaded,
    lines: Sequence[str],
    *,
    delta: float | None = None,
    beam: int = 1,
    progress: Callable[[int], None] = lambda count: None,
) -> list[str]:
    """Translate lines of one or more sentences, as a talk finds them; one line stays one line.

    progress: is told how many lines have just been finished.
    """
    source = loaded.tokenizer.source

    def tokens(word: str) -> int:
        return min(SENTENCE_LIMIT, len(typed_word(word, source)))

    finder = SentenceFinder(rules(loaded.config.data.source), SENTENCE_LIMIT)
    rest = [line.split() for line in lines]
    found: list[list[str]] = [[] for _ in lines]
    known: dict[str, Translation] = {}
    while any(rest):
        by_line = [sentences(words, finder, tokens) for words in rest]
        texts = dict.fromkeys(" ".join(sentence) for line in by_line for sentence in line)
        new = [text for text in texts if text not in known]
        known |= zip(new, translate(loaded, new, delta=delta, beam=beam))
        for place, line in enumerate(by_line):
            done = 0
            for sentence in line:
                translation = known[" ".join(sentence)]
                found[place].append(translation.text)
                # one word at least, as in a talk
                used = max(1, translation.used_words)
                done += used
                if used < len(sentence):
                    # ended by the model: what follows is cut into sentences anew
                    break
            rest[place] = rest[place][done:]
    progress(len(lines))
    return [" ".join(filter(None, line)) for line in found]


def _check_beam(loaded: Loaded, beam: int, delta: float | None) -> None:
    if isinstance(beam, bool) or not isinstance(beam, int) or beam < 1:
        raise UserError(f"beam is {beam!r}; expected a whole number, 1 or more")
    delta, policy = loaded.model.latency(delta), loaded.model.policy
    if beam == 1 or policy.waits_for_all(delta):
        return
    latency = f"at {policy.latency_symbol} = {delta:g} " if policy.latency_symbol else ""
    whole = ""
    if policy.latency_of_all is not None:
        whole = f", or {policy.latency_symbol} = {policy.latency_of_all:g} to wait for the whole source"
    raise UserError(
        f"beam is {beam}, but {latency}this model writes while the source is still arriving, and a written word "
        f"stands: there is nothing to search. Use beam 1{whole}"
    )


def _translation(pieces_per_word: list[int], hypothesis: Hypothesis, target: Vocabulary) -> Translation:
    words, steps = tuple(target.words(hypothesis.tokens)), len(hypothesis.seconds)
    return Translation(
        " ".join(words),
        words,
        tuple(word_delays(pieces_per_word, hypothesis.tokens, hypothesis.needed, target)),
        tuple(hypothesis.seconds[min(end, steps) - 1] for end in word_ends(hypothesis.tokens, target)),
        hypothesis.tokens,
        hypothesis.needed,
        hypothesis.positions,
        sum(pieces_per_word) + 1,
        hypothesis.complete,
        used_words(pieces_per_word, max(hypothesis.needed, default=0)),
    )
