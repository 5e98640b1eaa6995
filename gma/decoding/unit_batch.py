"""MU: translation by meaning units (Zhang et al., 2020), with a model that was trained to wait for the whole source.

After every source word a classifier scores whether a meaning unit ends there. Where the score reaches θ, what has been
heard is translated as a sentence of its own, with an end-of-sentence behind it: the committed target tokens are forced,
greedy decoding goes on from them, and what it adds is committed. Its end-of-sentence is dropped until the source has
really ended. All decoder states are those of the source heard by then: a unit computes those of the committed tokens
anew, in one pass, so that translating each prefix from scratch gives the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from gma.attention.alignment import without_prior
from gma.attention.memory import Past
from gma.attention.self_attention import causal
from gma.decoding.incremental import NOWHERE, IncrementalBatch, Scores
from gma.model.transformer import Transformer
from gma.policies import Segmenter
from gma.text.padding import padded
from gma.text.vocabulary import BOS, EOS
from gma.text.words import source_word_ends


@dataclass
class Course:
    """How far a sentence has come, beside what the decoder knows of it."""

    unread: list[int] = field(default_factory=list)  # source tokens that have arrived after the latest unit
    committed: list[int] = field(default_factory=list)  # target tokens
    writing: bool = False  # a unit is being translated
    ended: bool = False  # the whole source has arrived


class UnitBatch(IncrementalBatch):
    """Slots that read until a unit ends, and then write until its translation does.

    A unit's end-of-sentence stands in the source's buffers only until more source takes its place.
    """

    can_fork = False

    def __init__(self, model: Transformer, segmenter: Segmenter):
        super().__init__(model)
        self._segmenter = segmenter
        self._courses: dict[int, Course] = {}

    def open(self, delta: float | None = None) -> int:
        slot = super().open(delta)
        self._courses[slot] = Course()
        return slot

    def close(self, slot: int) -> None:
        super().close(slot)
        del self._courses[slot]

    def push(self, tokens: Mapping[int, Sequence[int]]) -> None:
        """Give slots more source, to be read by `advance`. The end-of-sentence token ends a source."""
        for slot, new in tokens.items():
            if self._courses[slot].ended:
                raise ValueError(f"slot {slot} was given {len(new)} tokens after the end of its source")
        for slot, new in tokens.items():
            course = self._courses[slot]
            course.unread.extend(new)
            course.ended = EOS in new

    @torch.no_grad()
    def advance(self, slots: Iterable[int] | None = None) -> Scores | None:
        slots = sorted(self.sentences if slots is None else slots)
        while True:
            self._read([slot for slot in slots if not self._courses[slot].writing])
            scores = super().advance([slot for slot in slots if self._courses[slot].writing])
            if scores is None:
                return None
            best = scores.logits.argmax(dim=1).tolist()
            going = [row for row, slot in enumerate(scores.slots) if best[row] != EOS or self._is_last(slot)]
            for slot in {*scores.slots} - {scores.slots[row] for row in going}:
                self._end_unit(slot)
            if going:
                return self._scores(scores, going)

    def write(self, slots: Sequence[int], tokens: Sequence[int]) -> None:
        super().write(slots, tokens)
        for slot, token in zip(slots, tokens):
            if token != EOS:
                self._courses[slot].committed.append(token)

    def _is_last(self, slot: int) -> bool:
        """Whether what is being translated is the whole source."""
        course = self._courses[slot]
        return course.ended and not course.unread

    def _scores(self, scores: Scores, rows: list[int]) -> Scores:
        """Of some rows; a unit's end-of-sentence is no source that was needed."""
        slots = [scores.slots[row] for row in rows]
        return Scores(
            slots,
            scores.logits[rows],
            [scores.needed[row] - (not self._is_last(slot)) for row, slot in zip(rows, slots)],
            [scores.positions[row] for row in rows],
            [scores.widths[row] for row in rows],
        )

    def _read(self, slots: list[int]) -> None:
        """Read to the end of the next unit, or of what has arrived; where a unit ends, writing begins."""
        unread = {slot: self._courses[slot].unread for slot in slots if self._courses[slot].unread}
        if not unread:
            return
        begun = {slot: self.sentences[slot].arrived for slot in unread}
        states = super().push(unread)
        assert states is not None, "every one of them has something to read"
        lengths = self._unit_lengths(unread, states)
        # read too far: what follows the unit is read again, in the place of the end-of-sentence
        for slot, length in lengths.items():
            self._courses[slot].unread = unread[slot][length:]
            self.sentences[slot].arrived = begun[slot] + length
            self.sentences[slot].ended = False
        super().push({slot: [EOS] for slot in lengths})
        for slot in unread.keys() - lengths.keys():
            self._courses[slot].unread = []
            # one more, at least, before anything can be written
            self.sentences[slot].needed = self.sentences[slot].arrived + 1
        self._begin_units([slot for slot in sorted(unread) if self.sentences[slot].ended])

    def _unit_lengths(self, unread: Mapping[int, Sequence[int]], states: torch.Tensor) -> dict[int, int]:
        """How many of its new tokens a unit of each slot takes, for those slots in which one ends.

        states: [n, T, E], of the slots in ascending order.
        """
        scores = self._segmenter(states).tolist()
        lengths = {}
        for slot, row in zip(sorted(unread), scores):
            threshold = self.sentences[slot].delta
            ends = source_word_ends(unread[slot], self._segmenter.vocabulary)
            unit = next((end for end in ends if row[end - 1] >= threshold), None)
            if unit is not None:
                lengths[slot] = unit
        return lengths

    def _begin_units(self, slots: list[int]) -> None:
        """Let slots whose source ends here, or seems to, go on from what they have committed."""
        for slot in slots:
            course, sentence = self._courses[slot], self.sentences[slot]
            course.writing = True
            sentence.written, sentence.token = len(course.committed), [BOS, *course.committed][-1]
            sentence.layer, sentence.needed, sentence.furthest = NOWHERE, 0, 0
        self._force([slot for slot in slots if self._courses[slot].committed])

    def _force(self, slots: list[int]) -> None:
        """The decoder's states of committed tokens, all but the last, which is its next input, in one pass."""
        if not slots:
            return
        rows = self._rows(slots)
        inputs = [[BOS, *self._courses[slot].committed[:-1]] for slot in slots]
        longest = max(map(len, inputs))
        target = padded(inputs, rows.index.device)
        start = torch.zeros_like(rows.index)
        # what padding leaves behind is overwritten before it is seen
        seen = causal(target.shape[0], target.shape[1], target.device)
        heard = rows.source_length.int()[:, None, None].expand(-1, 1, longest)
        hidden = self.model.decoder.embed.extend(target, start, longest - 1)
        for index, (layer, own) in enumerate(zip(self.model.decoder.layers, self._self_caches)):
            own.reserve(self._slots, longest)
            front = layer.approach(hidden, seen, Past(own, rows.index, start))
            hidden = layer.attend(front, self._memory(index, rows), without_prior(front.query, heard))

    def _end_unit(self, slot: int) -> None:
        """Take back the unit's end-of-sentence and read on."""
        sentence = self.sentences[slot]
        self._courses[slot].writing = False
        sentence.arrived -= 1
        sentence.ended = False
        sentence.needed = sentence.arrived + 1
