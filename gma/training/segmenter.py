"""The classifier behind MU: does a meaning unit end with this source word? It sees the causal encoder's state of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils.rnn import pad_sequence

from gma.errors import UserError
from gma.model.transformer import Transformer
from gma.storage import tensor_file
from gma.text.tokenizer import PAD, Vocabulary
from gma.text.words import pieces_per_word

SEGMENTER = "segmenter.safetensors"
HIDDEN = 256
THRESHOLD = 0.5
HELD_OUT = 0.1
# sentences encoded together
SENTENCES = 64
EPOCHS, BATCH, RATE, WEIGHT_DECAY = 20, 256, 1e-3, 1e-2


class SegmenterError(UserError, ValueError):
    """A segmenter that cannot be made or used; the message says why and what to do."""


class Segmenter(nn.Module):
    """s_t = sigmoid(v · ReLU(W h_t + b) + c) of the encoder state h_t of the last token of word t.

    Args:
        vocabulary: the source's, which knows where words end.
        width: features of an encoder state.
        hidden: features between the two maps.
    """

    threshold = THRESHOLD  # θ if nobody asks for another one

    def __init__(self, vocabulary: Vocabulary, width: int, hidden: int = HIDDEN):
        super().__init__()
        self.vocabulary = vocabulary
        self.hidden = nn.Linear(width, hidden)
        self.output = nn.Linear(hidden, 1)

    def logits(self, states: Tensor) -> Tensor:
        """[…, E] → […]"""
        return self.output(torch.relu(self.hidden(states))).squeeze(-1)

    def forward(self, states: Tensor) -> Tensor:
        """Scores between 0 and 1: […, E] → […]"""
        return torch.sigmoid(self.logits(states))


@torch.no_grad()
def word_states(model: Transformer, sources: Sequence[Sequence[int]], vocabulary: Vocabulary) -> list[Tensor]:
    """The encoder's state of the last token of every word of each source, [words, E]."""
    device = model.project.weight.device
    states: list[Tensor] = [torch.empty(0)] * len(sources)
    order = torch.tensor([len(source) for source in sources]).argsort()
    for batch in order.split(SENTENCES):
        chosen = [sources[index] for index in batch.tolist()]
        encoded = model.encoder(padded(chosen, device), torch.tensor([len(source) for source in chosen], device=device))
        for index, source, row in zip(batch.tolist(), chosen, encoded):
            states[index] = row[torch.tensor(word_ends(source, vocabulary), device=device) - 1]
    return states


def word_ends(source: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """After how many tokens each word of a source is complete."""
    return list(accumulate(pieces_per_word(source, vocabulary)))


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """[n, longest]"""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD).to(device)


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
        raise SegmenterError(f"{len(states)} sentences to learn units from; expected 2 at least: raise the limit")

    def words_of(sentences: list[int]) -> tuple[Tensor, Tensor]:
        x = torch.cat([states[index] for index in sentences])
        return x, torch.tensor([unit for index in sentences for unit in units[index]], dtype=x.dtype, device=x.device)

    known, unseen = words_of(order[held_out:]), words_of(order[:held_out])
    optimizer = torch.optim.AdamW(segmenter.parameters(), lr=RATE, weight_decay=WEIGHT_DECAY)
    best, weights = torch.inf, {}
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(known[0]), generator=generator).split(BATCH):
            loss = binary_cross_entropy_with_logits(segmenter.logits(known[0][chosen]), known[1][chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            loss = binary_cross_entropy_with_logits(segmenter.logits(unseen[0]), unseen[1]).item()
        if loss < best:
            best, weights = loss, {name: tensor.clone() for name, tensor in segmenter.state_dict().items()}
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


def save(folder: Path, segmenter: Segmenter, model: str) -> None:
    """Write it into a model directory, bound to the file of that name with the model's weights."""
    record = {"hidden": segmenter.hidden.out_features, "model": tensor_file.digest(folder / model)}
    tensor_file.write(folder / SEGMENTER, segmenter.state_dict(), record)


def load(folder: Path, vocabulary: Vocabulary, width: int, model: str) -> Segmenter:
    """Read what `save` wrote. Data only: nothing in the file is ever executed."""
    path = folder / SEGMENTER
    if not path.is_file():
        raise SegmenterError(f"{path} is missing; the model needs it to find meaning units: run `gma segment` again")
    try:
        tensors, record = tensor_file.read(path)
    except tensor_file.DamagedFile as error:
        raise SegmenterError(f"{error}; run `gma segment` again") from error
    hidden = record.get("hidden")
    if not isinstance(hidden, int) or hidden < 1 or record.get("model") != tensor_file.digest(folder / model):
        raise SegmenterError(f"{path} was not made for the {model} beside it; take both from one place")
    segmenter = Segmenter(vocabulary, width, hidden)
    try:
        tensor_file.fill(tensor_file.own_tensors(segmenter), tensors, path)
    except ValueError as error:
        raise SegmenterError(str(error)) from error
    return segmenter
