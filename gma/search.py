"""Greedy simultaneous translation of many sentences at a time, each as if its source arrived word by word."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gma.incremental import IncrementalBatch
from gma.tokenizer import EOS
from gma.transformer import Transformer


@dataclass
class Hypothesis:
    """A translation, its steps in order; lists have an entry per step, the end-of-sentence step included."""

    tokens: list[int] = field(default_factory=list)  # without the end-of-sentence
    needed: list[int] = field(default_factory=list)  # source tokens used, g(i)
    positions: list[list[float]] = field(default_factory=list)  # aligned position in every layer, 1-based
    complete: bool = False  # ended by itself, and not by the limit


def length_limit(source_length: int) -> int:
    """Steps after which a translation is cut off: no natural one is that long, and a loop must end."""
    return 2 * source_length + 20


def greedy(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    *,
    delta: float | None = None,
    slots: int = 64,
    finished: Callable[[int], None] = lambda count: None,
) -> list[Hypothesis]:
    """Translate sources, given as token ids that end in EOS.

    Every layer attends to exactly what its policy asks for, so that tokens and g(i) are those of a stream. Sentences
    that end make room for others, longest first.

    Args:
        delta: the latency to keep; None for the configured one.
        slots: sentences decoded together.
        finished: is told how many sentences have just been finished.
    """
    batch = IncrementalBatch(model)
    hypotheses = [Hypothesis() for _ in sources]
    queue = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    batch.reserve(min(slots, len(queue)))
    at_work: dict[int, int] = {}  # slot -> index of its sentence
    while queue or at_work:
        free = slots - len(at_work)
        # a few at a time would cost as many passes of the encoder
        if queue and (not at_work or free >= slots // 4):
            opened = {batch.open(delta): queue.pop() for _ in range(min(free, len(queue)))}
            batch.push({slot: sources[index] for slot, index in opened.items()})
            at_work |= opened
        scores = batch.advance()
        tokens = scores.logits.argmax(dim=1).tolist()
        for step, slot in enumerate(scores.slots):
            hypothesis = hypotheses[at_work[slot]]
            hypothesis.needed.append(scores.needed[step])
            hypothesis.positions.append(scores.positions[step])
            if tokens[step] == EOS:
                hypothesis.complete = True
            elif len(hypothesis.needed) > length_limit(len(sources[at_work[slot]])):
                tokens[step] = EOS
            else:
                hypothesis.tokens.append(tokens[step])
        batch.write(scores.slots, tokens)
        done = [slot for slot, token in zip(scores.slots, tokens) if token == EOS]
        for slot in done:
            batch.close(slot)
            del at_work[slot]
        if done:
            finished(len(done))
    return hypotheses
