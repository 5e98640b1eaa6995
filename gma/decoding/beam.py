"""Beam search over translations of sources that have arrived completely.

While a source is still arriving a written word stands, and there is nothing to search.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gma.decoding.batch import Scores, SearchableBatch
from gma.decoding.engine import open_searchable_batch
from gma.decoding.greedy import portions
from gma.decoding.hypothesis import Hypothesis, length_limit
from gma.model.transformer import Transformer
from gma.text.vocabulary import EOS


class Live(NamedTuple):
    likelihood: float  # sum of its tokens' log-probabilities
    hypothesis: Hypothesis


class Ended(NamedTuple):
    score: float  # mean log-probability of its tokens, the end included
    hypothesis: Hypothesis


def beam_search(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    width: int,
    *,
    delta: float | None = None,
    slots: int = 64,
    finished: Callable[[int], None] = lambda count: None,
) -> list[Hypothesis]:
    """`greedy` with several hypotheses a sentence. Only a model that waits for the whole source may look at it.

    Args:
        width: hypotheses kept at every step.
        slots: hypotheses decoded together.
    """
    hypotheses = [Hypothesis() for _ in sources]
    for indices, room in portions([len(source) for source in sources], max(1, slots // width)):
        while indices:
            begun = time.perf_counter()
            indices, chosen = indices[:-room], indices[-room:]
            batch = open_searchable_batch(model)
            batch.reserve(width * len(chosen))
            opened = {batch.open(delta): index for index in chosen}
            batch.push({slot: sources[index] for slot, index in opened.items()})
            best = complete(batch, {slot: hypotheses[index] for slot, index in opened.items()}, width)
            for slot, index in opened.items():
                hypotheses[index] = best[slot]
                # no word is certain before the search has ended
                best[slot].seconds = [time.perf_counter() - begun] * len(best[slot].needed)
            finished(len(chosen))
    return hypotheses


@torch.no_grad()
def complete(batch: SearchableBatch, begun: Mapping[int, Hypothesis], width: int) -> dict[int, Hypothesis]:
    """The best completion of the translation begun in each slot, by slot. Their sources have ended.

    The slots stay open, for the caller to close.
    """
    beams = {slot: Beam(batch, slot, hypothesis, width) for slot, hypothesis in begun.items()}
    going = list(beams.values())
    while going:
        scores = batch.advance([slot for beam in going for slot in beam.slots])
        assert scores is not None, "a source that has ended never waits"
        # double: sums of many steps are compared
        likelihoods = scores.logits.double().log_softmax(dim=1)
        steps = [beam.step(scores, likelihoods) for beam in going]
        batch.copy({target: origin for step in steps for target, origin in step.copies.items()})
        tokens = {slot: token for step in steps for slot, token in step.tokens.items()}
        batch.write(list(tokens), list(tokens.values()))
        going = [beam for beam in going if not beam.done]
    for beam in beams.values():
        beam.close()
    return {slot: beam.best for slot, beam in beams.items()}


class Step(NamedTuple):
    """What has been chosen: slots that go on with another slot's past, and the next tokens, by slot."""

    copies: dict[int, int]
    tokens: dict[int, int]


class Beam:
    """The `width` most likely translations of one sentence, each in a slot of the batch.

    A hypothesis that ends among the best `width` is set aside; the search ends with as many set aside. The best has
    the largest mean log-probability.
    """

    def __init__(self, batch: SearchableBatch, slot: int, hypothesis: Hypothesis, width: int):
        self._batch, self._origin, self._width = batch, slot, width
        self._begun = len(hypothesis.needed)  # steps before the search are the same for all
        self._live = {slot: Live(0.0, hypothesis)}
        self._spare: list[int] = []
        self._ended: list[Ended] = []

    @property
    def slots(self) -> Iterable[int]:
        return self._live.keys()

    @property
    def done(self) -> bool:
        return not self._live or len(self._ended) >= self._width

    @property
    def best(self) -> Hypothesis:
        return max(self._ended, key=lambda ended: ended.score).hypothesis

    def step(self, scores: Scores, likelihoods: Tensor) -> Step:
        """Choose the next tokens. likelihoods: [n, V], log-probabilities of all rows of `scores`."""
        rows = [row for row, slot in enumerate(scores.slots) if slot in self._live]
        past = [self._live[scores.slots[row]] for row in rows]
        totals = likelihoods[rows] + likelihoods.new_tensor([live.likelihood for live in past])[:, None]
        cut_off = self._cut_off(scores, rows, past, totals)
        vocabulary = totals.shape[1]
        # enough to go on with: of each hypothesis at most one continuation is its end
        best = totals.flatten().topk(min(2 * self._width, totals.numel()))
        grown: list[tuple[int, int, Live]] = []  # slot of the past, token, hypothesis
        for rank, (total, place) in enumerate(zip(best.values.tolist(), best.indices.tolist())):
            place, token = divmod(place, vocabulary)
            if total == -math.inf or len(grown) == self._width or (token == EOS and rank >= self._width):
                continue
            row, hypothesis = rows[place], past[place].hypothesis.copy()
            hypothesis.step(token, scores.needed[row], scores.positions[row], scores.widths[row])
            if token == EOS:
                hypothesis.complete = place not in cut_off
                self._ended.append(Ended(total / (len(hypothesis.needed) - self._begun), hypothesis))
            else:
                grown.append((scores.slots[row], token, Live(total, hypothesis)))
        return self._place(grown if len(self._ended) < self._width else [])

    def _cut_off(self, scores: Scores, rows: list[int], past: list["Live"], totals: Tensor) -> set[int]:
        """Force the end on hypotheses at the length limit; returns those that would have gone on."""
        cut_off = set()
        for place, (row, live) in enumerate(zip(rows, past)):
            furthest = max(live.hypothesis.furthest, scores.needed[row])
            if len(live.hypothesis.needed) + 1 > length_limit(furthest):
                if totals[place].argmax() != EOS:
                    cut_off.add(place)
                totals[place, :EOS] = totals[place, EOS + 1 :] = -math.inf
        return cut_off

    def _place(self, grown: list[tuple[int, int, "Live"]]) -> Step:
        """Give every hypothesis a slot; the best of those with the same past stays in its slot."""
        self._spare += self._live.keys() - {slot for slot, *_ in grown}
        self._live = {}
        copies, tokens = {}, {}
        for origin, token, live in grown:
            slot = origin
            if origin in self._live and self._spare:
                slot = self._spare.pop()
                copies[slot] = origin
            elif origin in self._live:
                slot = self._batch.fork(origin)
            self._live[slot], tokens[slot] = live, token
        return Step(copies, tokens)

    def close(self) -> None:
        """Give back all slots but the first."""
        for slot in {*self._spare, *self._live} - {self._origin}:
            self._batch.close(slot)
