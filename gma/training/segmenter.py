"""`gma segment`: a model that waits for the whole source learns to translate by meaning units."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from gma.corpus.batches import length_batches
from gma.corpus.token_file import PreparedCorpus
from gma.errors import UserError
from gma.model import directory
from gma.model.device import choose_device
from gma.model.directory import TOKENIZER, Loaded
from gma.model.transformer import Transformer
from gma.policies import Segmenter
from gma.storage.digest import sha256_of
from gma.storage.folders import MODEL, check_free_for
from gma.terminal import bar, say
from gma.text.padding import padded
from gma.text.vocabulary import EOS, Vocabulary
from gma.text.words import source_word_ends
from gma.training import unit_labels

HELD_OUT = 0.1
# padded tokens encoded together
TOKENS = 4096
EPOCHS, BATCH, RATE, WEIGHT_DECAY = 20, 256, 1e-3, 1e-2


@dataclass(frozen=True)
class Fit:
    """How well a segmenter does at θ = ½ on sentences that it was not trained on; they chose its weights among epochs.

    Attributes:
        words: that it was trained on.
        share: of the words of held-out sentences that end a unit.
        loss, guess: mean cross-entropy in nats, of the scores and of always saying `share`.
    """

    words: int
    held_out_words: int
    share: float
    precision: float
    recall: float
    loss: float
    guess: float


def segment(model: Path, output: Path, console: Console, *, limit: int, device: str = "auto") -> Fit:
    """Label the meaning units of training sentences, train a segmenter on them, and write it with the model.

    Args:
        limit: sentences to label, drawn at random.
    """
    check_free_for([MODEL], output, "choose another --output")
    loaded = directory.load(model, choose_device(device))
    loaded.model.check_can_segment()
    seed, vocabulary = loaded.config.training.seed, loaded.tokenizer.source
    sources = _sources(loaded, model, limit, seed)
    words = sum(len(source_word_ends(source, vocabulary)) for source in sources)
    with bar(console, "finding meaning units", len(sources) + words) as advance:
        units = unit_labels.label(loaded.model, sources, vocabulary, progress=advance)
    states = word_states(loaded.model, sources, vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = Segmenter(vocabulary, loaded.config.model.width).to(states[0])
    quality = fit(classifier, states, units, seed)
    record = {**loaded.training, directory.UNITS: {"sentences": len(sources), **asdict(quality)}}
    directory.save(output, loaded.model, loaded.config, loaded.tokenizer, record)
    directory.save_segmenter(output, classifier)
    say(
        console, f"{words:,} words of {len(sources):,} sentences; {sum(map(sum, units)) / words:.1%} end a meaning unit"
    )
    say(
        console,
        f"on {quality.held_out_words:,} held out: precision {quality.precision:.1%}, recall {quality.recall:.1%} "
        f"(θ = 0.5); cross-entropy {quality.loss:.3f}, that of a constant guess {quality.guess:.3f}",
    )
    say(console, f"written: {output}")
    return quality


def _sources(loaded: Loaded, model: Path, limit: int, seed: int) -> list[list[int]]:
    """Random training sentences with words, each with its end-of-sentence."""
    folder = Path(loaded.config.data.folder)
    corpus = PreparedCorpus.open(folder)
    if sha256_of(folder / TOKENIZER) != sha256_of(model / TOKENIZER):
        raise UserError(
            f"the corpus in {folder} was prepared with another tokenizer than {model} was trained with; expected the "
            "corpus of its training: prepare it again as it was"
        )
    source = corpus.split("train").source
    chosen = np.random.default_rng(seed).permutation(np.flatnonzero(source.lengths))[:limit]
    return [[*source[index].tolist(), EOS] for index in chosen.tolist()]


@torch.no_grad()
def word_states(model: Transformer, sources: Sequence[Sequence[int]], vocabulary: Vocabulary) -> list[Tensor]:
    """The encoder's state of the last token of every word of each source, [words, E]."""
    device = model.project.weight.device
    states: list[Tensor] = [torch.empty(0)] * len(sources)
    lengths = [len(source) for source in sources]
    for batch in length_batches(lengths, lengths, TOKENS):
        chosen = [sources[index] for index in batch.tolist()]
        encoded = model.encoder(padded(chosen, device), torch.tensor([len(source) for source in chosen], device=device))
        for index, source, row in zip(batch.tolist(), chosen, encoded):
            states[index] = row[torch.tensor(source_word_ends(source, vocabulary), device=device) - 1]
    return states


def fit(segmenter: Segmenter, states: Sequence[Tensor], units: Sequence[Sequence[bool]], seed: int) -> Fit:
    """Train on the labels of most sentences; the weights that do best on the others are kept.

    Args:
        states: of every sentence, [words, E].
        units: whether a unit ends with each word.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(states), generator=generator).tolist()
    held_out = max(1, round(HELD_OUT * len(states)))
    if len(states) <= held_out:
        raise UserError(f"{len(states)} sentences to learn units from; expected 2 at least: raise the limit")

    def words_of(sentences: list[int]) -> tuple[Tensor, Tensor]:
        x = torch.cat([states[index] for index in sentences])
        return x, torch.tensor([unit for index in sentences for unit in units[index]], dtype=x.dtype, device=x.device)

    known, unseen = words_of(order[held_out:]), words_of(order[:held_out])
    optimizer = torch.optim.AdamW(segmenter.parameters(), lr=RATE, weight_decay=WEIGHT_DECAY)
    best, weights = math.inf, segmenter.state_dict()
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(known[0]), generator=generator).split(BATCH):
            loss = binary_cross_entropy_with_logits(segmenter.logits(known[0][chosen]), known[1][chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            unseen_loss = binary_cross_entropy_with_logits(segmenter.logits(unseen[0]), unseen[1]).item()
        if unseen_loss < best:
            best, weights = unseen_loss, {name: tensor.clone() for name, tensor in segmenter.state_dict().items()}
    segmenter.load_state_dict(weights)
    return _assessed(segmenter, *unseen, words=len(known[0]))


@torch.no_grad()
def _assessed(segmenter: Segmenter, states: Tensor, units: Tensor, words: int) -> Fit:
    found, true = segmenter(states) >= 0.5, units > 0
    share = units.mean()
    return Fit(
        words,
        len(units),
        share.item(),
        ((found & true).sum() / found.sum().clamp(min=1)).item(),
        ((found & true).sum() / true.sum().clamp(min=1)).item(),
        binary_cross_entropy_with_logits(segmenter.logits(states), units).item(),
        nn.functional.binary_cross_entropy(share.expand(len(units)), units).item(),
    )
