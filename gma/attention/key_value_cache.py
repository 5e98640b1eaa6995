"""Keys and values of many sentences that are still growing, kept for incremental decoding."""

import torch
from torch import Tensor

import gma_kernels

# positions below which giving back would cost more than it frees
LARGE = 512


class KeyValueCache:
    """Growable buffers of keys, of values, and of what else a policy keeps, [N, C, H, D] each: N sentences, room for C
    positions each.

    What lies past a sentence's own length is never read: rows of the attention say how many positions they see.
    """

    def __init__(self, heads: int, head_dim: int, like: Tensor, parts: int = 2):
        self.parts = [like.new_empty(0, 0, heads, head_dim)] * parts

    @property
    def key(self) -> Tensor:
        return self.parts[0]

    @property
    def value(self) -> Tensor:
        return self.parts[1]

    @property
    def room(self) -> int:
        """Positions that there is room for, in every sentence."""
        return self.key.shape[1]

    def reserve(self, sentences: int, positions: int) -> None:
        """Make room for at least so many; what is there stays. Doubles, so that growing is cheap in the long run."""
        had_sentences, had_positions = self.key.shape[:2]
        if sentences <= had_sentences and positions <= had_positions:
            return
        if positions > had_positions:
            positions = max(positions, 2 * had_positions, 32)
        shape = (max(sentences, had_sentences), max(positions, had_positions), *self.key.shape[2:])
        self.parts = [_enlarged(buffer, shape) for buffer in self.parts]

    def give_back(self, positions: int) -> None:
        """Cut large buffers of which no sentence holds more than a quarter; `positions` is what the longest holds."""
        if self.key.shape[1] > LARGE and 4 * positions <= self.key.shape[1]:
            self.parts = [buffer[:, : 2 * positions].clone() for buffer in self.parts]

    def drop(self, positions: Tensor) -> None:
        """Forget the first positions of every sentence, [N]: what stood behind them stands at the beginning."""
        place = torch.arange(self.room, device=positions.device) + positions[:, None]
        # what comes behind the last position is never read
        place.clamp_(max=self.room - 1)
        sentence = torch.arange(len(positions), device=positions.device)[:, None]
        self.parts = [buffer[sentence, place] for buffer in self.parts]

    def write(self, rows: Tensor, start: Tensor, *parts: Tensor) -> None:
        """Put n×T new positions behind `start` of these sentences. rows, start: [n]; key, value, …: [n, T, H, D]."""
        place = start[:, None]
        if parts[0].shape[1] > 1:
            place = place + torch.arange(parts[0].shape[1], device=start.device)
        for buffer, part in zip(self.parts, parts):
            buffer[rows[:, None], place] = part

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Let the sentences `target` hold what the sentences `source` hold. Both [n]."""
        for buffer in self.parts:
            buffer[target] = buffer[source]

    def attend(
        self, query: Tensor, rows: Tensor, center: Tensor, width: Tensor, visible: Tensor, prior: str, backend: str
    ) -> Tensor:
        """Context [n, H, T, D] of queries [n, H, T, D] of these sentences; center, width, visible: [n, 1 or H, T].

        rows: [n], ascending.
        """
        key, value = self.key.transpose(1, 2), self.value.transpose(1, 2)
        sentences = key.shape[0]

        def attended(query: Tensor, center: Tensor, width: Tensor, visible: Tensor) -> Tensor:
            return gma_kernels.gaussian_attention(
                query, key, value, center, width, visible, prior=prior, backend=backend
            )

        if rows.shape[0] == sentences:
            return attended(query, center, width, visible)

        # the buffers are used in place: a sentence that does not take part sees nothing, which costs nothing
        def spread(x: Tensor) -> Tensor:
            return x.new_empty((sentences, *x.shape[1:])).index_copy_(0, rows, x)

        # without a prior they are constants, of which nothing is read
        center, width = (x[:1].expand(sentences, -1, -1) if prior == "none" else spread(x) for x in (center, width))
        seen = visible.new_zeros(sentences, *visible.shape[1:]).index_copy_(0, rows, visible)
        return attended(spread(query), center, width, seen)[rows]


def _enlarged(buffer: Tensor, shape: tuple[int, ...]) -> Tensor:
    enlarged = buffer.new_zeros(shape)
    enlarged[: buffer.shape[0], : buffer.shape[1]] = buffer
    return enlarged
