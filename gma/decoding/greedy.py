"""Greedy simultaneous translation of many sentences at a time, each as if its source arrived word by word."""

import time
from collections.abc import Callable, Iterator, Sequence

from gma.decoding.batch import Batch
from gma.decoding.engine import open_batch
from gma.decoding.hypothesis import Hypothesis
from gma.model.transformer import Transformer
from gma.text.vocabulary import EOS

# a source of more tokens shares its batch with few others: the buffers have room for the longest in every slot
LONG_SOURCE = 1024
# source tokens of a sentence that is translated alone, its end included
LONGEST_ALONE = 1 << 16


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
    hypotheses = [Hypothesis() for _ in sources]
    for indices, room in portions([len(source) for source in sources], slots):
        batch = open_batch(model)
        batch.reserve(min(room, len(indices)))
        _translate(batch, indices, sources, hypotheses, delta, room, finished)
    return hypotheses


def portions(lengths: Sequence[int], slots: int) -> Iterator[tuple[list[int], int]]:
    """Sentences to be decoded in one batch, longest last, and how many at a time."""
    queue = sorted(range(len(lengths)), key=lengths.__getitem__)
    while queue and lengths[queue[-1]] > LONG_SOURCE:
        room = max(1, slots * LONG_SOURCE // lengths[queue[-1]])
        yield queue[-room:], room
        del queue[-room:]
    if queue:
        yield queue, slots


def _translate(
    batch: Batch,
    queue: list[int],
    sources: Sequence[Sequence[int]],
    hypotheses: list[Hypothesis],
    delta: float | None,
    slots: int,
    finished: Callable[[int], None],
) -> None:
    at_work: dict[int, int] = {}  # slot -> index of its sentence
    begun: dict[int, float] = {}  # slot -> time
    queue = list(queue)
    while queue or at_work:
        free = slots - len(at_work)
        # a few at a time would cost as many passes of the encoder
        if queue and (not at_work or free >= slots // 4):
            now = time.perf_counter()
            opened = {batch.open(delta): queue.pop() for _ in range(min(free, len(queue)))}
            batch.push({slot: sources[index] for slot, index in opened.items()})
            at_work |= opened
            begun |= dict.fromkeys(opened, now)
        scores = batch.advance()
        assert scores is not None, "a source that has ended never waits"
        tokens = list(scores.best)
        now = time.perf_counter()
        for step, slot in enumerate(scores.slots):
            hypothesis = hypotheses[at_work[slot]]
            places = scores.positions[step], scores.widths[step]
            tokens[step] = hypothesis.step(tokens[step], scores.needed[step], *places)
            hypothesis.seconds.append(now - begun[slot])
        batch.write(scores.slots, tokens)
        done = [slot for slot, token in zip(scores.slots, tokens) if token == EOS]
        for slot in done:
            batch.close(slot)
            del at_work[slot]
        if done:
            finished(len(done))
