"""Streams that step together in one batch, and what becomes of them when a step fails."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy

from gma.decoding import beam
from gma.decoding.batch import SearchableBatch
from gma.decoding.course import Course
from gma.decoding.engine import open_batch
from gma.model.transformer import Transformer
from gma.text.vocabulary import EOS


class Ensemble:
    """The courses under way, each in a slot of one batch."""

    def __init__(self, model: Transformer):
        self.batch = open_batch(model)
        self.courses: dict[int, Course] = {}  # by slot

    def begin(self, course: Course) -> None:
        course.slot = self.batch.open(course.kept[0].delta)
        self.courses[course.slot] = course

    def end(self, course: Course) -> None:
        """Give back a course's slot, once."""
        if course.slot is not None:
            self.batch.close(course.slot)
            del self.courses[course.slot]
            course.slot = None

    def change_latency(self, course: Course) -> None:
        """Begin to keep what has been planned, if its place has come."""
        if course.slot is not None and (change := course.due()) is not None:
            self.batch.change_latency(course.slot, change.delta)

    def step(self, sources: Mapping[Course, Sequence[int]]) -> None:
        """Give courses new source tokens, and advance each until it has ended or waits for more; all others wait."""
        self.batch.push({_slot(course): tokens for course, tokens in sources.items()})
        self.go_on(sources)

    def go_on(self, courses: Iterable[Course]) -> None:
        self._search([course for course in courses if course.finished and not course.forced and course.beam > 1])
        going = {course.slot: course for course in courses if course.slot is not None}
        while (scores := self.batch.advance(going)) is not None:
            rows = zip(scores.slots, scores.best, scores.needed, scores.positions, scores.widths)
            tokens = [
                going[slot].choose(best, needed, positions, widths) for slot, best, needed, positions, widths in rows
            ]
            self.batch.write(scores.slots, tokens)
            for slot, token in zip(scores.slots, tokens):
                if token == EOS:
                    self.end(going.pop(slot))
                else:
                    self.change_latency(going[slot])

    def _search(self, courses: list[Course]) -> None:
        """End courses by beam search; their sources have ended."""
        if not courses:
            return
        assert isinstance(self.batch, SearchableBatch), "whoever asks for a beam is refused elsewhere"
        for width in sorted({course.beam for course in courses}):
            begun = {_slot(course): course for course in courses if course.beam == width}
            hypotheses = {slot: course.hypothesis for slot, course in begun.items()}
            for slot, hypothesis in beam.complete(self.batch, hypotheses, width).items():
                course, tokens = begun[slot], [*hypothesis.tokens, EOS]
                for step in range(len(course.hypothesis.needed), len(tokens)):
                    course.write(
                        tokens[step], hypothesis.needed[step], hypothesis.positions[step], hypothesis.widths[step]
                    )
                course.hypothesis = hypothesis
                self.end(course)

    def replay(self, courses: Sequence[Course]) -> None:
        """Bring courses to where they had come, in this batch: what they have written is forced."""
        for course in courses:
            self.begin(course)
        self.batch.push({_slot(course): course.source for course in courses})
        steps = dict.fromkeys((_slot(course) for course in courses), 0)
        while steps := self._unfinished(steps):
            scores = self.batch.advance(steps)
            if scores is None:
                # rounding, in another batch, where a position lies at the border of two source tokens
                raise RuntimeError("a translation that is repeated waits for more source than it did the first time")
            self.batch.write(scores.slots, [self.courses[slot].hypothesis.tokens[steps[slot]] for slot in scores.slots])
            for slot in scores.slots:
                steps[slot] += 1

    def _unfinished(self, steps: dict[int, int]) -> dict[int, int]:
        """Those slots that have not come to the end of what was written; each keeps its latency of that time."""
        for slot, step in steps.items():
            for change in self.courses[slot].kept:
                if change.place == step > 0:
                    self.batch.change_latency(slot, change.delta)
        return {slot: step for slot, step in steps.items() if step < len(self.courses[slot].hypothesis.tokens)}


def recovered(
    model: Transformer, courses: Sequence[Course], suspects: Sequence[Course]
) -> tuple[Ensemble, list[Course]]:
    """After a step has failed: a new ensemble of the courses that can go on, and those that make it fail again.

    Args:
        courses: all that were under way.
        suspects: those that took part in the step; they go on from where it failed.
    """
    failing = _failing(model, suspects)
    ensemble = Ensemble(model)
    ensemble.replay([course for course in courses if course not in failing])
    ensemble.go_on([course for course in suspects if course not in failing])
    return ensemble, failing


def _failing(model: Transformer, courses: Sequence[Course]) -> list[Course]:
    """Which of them fail, each by itself: found by halves."""
    if not courses or _succeeds(model, courses):
        return []
    if len(courses) == 1:
        return list(courses)
    middle = len(courses) // 2
    return [*_failing(model, courses[:middle]), *_failing(model, courses[middle:])]


def _succeeds(model: Transformer, courses: Sequence[Course]) -> bool:
    """Whether they can be replayed and go on; they stay as they are."""
    rehearsal, doubles = Ensemble(model), [_double(course) for course in courses]
    try:
        rehearsal.replay(doubles)
        rehearsal.go_on(doubles)
    except Exception:
        return False
    return True


def _double(course: Course) -> Course:
    double = copy(course)
    double.hypothesis, double.emissions, double.pieces = course.hypothesis.copy(), [], course.pieces.copy()
    double.forced, double.kept, double.planned = course.forced.copy(), course.kept.copy(), course.planned.copy()
    return double


def _slot(course: Course) -> int:
    assert course.slot is not None, "its translation has ended"
    return course.slot
