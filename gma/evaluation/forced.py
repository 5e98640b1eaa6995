"""Word alignments read off a model that is made to write a given translation.

A target token is linked to one source word, never to the end-of-sentence: to the one nearest to its aligned position p,
or to the one with the largest posterior weight, averaged over heads. A target word has the links of all its pieces.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gma.corpus.batches import length_batches
from gma.errors import UserError
from gma.metrics.alignment import Link
from gma.model.directory import Loaded
from gma.text.padding import padded
from gma.text.vocabulary import BOS, EOS, Vocabulary
from gma.text.words import word_delays

# padded tokens of a batch, of the longer side
TOKENS = 4096
# the tokens of each word of a sentence
Words = list[tuple[int, ...]]


@dataclass(frozen=True)
class ForcedPair:
    """A sentence pair as every decoder layer saw it. Rows and positions count model tokens, positions from 1.

    Attributes:
        source_pieces, target_pieces: tokens of each word.
        source_tokens, target_tokens: ids, each with its end-of-sentence, S and T of them.
        positions, widths: [layers, T], aligned position and width of the prior, averaged over heads.
        posterior: [layers, T, S], averaged over heads.
        visible: [layers, T], source tokens that a layer needed, its furthest head.
        delays: source words needed for each target word.
    """

    source_pieces: tuple[int, ...]
    target_pieces: tuple[int, ...]
    source_tokens: tuple[int, ...]
    target_tokens: tuple[int, ...]
    positions: np.ndarray
    widths: np.ndarray
    posterior: np.ndarray
    visible: np.ndarray
    delays: tuple[int, ...]

    @property
    def layers(self) -> int:
        return len(self.positions)

    @property
    def needed(self) -> np.ndarray:
        """[T], source tokens read when each target token was written, g(i) of the whole model."""
        return np.maximum.accumulate(self.visible.max(axis=0))

    def links_by_position(self, layer: int) -> frozenset[Link]:
        """Each target token with the source word nearest to p."""
        last = len(self.source_tokens) - 1
        # p may lie past the end; half a token is rounded up, where numpy would round to even
        nearest = np.floor(self.positions[layer, :-1] + 0.5).clip(1, last).astype(int) - 1
        return self._word_links(nearest)

    def links_by_posterior(self, layer: int) -> frozenset[Link]:
        """Each target token with the source word of the largest weight."""
        return self._word_links(self.posterior[layer, :-1, :-1].argmax(axis=1))

    def gold_tokens(self, links: frozenset[Link]) -> list[tuple[int, int]]:
        """Word links as pairs of token numbers, from 0: every piece of one word with every piece of the other."""
        source, target = _words_of_tokens(self.source_pieces), _words_of_tokens(self.target_pieces)
        return [(j, i) for i, to in enumerate(target) for j, word in enumerate(source) if (word, to) in links]

    def _word_links(self, tokens: np.ndarray) -> frozenset[Link]:
        source, target = _words_of_tokens(self.source_pieces), _words_of_tokens(self.target_pieces)
        return frozenset((source[j], target[i]) for i, j in enumerate(tokens.tolist()))


def read(
    loaded: Loaded,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    delta: float | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> list[ForcedPair]:
    """Let the model write `targets` while it hears `sources`.

    Args:
        delta: the latency to keep; None for the configured one.
        progress: is told how many pairs have just been read.
    """
    loaded.model.check_can_force()
    if len(sources) != len(targets):
        raise ValueError(f"got {len(sources)} sources and {len(targets)} targets; expected one target for each source")
    pairs = list(zip(_encoded(loaded.tokenizer.source, sources), _encoded(loaded.tokenizer.target, targets)))
    for number, pair in enumerate(pairs, start=1):
        if not all(map(any, pair)):
            side = "source" if any(pair[1]) else "target"
            raise UserError(
                f"{side} {number} has no words that the model can read; expected at least one on both sides: "
                "leave the pair out"
            )
    source_lengths, target_lengths = ([sum(map(len, pair[side])) + 1 for pair in pairs] for side in (0, 1))
    found: dict[int, ForcedPair] = {}
    for batch in length_batches(source_lengths, target_lengths, TOKENS):
        indices = batch.tolist()
        found |= zip(indices, _read_batch(loaded, [pairs[index] for index in indices], delta))
        progress(len(indices))
    return [found[index] for index in range(len(pairs))]


def diagonal(source_words: int, target_words: int) -> frozenset[Link]:
    """A guess that has seen nothing but the two lengths: each target word with the source word at its place."""
    return frozenset(((2 * i + 1) * source_words // (2 * target_words), i) for i in range(target_words))


def _encoded(vocabulary: Vocabulary, texts: Sequence[str]) -> list[Words]:
    return [[vocabulary.encode_word(word) for word in text.split()] for text in texts]


def _read_batch(loaded: Loaded, pairs: list[tuple[Words, Words]], delta: float | None) -> Iterator[ForcedPair]:
    sides = list(zip(*pairs))
    source, target = ([[token for word in words for token in word] for words in side] for side in sides)
    device = loaded.model.project.weight.device
    lengths = torch.tensor([len(tokens) + 1 for tokens in source], device=device)
    output, weights = loaded.model.look(
        padded([[*tokens, EOS] for tokens in source], device),
        lengths,
        padded([[BOS, *tokens] for tokens in target], device),
        delta,
    )
    centers, widths = (
        torch.stack([field.mean(dim=1) for field in fields], dim=1).cpu().numpy()
        for fields in list(zip(*(alignment[:3] for alignment in output.alignments)))[:2]
    )  # [B, layers, T]
    visible = torch.stack([alignment.visible.amax(dim=1) for alignment in output.alignments], dim=1).cpu().numpy()
    posterior = torch.stack([layer.mean(dim=1) for layer in weights], dim=1).float().cpu().numpy()  # [B, layers, T, S]
    for row, (source_words, target_words) in enumerate(pairs):
        rows, columns = len(target[row]) + 1, len(source[row]) + 1
        needed = visible[row, :, :rows].max(axis=0).tolist()
        source_pieces = tuple(map(len, source_words))
        yield ForcedPair(
            source_pieces,
            tuple(map(len, target_words)),
            (*source[row], EOS),
            (*target[row], EOS),
            centers[row, :, :rows],
            widths[row, :, :rows],
            posterior[row, :, :rows, :columns],
            visible[row, :, :rows],
            tuple(word_delays(source_pieces, target[row], needed, loaded.tokenizer.target)),
        )


def _words_of_tokens(pieces: Sequence[int]) -> list[int]:
    """The number of the word that each token belongs to."""
    return [word for word, count in enumerate(pieces) for _ in range(count)]
