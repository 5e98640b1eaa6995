"""Batches of sentences of similar length, in an endless sequence in which every update has a number."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gma.corpus.token_file import Split
from gma.text.vocabulary import BOS, EOS, PAD

Lengths = Sequence[int] | np.ndarray
# how many epochs' orders are cached: an update may reach from one into the next
CACHED_EPOCHS = 2
# step in which the difference of the two lengths is sorted: a larger one mixes sentences more, and pads more
DIFFERENCE_STEP = 4


class Batch(NamedTuple):
    """Padded sentences. PAD is on the right; the longest row of each side has none.

    Attributes:
        source: words and EOS, int64 [B, S].
        source_lengths: EOS counted, int32 [B].
        target_input: BOS and words, int64 [B, T].
        target_output: words and EOS, int64 [B, T].
        tokens: entries of `target_output` that are not PAD.
    """

    source: Tensor
    source_lengths: Tensor
    target_input: Tensor
    target_output: Tensor
    tokens: int

    def to(self, device: torch.device | str) -> "Batch":
        source, source_lengths, target_input, target_output = (part.to(device) for part in self[:4])
        return Batch(source, source_lengths, target_input, target_output, self.tokens)


def collate(split: Split, indices: np.ndarray) -> Batch:
    """Read the sentences `indices` of a split into one batch."""
    indices = np.asarray(indices, np.int64)
    source_ids, source_lengths = split.source.gather(indices)
    target_ids, target_lengths = split.target.gather(indices)
    source = _pad(source_ids, source_lengths)
    target_output = _pad(target_ids, target_lengths)
    target_input = np.full_like(target_output, PAD)
    target_input[:, 0] = BOS
    # the words, one place later; EOS is no input
    target_input[:, 1:] = np.where(target_output[:, :-1] == EOS, PAD, target_output[:, :-1])
    return Batch(
        torch.from_numpy(source),
        torch.from_numpy((source_lengths + 1).astype(np.int32)),
        torch.from_numpy(target_input),
        torch.from_numpy(target_output),
        int(target_lengths.sum()) + len(indices),
    )


class BatchPlan:
    """Divides sentences into batches whose members are about equally long on both sides.

    All sentences are sorted by their longer side, ties in a new random order every epoch, cut where a batch is full,
    and the batches are shuffled. The cuts depend on lengths alone, so every epoch has the same number of batches, and
    the k-th batch of the endless sequence is found without making the epochs before it.

    Args:
        tokens: the most that sentences × padded length of the longer side may be, EOS counted. A single sentence
            longer than that is a batch of its own.
        seed: of the order. The same (seed, epoch) gives the same batches everywhere.
    """

    def __init__(self, split: Split, tokens: int, seed: int):
        if tokens < 1:
            raise ValueError(f"tokens: expected at least 1, got {tokens}")
        if not len(split):
            raise ValueError("split: expected at least one sentence, got none; prepare a corpus that has some")
        self.tokens = tokens
        self.seed = seed
        self._source = split.source.lengths.astype(np.int64) + 1
        self._target = split.target.lengths.astype(np.int64) + 1
        longest = np.maximum(self._source, self._target)
        self._cuts = _cuts(np.sort(longest), tokens)
        # orders by the longer side first, by the difference of the sides (coarsely) second
        difference = (self._source - self._target) // DIFFERENCE_STEP
        self._key = longest * (1 << 32) + difference
        self.epoch = lru_cache(CACHED_EPOCHS)(self._epoch)

    def __len__(self) -> int:
        """Batches in an epoch: the same number in all of them."""
        return len(self._cuts) - 1

    def _epoch(self, epoch: int) -> list[np.ndarray]:
        """The batches of an epoch, arrays of sentence indices (cached under the name `epoch`)."""
        if epoch < 0:
            raise ValueError(f"epoch: expected 0 or more, got {epoch}")
        generator = np.random.default_rng([self.seed, epoch])
        order = generator.permutation(len(self._key))
        order = order[np.argsort(self._key[order], kind="stable")]
        return [order[self._cuts[i] : self._cuts[i + 1]] for i in generator.permutation(len(self))]

    def batch(self, number: int) -> np.ndarray:
        """Batch `number` of the endless sequence of epochs."""
        epoch, position = divmod(number, len(self))
        return self.epoch(epoch)[position]

    def padding_waste(self, epoch: int = 0) -> float:
        """The share of all entries of the padded batches, both sides, that is PAD."""
        longest = ((len(batch), self._source[batch].max(), self._target[batch].max()) for batch in self.epoch(epoch))
        padded = sum(sentences * int(source + target) for sentences, source, target in longest)
        return 1 - int(self._source.sum() + self._target.sum()) / padded


class Update(NamedTuple):
    """What one rank computes in one update: its micro-batches, and the epoch that the update starts in."""

    batches: list[np.ndarray]
    epoch: int


class UpdateStream:
    """The batches of every update. Update u takes the next k = world_size × accumulation of the endless sequence.

    Rank r gets those at r, r + world_size, …, so (world_size 2, accumulation 1) and (1, 2) see the same update.
    """

    def __init__(self, plan: BatchPlan, world_size: int = 1, rank: int = 0, accumulation: int = 1):
        if world_size < 1 or accumulation < 1 or not 0 <= rank < world_size:
            raise ValueError(
                "expected world_size and accumulation of at least 1 and 0 <= rank < world_size, "
                f"got world_size {world_size}, rank {rank}, accumulation {accumulation}"
            )
        self.plan = plan
        self.world_size = world_size
        self.rank = rank
        self.accumulation = accumulation

    def update(self, number: int) -> Update:
        """What this rank computes in update `number`, from 0; nothing else needs to be known to go on from there."""
        if number < 0:
            raise ValueError(f"number: expected 0 or more, got {number}")
        first = number * self.world_size * self.accumulation
        mine = range(first + self.rank, first + self.world_size * self.accumulation, self.world_size)
        return Update([self.plan.batch(index) for index in mine], first // len(self.plan))


def length_batches(source: Lengths, target: Lengths, tokens: int) -> list[np.ndarray]:
    """Every sentence once, sorted by length, in batches of at most `tokens` (see `BatchPlan`).

    The arrays are the sentences' indices, so `results[batch] = …` restores their order.

    source, target: tokens of both sides of every sentence, EOS counted.
    """
    if tokens < 1:
        raise ValueError(f"tokens: expected at least 1, got {tokens}")
    longest = np.maximum(source, target)
    order = np.lexsort((np.asarray(target), np.asarray(source), longest))
    cuts = _cuts(longest[order], tokens)
    return [order[start:end] for start, end in pairwise(cuts)]


def _cuts(lengths: np.ndarray, tokens: int) -> np.ndarray:
    """Where to cut ascending lengths so that items × longest is at most `tokens` in every part: 0, …, len(lengths)."""
    cuts = [0]
    while cuts[-1] < len(lengths):
        start = cuts[-1]
        # the batch reaches this far at most: if no longer sentence comes
        part = lengths[start : start + max(1, tokens // int(lengths[start]))]
        fits = np.searchsorted(np.arange(1, len(part) + 1) * part, tokens, side="right")
        cuts.append(start + max(1, int(fits)))
    return np.array(cuts)


def _pad(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Sentences one after the other → rows with EOS at the end and PAD after it, [B, longest + 1]."""
    places = np.arange(int(lengths.max(initial=0)) + 1)
    padded = np.full((len(lengths), len(places)), PAD, np.int64)
    padded[places < lengths[:, None]] = ids
    padded[np.arange(len(lengths)), lengths] = EOS
    return padded
