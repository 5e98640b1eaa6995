"""MU: translation by meaning units (Zhang et al., 2020), with a model that was trained to wait for the whole source.

After every source word a classifier scores whether a meaning unit ends there. Where the score reaches θ, what has been
heard is translated as a sentence of its own, with an end-of-sentence behind it: the committed target tokens are forced,
greedy decoding goes on from them, and what it adds is committed. Its end-of-sentence is dropped until the source has
really ended. All decoder states are those of the source heard by then: a unit computes those of the committed tokens
anew, in one pass, so that translating each prefix from scratch gives the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from gma.decoding.batch import Batch, Scores, SearchableBatch
from gma.policies import Segmenter
from gma.text.vocabulary import BOS, EOS
from gma.text.words import source_word_ends


@dataclass
class UnitSentence:
    """What is read and committed of a sentence, beside what the decoder knows of it."""

    threshold: float  # θ
    unread: list[int] = field(default_factory=list)  # source tokens that have arrived after the latest unit
    committed: list[int] = field(default_factory=list)  # target tokens
    writing: bool = False  # a unit is being translated
    ended: bool = False  # the whole source has arrived
    awaited: int = 0  # source tokens, while none is being written


class UnitScores(NamedTuple):
    """Some rows of another batch's scores."""

    scores: Scores
    rows: list[int]
    needed: list[int]

    @property
    def slots(self) -> list[int]:
        return [self.scores.slots[row] for row in self.rows]

    @property
    def best(self) -> list[int]:
        return [self.scores.best[row] for row in self.rows]

    @property
    def positions(self) -> list[list[float]]:
        return [self.scores.positions[row] for row in self.rows]

    @property
    def widths(self) -> list[list[float]]:
        return [self.scores.widths[row] for row in self.rows]

    @property
    def logits(self) -> Tensor:
        return self.scores.logits[self.rows]


class UnitBatch(Batch):
    """Slots that read until a unit ends, and then write until its translation does, in a batch that waits for the end
    of a source.

    A unit's end-of-sentence stands in the source's buffers only until more source takes its place.
    """

    can_fork = False

    def __init__(self, batch: SearchableBatch, segmenter: Segmenter):
        super().__init__(batch.model)
        self._batch, self._segmenter = batch, segmenter
        self._sentences: dict[int, UnitSentence] = {}

    @property
    def slots(self) -> list[int]:
        return self._batch.slots

    def open(self, delta: float | None = None) -> int:
        slot = self._batch.open(delta)
        self._sentences[slot] = UnitSentence(self.model.latency(delta))
        return slot

    def change_latency(self, slot: int, delta: float | None) -> None:
        self._batch.change_latency(slot, delta)
        self._sentences[slot].threshold = self.model.latency(delta)

    def close(self, slot: int) -> None:
        self._batch.close(slot)
        del self._sentences[slot]

    def reserve(self, slots: int) -> None:
        self._batch.reserve(slots)

    def push(self, tokens: Mapping[int, Sequence[int]], *, wanted: bool = False) -> dict[int, Tensor]:
        """Source to be read by `advance`: nothing is computed before."""
        for slot, new in tokens.items():
            if self._sentences[slot].ended:
                raise ValueError(f"slot {slot} was given {len(new)} tokens after the end of its source")
        for slot, new in tokens.items():
            sentence = self._sentences[slot]
            sentence.unread.extend(new)
            sentence.ended = EOS in new
        return {}

    def advance(self, slots: Iterable[int] | None = None) -> UnitScores | None:
        slots = sorted(self._sentences if slots is None else slots)
        while True:
            self._read([slot for slot in slots if not self._sentences[slot].writing])
            scores = self._batch.advance([slot for slot in slots if self._sentences[slot].writing])
            if scores is None:
                return None
            best = scores.best
            going = [row for row, slot in enumerate(scores.slots) if best[row] != EOS or self._is_last(slot)]
            for slot in {*scores.slots} - {scores.slots[row] for row in going}:
                self._end_unit(slot)
            if going:
                # a unit's end-of-sentence is no source that was needed
                needed = [scores.needed[row] - (not self._is_last(scores.slots[row])) for row in going]
                return UnitScores(scores, going, needed)

    def write(self, slots: Sequence[int], tokens: Sequence[int]) -> None:
        self._batch.write(slots, tokens)
        for slot, token in zip(slots, tokens):
            if token != EOS:
                self._sentences[slot].committed.append(token)

    def awaited(self, slot: int) -> int:
        sentence = self._sentences[slot]
        return self._batch.awaited(slot) if sentence.writing else sentence.awaited

    def _is_last(self, slot: int) -> bool:
        """Whether what is being translated is the whole source."""
        sentence = self._sentences[slot]
        return sentence.ended and not sentence.unread

    def _read(self, slots: list[int]) -> None:
        """Read to the end of the next unit, or of what has arrived; where a unit ends, writing begins."""
        unread = {slot: self._sentences[slot].unread for slot in slots if self._sentences[slot].unread}
        if not unread:
            return
        begun = {slot: self._batch.arrived(slot) for slot in unread}
        lengths = self._unit_lengths(unread, self._batch.push(unread, wanted=True))
        # read too far: what follows the unit is read again, in the place of the end-of-sentence
        for slot, length in lengths.items():
            self._sentences[slot].unread = unread[slot][length:]
            self._batch.take_back(slot, begun[slot] + length)
        self._batch.push({slot: [EOS] for slot in lengths})
        for slot in unread.keys() - lengths.keys():
            self._sentences[slot].unread = []
            # one more, at least, before anything can be written
            self._sentences[slot].awaited = self._batch.arrived(slot) + 1
        self._begin_units([slot for slot in unread if slot in lengths or self._sentences[slot].ended])

    @torch.no_grad()
    def _unit_lengths(self, unread: Mapping[int, Sequence[int]], states: Mapping[int, Tensor]) -> dict[int, int]:
        """How many of its new tokens, with these states, a unit of each slot takes, for those in which one ends."""
        lengths = {}
        for slot, tokens in unread.items():
            scores, threshold = self._segmenter(states[slot]).tolist(), self._sentences[slot].threshold
            ends = source_word_ends(tokens, self._segmenter.vocabulary)
            unit = next((end for end in ends if scores[end - 1] >= threshold), None)
            if unit is not None:
                lengths[slot] = unit
        return lengths

    def _begin_units(self, slots: list[int]) -> None:
        """Let slots whose source ends here, or seems to, go on from what they have committed."""
        for slot in slots:
            self._sentences[slot].writing = True
        self._batch.force({slot: [BOS, *self._sentences[slot].committed] for slot in slots})

    def _end_unit(self, slot: int) -> None:
        """Take back the unit's end-of-sentence and read on."""
        sentence, arrived = self._sentences[slot], self._batch.arrived(slot) - 1
        sentence.writing, sentence.awaited = False, arrived + 1
        self._batch.take_back(slot, arrived)
