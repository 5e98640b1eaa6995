"""The Transformer: causal encoder, post-norm, and a decoder whose cross-attention is a policy."""

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from gma.attention.alignment import Alignment
from gma.attention.key_value_cache import KeyValueCache
from gma.attention.memory import Memory, Past, Projections
from gma.attention.self_attention import SelfAttention, causal
from gma.config.settings import AttentionSettings, ModelSettings
from gma.errors import Caution, UserError
from gma.model.inference import Inference
from gma.model.positions import SinusoidalPositions
from gma.policies import POLICIES, CrossAttention, Look, MeaningUnits, Segmenter, Source
from gma.text.vocabulary import PAD

# of the sentences of a batch, for a policy that learns from hindsight
HINDSIGHT_SHARE = 1 / 4


class Output(NamedTuple):
    """Of one pass over whole sentences."""

    logits: Tensor  # [B, T, V]
    alignments: tuple[Alignment, ...]  # one per decoder layer, [B, 1 or H, T] each
    auxiliary: Tensor | None = None  # in training, what the policy adds to the loss, summed over sentences


class Front(NamedTuple):
    """A row in front of a layer's cross-attention."""

    hidden: Tensor  # [B, T, E]
    query: Tensor  # [B, T, queries · E], projected


class LayerPass(NamedTuple):
    """One decoder layer's pass over whole sentences."""

    front: Front
    memory: Projections
    alignment: Alignment
    hidden: Tensor  # [B, T, E]


class Transformer(nn.Module):
    """Translates while it listens: a source state never changes once computed, and every target row uses only as much
    source as its policy asks for. Training needs one pass, with no loop over target positions.

    >>> import gma, torch
    >>> from gma.config import AttentionSettings, ModelSettings
    >>> model = gma.Transformer(ModelSettings(preset="tiny"), AttentionSettings(delta=1.0), 100, 120)
    >>> source, target = torch.randint(4, 100, (2, 7)), torch.randint(4, 120, (2, 6))
    >>> model(source, torch.tensor([7, 5]), target).logits.shape
    torch.Size([2, 6, 120])
    """

    def __init__(
        self, model: ModelSettings, attention: AttentionSettings, source_vocabulary: int, target_vocabulary: int
    ):
        super().__init__()
        if model.embeddings == "shared" and source_vocabulary != target_vocabulary:
            raise ValueError(
                f"model.embeddings is 'shared', but the vocabularies have {source_vocabulary} and {target_vocabulary} "
                "entries; expected a joint vocabulary: prepare the data with data.joint = true"
            )
        self.delta = attention.middle_delta
        # lowest and highest; None where nothing can be chosen, or training knows nothing of it
        self.trained_latencies: tuple[float, float] | None = None
        if POLICIES[attention.policy].latency_symbol:
            self.trained_latencies = (
                attention.delta if isinstance(attention.delta, tuple) else (attention.delta, attention.delta)
            )
        self.policy: type[CrossAttention] = POLICIES[attention.policy]
        self.segmenter: Segmenter | None = None
        self.inference = Inference()
        self.encoder = Encoder(model, attention.backend, source_vocabulary)
        self.decoder = Decoder(model, attention, target_vocabulary)
        self.project = nn.Linear(model.width, target_vocabulary, bias=False)
        nn.init.normal_(self.project.weight, std=model.width**-0.5)
        if model.embeddings in ("target", "shared"):
            self.project.weight = self.decoder.embed.tokens.weight
        if model.embeddings == "shared":
            self.encoder.embed.tokens.weight = self.decoder.embed.tokens.weight

    def forward(
        self, source: Tensor, source_lengths: Tensor, target_input: Tensor, delta: float | Tensor | None = None
    ) -> Output:
        """Scores of every next target token.

        Args:
            source: [B, S], right-padded, its end-of-sentence included
            source_lengths: [B]
            target_input: [B, T], right-padded
            delta: the latency to keep, one for all or [B]; None for the configured one (the middle of a range)
        """
        states = self.encoder(source, source_lengths)
        passes = self.decoder(target_input, states, source_lengths, delta)
        output = self._output(passes, source_lengths, target_input)
        if self.training and self.policy.learns_from_hindsight:
            loss = self._hindsight_loss(states, source_lengths, target_input, passes[0], output.logits)
            output = output._replace(auxiliary=loss)
        return output

    @torch.no_grad()
    def look(
        self, source: Tensor, source_lengths: Tensor, target_input: Tensor, delta: float | Tensor | None = None
    ) -> tuple[Output, tuple[Tensor, ...]]:
        """`forward`, and the posterior attention of every decoder layer, [B, H, T, S] each.

        delta: or one for every row, [B, T], if the policy has `latency_of_rows`.
        """
        if not isinstance(delta, Tensor):
            delta = self.latency(delta)
        passes = self.decoder(target_input, self.encoder(source, source_lengths), source_lengths, delta)
        weights = tuple(
            layer.cross_attention.weights(step.front.query, step.memory, step.alignment)
            for layer, step in zip(self.decoder.layers, passes)
        )
        return self._output(passes, source_lengths, target_input), weights

    def _output(self, passes: list[LayerPass], source_lengths: Tensor, target_input: Tensor) -> Output:
        alignments = tuple(step.alignment for step in passes)
        auxiliary = None
        if self.training:
            target_lengths = (target_input != PAD).sum(dim=1)
            attention = self.decoder.layers[0].cross_attention
            looks = [Look(step.front.query, step.memory, step.alignment) for step in passes]
            auxiliary = attention.auxiliary_loss(looks, source_lengths, target_lengths)
        return Output(self.project(passes[-1].hidden), alignments, auxiliary)

    def _hindsight_loss(
        self, states: Tensor, source_lengths: Tensor, target_input: Tensor, first: LayerPass, logits: Tensor
    ) -> Tensor:
        """What the policy learns from how the scores would change if the whole source were visible: found out for
        some of the sentences, as it takes another pass, and scaled up to all."""
        sentences = len(states)
        few = torch.randperm(sentences, device=states.device)[: math.ceil(sentences * HINDSIGHT_SHARE)]
        with torch.no_grad():
            self.decoder.eval()
            passes = self.decoder(target_input[few], states[few], source_lengths[few], self.policy.latency_of_all)
            self.decoder.train()
            hindsight = self.project(passes[-1].hidden)
        loss = self.decoder.layers[0].cross_attention.hindsight_loss(
            first.front.query[few],
            first.memory.of(few),
            Alignment(*(column[few] for column in first.alignment)),
            logits[few],
            hindsight,
            target_input[few] != PAD,
        )
        return loss * (sentences / len(few))

    def latency(self, delta: float | None) -> float:
        """The latency to translate with: the one asked for, if the policy can keep it, or the configured one."""
        if delta is None:
            return self.delta
        delta = self.policy.checked_latency(delta)
        if self.trained_latencies is not None and not self.trained_latencies[0] <= delta <= self.trained_latencies[1]:
            warnings.warn(self._untrained(delta, *self.trained_latencies), Caution, stacklevel=2)
        return delta

    def _untrained(self, delta: float, low: float, high: float) -> str:
        symbol = self.policy.latency_symbol
        trained = f"{symbol} = {low:g} alone" if low == high else f"{symbol} from {low:g} to {high:g}"
        return f"{symbol} = {delta:g}: the model was trained for {trained}, and may translate badly at others"

    def use_segmenter(self, segmenter: Segmenter) -> None:
        """Translate by meaning units from now on: write after every unit that `segmenter` finds."""
        self.check_can_segment()
        self.trained_latencies = None
        self.segmenter, self.policy, self.delta = segmenter, MeaningUnits, segmenter.threshold

    def check_can_segment(self) -> None:
        """UserError unless the model can translate by meaning units."""
        if not self.policy.can_be_segmented:
            raise UserError(
                f"the model's policy is {self.policy.name!r}; expected 'offline', which translates whatever it is "
                'given as a whole: train one with attention.policy = "offline"'
            )
        if not self.encoder.causal:
            raise UserError(
                "the model's encoder is bidirectional, and its states would change with every word; expected a causal "
                'one: train with model.encoder = "causal"'
            )

    def check_can_force(self) -> None:
        """UserError unless one masked pass makes the model write a given translation."""
        if not self.policy.can_be_forced:
            raise UserError(
                "the model translates by meaning units, and how much of a given translation each of them writes is "
                "open; look at the offline model that it was made from instead"
            )


class Embedding(nn.Module):
    """Token embeddings times √E, plus sinusoidal positions."""

    def __init__(self, vocabulary: int, width: int, dropout: float):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=PAD)
        nn.init.normal_(self.tokens.weight, std=width**-0.5)
        with torch.no_grad():
            self.tokens.weight[PAD].zero_()
        self.positions = SinusoidalPositions(width)
        self.dropout = nn.Dropout(dropout)
        self.scale = width**0.5

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] → [B, T, E]"""
        embedded = self.tokens(tokens) * self.scale
        return self.dropout(embedded + self.positions(tokens.shape[1]).to(embedded.dtype))

    def extend(self, tokens: Tensor, start: Tensor, largest: int) -> Tensor:
        """Tokens [n, T] whose first ones stand at `start` [n], 0-based, and none past `largest`: [n, T, E]"""
        place = start[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.tokens(tokens) * self.scale
        return embedded + self.positions.at(place, largest).to(embedded.dtype)


class Encoder(nn.Module):
    def __init__(self, model: ModelSettings, backend: str, vocabulary: int):
        super().__init__()
        self.causal = model.encoder == "causal"
        self.embed = Embedding(vocabulary, model.width, model.dropout)
        layers = nn.ModuleList(EncoderLayer(model, backend) for _ in range(model.encoder_layers))
        self.layers = cast(Sequence[EncoderLayer], layers)  # a ModuleList knows nothing of its members' type

    def forward(self, source: Tensor, source_lengths: Tensor) -> Tensor:
        """[B, S] → [B, S, E]. States of padding are garbage that nobody sees."""
        batch, length = source.shape
        if self.causal:
            visible = causal(batch, length, source.device)
        else:
            visible = source_lengths.int()[:, None, None].expand(batch, 1, length)
        hidden = self.embed(source)
        for layer in self.layers:
            hidden = layer(hidden, visible)
        return hidden

    def extend(self, source: Tensor, caches: list[KeyValueCache], rows: Tensor, start: Tensor, largest: int) -> Tensor:
        """States [n, T, E] of the next tokens [n, T] of some sentences, whose earlier ones are in the caches."""
        hidden = self.embed.extend(source, start, largest)
        visible = start.int()[:, None, None] + causal(source.shape[0], source.shape[1], source.device)
        for layer, cache in zip(self.layers, caches):
            hidden = layer(hidden, visible, Past(cache, rows, start))
        return hidden


class EncoderLayer(nn.Module):
    def __init__(self, model: ModelSettings, backend: str):
        super().__init__()
        self.self_attention = SelfAttention(model.width, model.heads, model.attention_dropout, backend)
        self.self_attention_norm = ResidualNorm(model.width, model.dropout)
        self.feed_forward = FeedForward(model)

    def forward(self, hidden: Tensor, visible: Tensor, past: Past | None = None) -> Tensor:
        """hidden: [B, S, E]; visible: [B, 1, S]; past: where the positions before these are"""
        return self.feed_forward(self.self_attention_norm(hidden, self.self_attention(hidden, visible, past)))


class Decoder(nn.Module):
    def __init__(self, model: ModelSettings, attention: AttentionSettings, vocabulary: int):
        super().__init__()
        self.embed = Embedding(vocabulary, model.width, model.dropout)
        self.shares_layers = POLICIES[attention.policy].shares_layers(attention)
        layers = nn.ModuleList(
            DecoderLayer(model, attention, aligned=index == 0 or not self.shares_layers)
            for index in range(model.decoder_layers)
        )
        self.layers = cast(Sequence[DecoderLayer], layers)

    def forward(
        self, target: Tensor, states: Tensor, source_lengths: Tensor, delta: float | Tensor | None = None
    ) -> list[LayerPass]:
        """Every layer's pass over target tokens [B, T], given encoder states [B, S, E]."""
        hidden = self.embed(target)
        visible = causal(target.shape[0], target.shape[1], target.device)
        passes: list[LayerPass] = []
        for layer in self.layers:
            shared = passes[0].alignment if passes and self.shares_layers else None
            passes.append(layer(hidden, visible, states, source_lengths, delta, shared))
            hidden = passes[-1].hidden
        return passes


class DecoderLayer(nn.Module):
    """Two halves: `approach` goes up to the cross-attention, where a row may have to wait, and `attend` through it."""

    def __init__(self, model: ModelSettings, attention: AttentionSettings, aligned: bool):
        super().__init__()
        self.self_attention = SelfAttention(model.width, model.heads, model.attention_dropout, attention.backend)
        self.self_attention_norm = ResidualNorm(model.width, model.dropout)
        policy = POLICIES[attention.policy]
        self.cross_attention = policy(model.width, model.heads, model.attention_dropout, attention, aligned)
        self.cross_attention_norm = ResidualNorm(model.width, model.dropout)
        self.feed_forward = FeedForward(model)

    def approach(self, hidden: Tensor, visible: Tensor, past: Past | None = None) -> Front:
        """hidden: [B, T, E]; visible: [B, 1, T]; past: where the positions before these are"""
        hidden = self.self_attention_norm(hidden, self.self_attention(hidden, visible, past))
        return Front(hidden, self.cross_attention.query(hidden))

    def align(self, front: Front, source: Source, previous: Tensor | None, delta: float | Tensor | None) -> Alignment:
        """How much source the rows need; see `CrossAttention.align`."""
        return self.cross_attention.align(front.query, source, previous, delta)

    def resume(self, front: Front, source: Source, alignment: Alignment, delta: Tensor) -> Alignment:
        """The same for rows whose source has arrived in the meantime."""
        return self.cross_attention.resume(front.query, source, alignment, delta)

    def remember(self, states: Tensor) -> Projections:
        """What the cross-attention keeps of encoder states [B, S, E]."""
        return self.cross_attention.project(states)

    def attend(self, front: Front, memory: Memory, alignment: Alignment) -> Tensor:
        """[B, T, E]"""
        return self._leave(front, self.cross_attention.attend(front.query, memory, alignment))

    def _leave(self, front: Front, attended: Tensor) -> Tensor:
        return self.feed_forward(self.cross_attention_norm(front.hidden, attended))

    def forward(
        self,
        hidden: Tensor,
        visible: Tensor,
        states: Tensor,
        source_lengths: Tensor,
        delta: float | Tensor | None,
        shared: Alignment | None,
    ) -> LayerPass:
        """hidden: [B, T, E]; visible: [B, 1, T]; states: [B, S, E]; shared: an alignment to use instead of one's own"""
        front = self.approach(hidden, visible)
        memory = self.remember(states)
        attended, alignment = self.cross_attention(front.query, memory, source_lengths, delta, shared)
        return LayerPass(front, memory, alignment, self._leave(front, attended))


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them, and the residual around."""

    def __init__(self, model: ModelSettings):
        super().__init__()
        self.expand = nn.Linear(model.width, model.feed_forward)
        self.contract = nn.Linear(model.feed_forward, model.width)
        self.norm = ResidualNorm(model.width, model.dropout)
        for linear in (self.expand, self.contract):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden, self.contract(torch.relu(self.expand(hidden))))


class ResidualNorm(nn.Module):
    """norm(x + dropout(change)): post-norm, as in the paper."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, change: Tensor) -> Tensor:
        return layer_norm(hidden + self.dropout(change), self.weight.shape, self.weight, self.bias)
