"""The attention of sentences that have ended: the model writes each once more, in one masked pass, and is watched."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import torch
from torch import Tensor

from gma.model.directory import Loaded
from gma.text.vocabulary import BOS, EOS

# sentences that may wait for their turn; of more, the attention is not shown
WAITING = 16
Pieces = Sequence[Sequence[int]]


class Looks:
    """Looks at one sentence after another, in a thread of its own, so that nobody who speaks waits for it.

    Args:
        words: that a sentence may have, on either side.
    """

    def __init__(self, loaded: Loaded, words: int):
        self._loaded, self._words = loaded, words
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, "looks")

    def ask(
        self,
        source: Pieces,
        target: Pieces,
        latencies: Sequence[tuple[int, float]],
        tell: Callable[[list[list[list[int]]]], None],
    ) -> None:
        """Call `tell` in the event loop with a sentence's attention; never, where it is too long or too much waits.

        Args:
            source, target: the tokens of each word.
            latencies: that were kept, each from a target token on.
        """
        policy = self._loaded.model.policy
        if not (source and target) or self._waiting >= WAITING:
            return
        if max(len(source), len(target)) > self._words or max(map(_tokens, (source, target))) > 8 * self._words:
            return
        if not policy.can_be_forced or (len(latencies) > 1 and not policy.latency_of_rows):
            return

        def done(future: asyncio.Future[list[list[list[int]]]]) -> None:
            self._waiting -= 1
            if not future.cancelled():
                tell(future.result())

        self._waiting += 1
        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._thread, attention, self._loaded, source, target, latencies).add_done_callback(done)

    def stop(self) -> None:
        self._thread.shutdown(cancel_futures=True)


def attention(
    loaded: Loaded, source: Pieces, target: Pieces, latencies: Sequence[tuple[int, float]]
) -> list[list[list[int]]]:
    """[layers][target words][source words + the end], in percent, averaged over heads.

    A source word has what its tokens have together, a target word the mean of its tokens.
    """
    device = loaded.model.project.weight.device
    heard, written = [*chain(*source), EOS], list(chain(*target))
    delta = torch.empty(1, len(written), dtype=torch.float64, device=device)
    for place, latency in latencies:
        delta[:, place:] = latency
    _, weights = loaded.model.look(
        torch.tensor([heard], device=device),
        torch.tensor([len(heard)], device=device),
        torch.tensor([[BOS, *written[:-1]]], device=device),
        delta if len(latencies) > 1 else delta[:, 0],
    )
    posterior = torch.stack([layer[0].mean(dim=0) for layer in weights]).double()  # [layers, T, S]
    of_source = _members([*map(len, source), 1], device)
    of_target = _members([*map(len, target)], device)
    of_target /= of_target.sum(dim=1, keepdim=True)
    return (100 * (of_target @ posterior @ of_source.T)).round().int().clamp(0, 100).tolist()


def _tokens(pieces: Pieces) -> int:
    return sum(map(len, pieces))


def _members(counts: Sequence[int], device: torch.device) -> Tensor:
    """[words, tokens]: 1 where a token belongs to a word."""
    words = torch.arange(len(counts), device=device).repeat_interleave(torch.tensor(counts, device=device))
    return torch.nn.functional.one_hot(words, len(counts)).double().T
