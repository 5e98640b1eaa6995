"""Scores of a translator on a test set: quality, latency and alignment, of a model or of a log."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from gma.decoding.translate import Translation, translate
from gma.errors import UserError
from gma.evaluation import forced
from gma.evaluation.inputs import load_log
from gma.evaluation.instances import Instance, Scores, score_instances
from gma.evaluation.text import EvaluationText
from gma.metrics import (
    AlignmentScores,
    BootstrapDifference,
    CorpusLatency,
    GoldCoverage,
    GoldLinks,
    corpus_alignment_error_rate,
    corpus_gold_coverage,
    corpus_latency,
    paired_bootstrap_bleu,
    paired_bootstrap_mean,
    sentence_latencies,
)
from gma.metrics.alignment import Link
from gma.model.directory import Loaded

# rate of a calm speaker; turns seconds of computing into words of delay
WORDS_PER_SECOND = 2.5
SLOTS = 64


@dataclass(frozen=True)
class AlignmentEvaluation:
    """Against gold links, with the reference forced. One entry per decoder layer, the first layer first.

    Attributes:
        by_position: the source word nearest to p; empty for a policy without positions.
        by_posterior: the source word with the largest weight, averaged over heads.
        diagonal: a guess from the lengths alone.
        coverage: gold-aligned target words written after all their source words were read.
        sentences: pairs with gold links and words on both sides.
    """

    by_position: tuple[AlignmentScores, ...]
    by_posterior: tuple[AlignmentScores, ...]
    diagonal: AlignmentScores
    coverage: GoldCoverage
    sentences: int

    @property
    def best(self) -> tuple[str, int, AlignmentScores]:
        """How ('position' or 'posterior'), layer from 1, and scores of the reading with the lowest error rate."""
        readings = [("position", layer, scores) for layer, scores in enumerate(self.by_position, start=1)]
        readings += [("posterior", layer, scores) for layer, scores in enumerate(self.by_posterior, start=1)]
        return min(readings, key=lambda reading: reading[2].error_rate)

    def to_dict(self) -> dict:
        how, layer, scores = self.best
        return {
            "sentences": self.sentences,
            "by_position": [layer._asdict() for layer in self.by_position],
            "by_posterior": [layer._asdict() for layer in self.by_posterior],
            "diagonal": self.diagonal._asdict(),
            "best": {"reading": how, "layer": layer, **scores._asdict()},
            "coverage": {**self.coverage._asdict(), "share": self.coverage.share if self.coverage.aligned else None},
        }


@dataclass(frozen=True)
class Evaluation:
    """Scores of one system on one test set.

    Attributes:
        scores: BLEU, chrF, latency in the `word` convention, and the same with computing time.
        paper: latency in the `paper` convention; None for a log, which does not have it.
        alignment: None without gold links, and of a model that cannot be made to write the references.
        past_the_end: share of aligned positions p > |x|, over steps and layers; None without positions.
        delta, latency_symbol: the latency kept, and what the policy calls it; None for a policy without one.
        cut_off: translations that were ended by the length limit.
        left_out: pairs without a source, which have no latency.
        slots, words_per_second: what the computing time was measured with; 0 for a log.
    """

    system: str
    text: str
    scores: Scores
    instances: tuple[Instance, ...]
    delta: float | None = None
    latency_symbol: str | None = None
    paper: CorpusLatency | None = None
    past_the_end: float | None = None
    alignment: AlignmentEvaluation | None = None
    cut_off: int = 0
    left_out: int = 0
    slots: int = 0
    words_per_second: float = 0.0

    def to_dict(self) -> dict:
        """Plain values for JSON."""
        conventions = {"word": self.scores.latency, "paper": self.paper}
        if self.scores.computation_aware:
            conventions["computation_aware"] = self.scores.computation_aware
        latency = {name: value and {**value._asdict(), "label": value.label} for name, value in conventions.items()}
        if computing := latency.get("computation_aware"):
            # time passes between any two words, so that every one of them would end a wait
            computing["cw"] = None
        return {
            "system": self.system,
            "text": self.text,
            # JSON knows no infinity
            "delta": str(self.delta) if self.delta in (float("inf"), float("-inf")) else self.delta,
            "sentences": len(self.instances),
            "left_out": self.left_out,
            "cut_off": self.cut_off,
            "bleu": self.scores.bleu._asdict(),
            "chrf": self.scores.chrf._asdict(),
            "latency": latency,
            "slots": self.slots,
            "words_per_second": self.words_per_second,
            "past_the_end": self.past_the_end,
            "alignment": self.alignment and self.alignment.to_dict(),
        }


def evaluate(
    loaded: Loaded,
    text: EvaluationText | tuple[Sequence[str], Sequence[str]],
    *,
    system: str = "model",
    delta: float | None = None,
    gold: Sequence[GoldLinks] | None = None,
    lowercase: bool = False,
    slots: int = SLOTS,
    words_per_second: float = WORDS_PER_SECOND,
    progress: Callable[[int], None] = lambda count: None,
) -> Evaluation:
    """Translate a text and score it.

    >>> import gma
    >>> model = gma.load("de-en")
    >>> sources = ["Guten Morgen!", "Ich glaube nicht, dass Tom heute kommen wird."]
    >>> references = ["Good morning!", "I don't think Tom is coming today."]
    >>> result = gma.evaluate(model, (sources, references), delta=4.0)
    >>> f"{result.scores.bleu.score:.1f} BLEU, {result.scores.latency.al:.1f} words of average lagging"
    '39.0 BLEU, 3.1 words of average lagging'

    Args:
        text: of `gma.evaluation.text.load_text`, or sources and references, one string a sentence.
        system: its name in the result.
        delta: the latency to keep; None for the configured one.
        gold: links of every line that the text comes from.
        slots: sentences translated together. Computing time is that of so many streams on this machine.
        words_per_second: of the speaker, to add computing time to delays in words.
        progress: is told how many sentences have just been finished.
    """
    if not 0 < words_per_second < math.inf:
        raise UserError(f"words_per_second is {words_per_second}; expected a number above 0")
    if not isinstance(text, EvaluationText):
        text = EvaluationText.of("the given text", list(zip(*text, strict=True)), loaded.tokenizer.rules)
    policy = loaded.model.policy
    latency = loaded.model.latency(delta)
    # checked before the long part, so that a wrong file is found at once
    links = None if gold is None else links_of(gold, text)
    translations = translate(loaded, text.sources, delta=delta, slots=slots, progress=progress)
    instances = tuple(
        Instance(
            index=index,
            prediction=translation.text,
            delays=translation.delays,
            reference=reference,
            source_length=len(source.split()),
            elapsed=tuple(
                delay + words_per_second * seconds for delay, seconds in zip(translation.delays, translation.seconds)
            ),
            source=source,
        )
        for index, source, reference, translation in zip(text.indices, text.sources, text.references, translations)
    )
    return Evaluation(
        system=system,
        text=text.name,
        scores=score_instances(instances, lowercase=lowercase),
        instances=instances,
        delta=None if policy.latency_symbol is None else latency,
        latency_symbol=policy.latency_symbol,
        paper=_paper_latency(translations),
        past_the_end=_past_the_end(translations) if policy.has_positions else None,
        alignment=evaluate_alignment(loaded, text, links, delta=delta) if links and policy.can_be_forced else None,
        cut_off=sum(not translation.complete for translation in translations),
        left_out=text.lines - len(text.sources),
        slots=slots,
        words_per_second=words_per_second,
    )


def evaluate_log(path: Path, *, lowercase: bool = False) -> Evaluation:
    """Score any system's `instances.log`."""
    instances = load_log(path)
    return Evaluation(
        system=str(path), text=str(path), scores=score_instances(instances, lowercase=lowercase), instances=instances
    )


def evaluate_alignment(
    loaded: Loaded, text: EvaluationText, links: Sequence[GoldLinks], *, delta: float | None = None
) -> AlignmentEvaluation:
    """Make the model write the references and compare where it looks with gold links, one set per sentence."""
    chosen = [
        (source, reference, gold)
        for source, reference, gold in zip(text.sources, text.targets, links)
        if reference.split() and gold.possible
    ]
    sources, references, gold = zip(*chosen)
    pairs = forced.read(loaded, sources, references, delta=delta)
    layers = range(pairs[0].layers)

    def scores(hypotheses: Sequence[frozenset[Link]]) -> AlignmentScores:
        return corpus_alignment_error_rate(hypotheses, gold)

    by_position = [scores([pair.links_by_position(layer) for pair in pairs]) for layer in layers]
    return AlignmentEvaluation(
        tuple(by_position) if loaded.model.policy.has_positions else (),
        tuple(scores([pair.links_by_posterior(layer) for pair in pairs]) for layer in layers),
        scores([forced.diagonal(len(pair.source_pieces), len(pair.target_pieces)) for pair in pairs]),
        corpus_gold_coverage([pair.delays for pair in pairs], [sentence.sure for sentence in gold]),
        len(pairs),
    )


def compare_logs(
    baseline: Sequence[Instance], system: Sequence[Instance], *, lowercase: bool = False
) -> dict[str, BootstrapDifference]:
    """'bleu' and 'al' → paired bootstrap of system − baseline; both must have translated the same sentences."""
    check_same_text(baseline, {instance.index: instance.reference for instance in system})
    ours, theirs = ({instance.index: instance for instance in side} for side in (system, baseline))
    pairs = [(theirs[index], ours[index]) for index in sorted(ours)]
    (first, second), references = zip(*pairs), [after.reference for _, after in pairs]
    bleu = paired_bootstrap_bleu(
        [instance.prediction for instance in first],
        [instance.prediction for instance in second],
        references,
        lowercase=lowercase,
    )
    return {"bleu": bleu, "al": paired_bootstrap_mean(average_laggings(first), average_laggings(second))}


def check_same_text(baseline: Sequence[Instance], references: Mapping[int, str]) -> None:
    """UserError unless a log is of the sentences with these references, by their index."""
    theirs = {instance.index: instance.reference for instance in baseline}
    if references.keys() != theirs.keys():
        only = sorted(references.keys() ^ theirs.keys())
        side = "the log to compare with" if only[0] in theirs else "the system"
        raise UserError(
            f"the two have {len(references)} and {len(theirs)} sentences, and only {side} has index {only[0]}; a "
            "paired comparison needs the same sentences: evaluate both on the same text"
        )
    for index, reference in sorted(references.items()):
        if theirs[index] != reference:
            raise UserError(
                f"index {index} has the reference {reference!r} in one and {theirs[index]!r} in the other; a paired "
                "comparison needs the same text: evaluate both on it"
            )


def average_laggings(instances: Sequence[Instance]) -> list[float]:
    """AL of every sentence, `word` convention."""
    scores = sentence_latencies(
        [instance.delays for instance in instances],
        [instance.source_length for instance in instances],
        [max(1, len(instance.reference.split())) for instance in instances],
        convention="word",
    )
    return [score.al for score in scores]


def links_of(gold: Sequence[GoldLinks], text: EvaluationText) -> list[GoldLinks]:
    """The links of the sentences of `text`, checked against their words."""
    if len(gold) != text.lines:
        raise UserError(
            f"the alignments have {len(gold)} lines and the text ({text.name}) has {text.lines}; expected a line of "
            "links for every sentence pair"
        )
    chosen = [gold[index] for index in text.indices]
    if not any(links.possible for links in chosen):
        raise UserError("the alignments have no link in any sentence; expected some, such as 0-0 1-2")
    for index, source, reference, links in zip(text.indices, text.sources, text.references, chosen):
        lengths = len(source.split()), len(reference.split())
        for link in sorted(links.possible):
            if link[0] >= lengths[0] or link[1] >= lengths[1]:
                raise UserError(
                    f"the alignments of line {index + 1} link source word {link[0]} with target word {link[1]} (from "
                    f"0), but the pair has {lengths[0]} and {lengths[1]} words; does the file belong to this text, is "
                    "the source first, and does it count from 1 (--one-based)?"
                )
    return chosen


def _paper_latency(translations: Sequence[Translation]) -> CorpusLatency:
    # an alignment may go back, but what was read stays read
    needed = [list(accumulate(translation.needed, max)) for translation in translations]
    return corpus_latency(needed, [translation.source_tokens for translation in translations], convention="paper")


def _past_the_end(translations: Sequence[Translation]) -> float:
    past = [
        position > translation.source_tokens
        for translation in translations
        for step in translation.positions
        for position in step
    ]
    return sum(past) / len(past)
