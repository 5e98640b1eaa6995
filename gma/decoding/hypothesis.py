"""A translation on its way: its tokens, and what each of them has waited for."""

from dataclasses import dataclass, field, replace

from gma.text.vocabulary import EOS


def length_limit(needed: int) -> int:
    """Steps after which a translation that has needed so many source tokens is cut off.

    No natural one is that long, and a loop must end. What counts is the source used, not its length: a stream knows
    the one as it goes and the other only at the end, and both must cut off at the same step.
    """
    return 2 * needed + 20


@dataclass
class Hypothesis:
    """A translation, its steps in order; lists have an entry per step, the end-of-sentence step included."""

    tokens: list[int] = field(default_factory=list)  # without the end-of-sentence
    needed: list[int] = field(default_factory=list)  # source tokens used, g(i)
    positions: list[list[float]] = field(default_factory=list)  # aligned position in every layer, 1-based
    widths: list[list[float]] = field(default_factory=list)  # of the prior in every layer
    seconds: list[float] = field(default_factory=list)  # since the sentence was begun
    furthest: int = 0  # the largest of `needed`
    complete: bool = False  # ended by itself, and not by the limit

    def copy(self) -> "Hypothesis":
        """One that can go on by itself; what a step has found is shared, as it never changes."""
        return replace(
            self,
            tokens=self.tokens.copy(),
            needed=self.needed.copy(),
            positions=self.positions.copy(),
            widths=self.widths.copy(),
            seconds=self.seconds.copy(),
        )

    def step(self, token: int, needed: int, positions: list[float], widths: list[float]) -> int:
        """Append the best token; returns it, or EOS if the translation is too long already."""
        self.needed.append(needed)
        self.positions.append(positions)
        self.widths.append(widths)
        self.furthest = max(self.furthest, needed)
        if token == EOS:
            self.complete = True
        elif len(self.needed) > length_limit(self.furthest):
            return EOS
        else:
            self.tokens.append(token)
        return token
