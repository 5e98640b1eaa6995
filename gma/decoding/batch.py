"""What a batch of sentences is to those who decode with it, whichever engine computes its steps."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Protocol

from torch import Tensor

from gma.model.transformer import Transformer


class Scores(Protocol):
    """What `advance` has found for the slots that came through the decoder; good until the batch's next step."""

    @property
    def slots(self) -> Sequence[int]: ...

    @property
    def best(self) -> Sequence[int]:
        """The most likely tokens."""
        ...

    @property
    def needed(self) -> Sequence[int]:
        """Source tokens used by the furthest layer."""
        ...

    @property
    def positions(self) -> Sequence[list[float]]:
        """[n][layers], aligned positions (1-based) of the furthest head"""
        ...

    @property
    def widths(self) -> Sequence[list[float]]:
        """[n][layers], of the prior of that head"""
        ...

    @property
    def logits(self) -> Tensor:
        """[n, V]"""
        ...


class Batch(ABC):
    """Slots for sentences that begin, wait, go on and end independently of one another.

    A token stops at the first decoder layer that needs source which has not arrived, and goes on from there later:
    nothing is computed twice. `advance` runs all slots that can go on, together, and leaves the choice of the token to
    the caller, who answers with `write`.
    """

    can_fork: ClassVar[bool] = True  # whether there is something to search once the source has ended

    def __init__(self, model: Transformer):
        if model.training:
            raise ValueError("the model is in training mode; expected model.eval(): dropout has no place in decoding")
        self.model = model

    @property
    @abstractmethod
    def slots(self) -> list[int]:
        """Those that are open, ascending."""

    @abstractmethod
    def open(self, delta: float | None = None) -> int:
        """Begin a sentence; returns its slot."""

    @abstractmethod
    def change_latency(self, slot: int, delta: float | None) -> None:
        """Keep another latency from the next token on. A token that waits is begun again, in every layer."""

    @abstractmethod
    def close(self, slot: int) -> None:
        """End a sentence and free its slot; with the last one goes all memory, with a long one most of what it took."""

    @abstractmethod
    def push(self, tokens: Mapping[int, Sequence[int]], *, wanted: bool = False) -> dict[int, Tensor]:
        """Give slots more source, all in one pass of the encoder. The end-of-sentence token ends a source.

        Returns the encoder's states of the new tokens, [T, E], of every slot that was given some, if they are `wanted`.
        """

    @abstractmethod
    def advance(self, slots: Iterable[int] | None = None) -> Scores | None:
        """Take every slot, or each of these, as far through the decoder as its source allows.

        Returns the scores of those that came through, or None if none could go on.
        """

    @abstractmethod
    def write(self, slots: Sequence[int], tokens: Sequence[int]) -> None:
        """Choose the next tokens of the slots that came through `advance`."""

    @abstractmethod
    def awaited(self, slot: int) -> int:
        """Source tokens that must have arrived before a slot goes on; UNKNOWN_LENGTH for all of them."""

    @abstractmethod
    def reserve(self, slots: int) -> None:
        """Expect so many sentences at a time."""


class SearchableBatch(Batch):
    """One in which translations can be begun again, from another past."""

    @abstractmethod
    def fork(self, slot: int) -> int:
        """Begin a second translation of a sentence, with the same past; returns its slot."""

    @abstractmethod
    def copy(self, origins: Mapping[int, int]) -> None:
        """Let slots (the keys) go on from the past of other slots: translations of one sentence, of one length."""

    @abstractmethod
    def arrived(self, slot: int) -> int:
        """How many source tokens a slot holds."""

    @abstractmethod
    def take_back(self, slot: int, arrived: int) -> None:
        """Forget the source behind so many tokens, its end with it."""

    @abstractmethod
    def force(self, tokens: Mapping[int, Sequence[int]]) -> None:
        """Begin translations anew, from given tokens, the first one of all included: the last is the next input.

        Each attends to all the source that has arrived: only for models that wait for the whole of it.
        """
