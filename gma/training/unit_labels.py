"""Meaning units: where a source can be cut and what has been heard be translated for good (Zhang et al., 2020).

Let ŷ be the greedy translation of the whole source x, and c the part of it that is committed, at first nothing. A
prefix x≤t, counted in words, is a meaning unit if its own greedy translation, as a sentence that ends there and whose
translation begins with c, ends by itself and is a prefix of ŷ. That translation is c from then on.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from gma.corpus.batches import length_batches
from gma.decoding.greedy import greedy
from gma.decoding.hypothesis import Hypothesis, length_limit
from gma.model.transformer import Transformer
from gma.text.padding import padded
from gma.text.vocabulary import BOS, EOS, Vocabulary
from gma.text.words import source_word_ends

# padded tokens of a batch of prefixes, of the longer side
TOKENS = 2560


class Prefix(NamedTuple):
    sentence: int
    length: int  # in source tokens


def label(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    vocabulary: Vocabulary,
    *,
    slots: int = 64,
    progress: Callable[[int], None] = lambda count: None,
) -> list[list[bool]]:
    """Whether a meaning unit ends with each word of each source.

    As long as the translation of a prefix agrees with ŷ, it is what comes of forcing ŷ. So one masked pass over ŷ for
    every prefix finds all units, many prefixes in a batch; none is decoded step by step.

    Args:
        model: one that waits for the whole source.
        sources: token ids that end in EOS.
        vocabulary: the source's.
        slots: sentences decoded together.
        progress: is told how many sentences have just been translated, and then how many words labelled.
    """
    whole = greedy(model, sources, slots=slots, finished=progress)
    lengths = [source_word_ends(source, vocabulary) for source in sources]
    following: list[dict[int, list[int]]] = [{} for _ in sources]
    prefixes = [Prefix(sentence, length) for sentence, ends in enumerate(lengths) for length in ends]
    target_lengths = [len(whole[prefix.sentence].tokens) + 1 for prefix in prefixes]
    for chosen in length_batches([prefix.length + 1 for prefix in prefixes], target_lengths, TOKENS):
        batch = [prefixes[index] for index in chosen.tolist()]
        for prefix, tokens in zip(batch, _following(model, batch, sources, whole)):
            following[prefix.sentence][prefix.length] = tokens
        progress(len(batch))
    return [_units(*sentence) for sentence in zip(whole, lengths, following)]


def _units(whole: Hypothesis, lengths: list[int], following: dict[int, list[int]]) -> list[bool]:
    """following: of each prefix, by its length, the best token after every place of ŷ."""
    units, committed = [], 0
    for length in lengths:
        best, end = following[length], committed
        while end < len(whole.tokens) and best[end] == whole.tokens[end]:
            end += 1
        # a longer one would have been cut off
        is_unit = best[end] == EOS and end <= length_limit(length + 1)
        units.append(is_unit)
        committed = end if is_unit else committed
    return units


@torch.no_grad()
def _following(
    model: Transformer, batch: Sequence[Prefix], sources: Sequence[Sequence[int]], whole: Sequence[Hypothesis]
) -> list[list[int]]:
    """For each prefix, the best token after every place of ŷ: [n][T]."""
    device = model.project.weight.device
    source = padded([[*sources[prefix.sentence][: prefix.length], EOS] for prefix in batch], device)
    target = padded([[BOS, *whole[prefix.sentence].tokens] for prefix in batch], device)
    lengths = torch.tensor([prefix.length + 1 for prefix in batch], device=device)
    return model(source, lengths, target).logits.argmax(dim=2).tolist()
