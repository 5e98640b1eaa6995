"""The batch in C++ (csrc/cpu/engine): float32 on the CPU, on weights that are packed once.

A slot's results do not depend on which others step with it, on how its source was cut into pushes, or on the number of
threads: not by a bit.
"""

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from gma.decoding.batch import SearchableBatch
from gma.decoding.packed_model import packed
from gma.model.transformer import Transformer
from gma.text.vocabulary import BOS, EOS
from gma_kernels import engine


class NativeScores:
    def __init__(
        self,
        batch: engine.Batch,
        slots: list[int],
        best: list[int],
        needed: list[int],
        positions: list[list[float]],
        widths: list[list[float]],
    ):
        self._batch = batch
        self.slots, self.best, self.needed, self.positions, self.widths = slots, best, needed, positions, widths

    @property
    def logits(self) -> Tensor:
        return self._batch.logits(len(self.slots))


class NativeBatch(SearchableBatch):
    """
    Args:
        weights: float32, bfloat16 or int8
    """

    def __init__(self, model: Transformer, weights: str = "float32"):
        super().__init__(model)
        self._batch = engine.Batch(packed(model, weights))

    @property
    def slots(self) -> list[int]:
        return self._batch.slots()

    def open(self, delta: float | None = None) -> int:
        return self._batch.open(self.model.latency(delta), BOS)

    def change_latency(self, slot: int, delta: float | None) -> None:
        self._batch.change_latency(slot, self.model.latency(delta))

    def close(self, slot: int) -> None:
        self._batch.close(slot)

    def fork(self, slot: int) -> int:
        return self._batch.fork(slot)

    def copy(self, origins: Mapping[int, int]) -> None:
        self._batch.copy(dict(origins))

    def reserve(self, slots: int) -> None:
        pass  # a slot takes memory as it needs it

    def push(self, tokens: Mapping[int, Sequence[int]], *, wanted: bool = False) -> dict[int, Tensor]:
        states = self._batch.push({slot: list(new) for slot, new in tokens.items()}, wanted)
        if not wanted:
            return {}
        slots = sorted(slot for slot, new in tokens.items() if new)
        return dict(zip(slots, states.split([len(tokens[slot]) for slot in slots])))

    def advance(self, slots: Iterable[int] | None = None) -> NativeScores | None:
        found = self._batch.advance(self._batch.slots() if slots is None else list(slots))
        return None if found is None else NativeScores(self._batch, *found)

    def write(self, slots: Sequence[int], tokens: Sequence[int]) -> None:
        self._batch.write(list(slots), list(tokens), EOS)

    def awaited(self, slot: int) -> int:
        return self._batch.needed(slot)

    def arrived(self, slot: int) -> int:
        return self._batch.arrived(slot)

    def take_back(self, slot: int, arrived: int) -> None:
        self._batch.take_back(slot, arrived)

    def force(self, tokens: Mapping[int, Sequence[int]]) -> None:
        self._batch.force({slot: list(given) for slot, given in tokens.items()})
