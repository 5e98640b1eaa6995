"""The Transformer: causal encoder, post-norm, and a decoder whose cross-attention is a policy."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gma.attention.alignment import Alignment
from gma.attention.key_value_cache import KeyValueCache
from gma.attention.self_attention import SelfAttention, causal
from gma.config.settings import AttentionSettings, ModelSettings
from gma.model.positions import SinusoidalPositions
from gma.policies import POLICIES
from gma.text.tokenizer import PAD


class Output(NamedTuple):
    """Of one pass over whole sentences."""

    logits: Tensor  # [B, T, V]
    alignments: tuple[Alignment, ...]  # one per decoder layer, [B, 1 or H, T] each
    auxiliary: Tensor | None = None  # in training, what the policy adds to the loss, summed over sentences


class Transformer(nn.Module):
    """Translates while it listens: a source state never changes once computed, and every target row uses only as much
    source as its policy asks for. Training needs one pass, with no loop over target positions."""

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
        self.policy = POLICIES[attention.policy]
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
        hidden, alignments = self.decoder(target_input, states, source_lengths, delta)
        auxiliary = None
        if self.training:
            target_lengths = (target_input != PAD).sum(dim=1)
            attention = self.decoder.layers[0].cross_attention
            auxiliary = attention.auxiliary_loss(alignments, source_lengths, target_lengths)
        return Output(self.project(hidden), alignments, auxiliary)

    def latency(self, delta: float | None) -> float:
        """The latency to translate with: the one asked for, if the policy can keep it, or the configured one."""
        return self.delta if delta is None else self.policy.checked_latency(delta)

    @torch.no_grad()
    def look(
        self, source: Tensor, source_lengths: Tensor, target_input: Tensor, delta: float | Tensor | None = None
    ) -> tuple[Output, tuple[Tensor, ...]]:
        """`forward`, and the posterior attention of every decoder layer, [B, H, T, S] each."""
        if not isinstance(delta, Tensor):
            delta = self.latency(delta)
        weights = []

        def note(layer, inputs, outputs):
            weights.append(layer.weights(inputs[0], inputs[1], outputs[1]))

        hooks = [layer.cross_attention.register_forward_hook(note) for layer in self.decoder.layers]
        try:
            return self(source, source_lengths, target_input, delta), tuple(weights)
        finally:
            for hook in hooks:
                hook.remove()


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
        self.layers = nn.ModuleList(EncoderLayer(model, backend) for _ in range(model.encoder_layers))

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
        visible = start.int()[:, None, None] + causal(*source.shape, source.device)
        for layer, cache in zip(self.layers, caches):
            hidden = layer.extend(hidden, visible, cache, rows, start)
        return hidden


class EncoderLayer(nn.Module):
    def __init__(self, model: ModelSettings, backend: str):
        super().__init__()
        self.self_attention = SelfAttention(model.width, model.heads, model.attention_dropout, backend)
        self.self_attention_norm = ResidualNorm(model.width, model.dropout)
        self.feed_forward = FeedForward(model)

    def forward(self, hidden: Tensor, visible: Tensor) -> Tensor:
        """hidden: [B, S, E]; visible: [B, 1, S]"""
        return self.feed_forward(self.self_attention_norm(hidden, self.self_attention(hidden, visible)))

    def extend(self, hidden: Tensor, visible: Tensor, cache: KeyValueCache, rows: Tensor, start: Tensor) -> Tensor:
        attended = self.self_attention.extend(hidden, visible, cache, rows, start)
        return self.feed_forward(self.self_attention_norm(hidden, attended))


class Decoder(nn.Module):
    def __init__(self, model: ModelSettings, attention: AttentionSettings, vocabulary: int):
        super().__init__()
        self.embed = Embedding(vocabulary, model.width, model.dropout)
        # with an alignment shared over layers the first layer predicts it for all
        self.shares_layers = attention.policy == "gaussian" and attention.sharing in ("layers", "all")
        self.layers = nn.ModuleList(
            DecoderLayer(model, attention, aligned=index == 0 or not self.shares_layers)
            for index in range(model.decoder_layers)
        )

    def forward(
        self, target: Tensor, states: Tensor, source_lengths: Tensor, delta: float | Tensor | None = None
    ) -> tuple[Tensor, tuple[Alignment, ...]]:
        """Hidden states [B, T, E] of target tokens [B, T], given encoder states [B, S, E]; every layer's alignment."""
        hidden = self.embed(target)
        visible = causal(*target.shape, target.device)
        alignments: list[Alignment] = []
        for layer in self.layers:
            shared = alignments[0] if alignments and self.shares_layers else None
            hidden, alignment = layer(hidden, visible, states, source_lengths, delta, shared)
            alignments.append(alignment)
        return hidden, tuple(alignments)


class DecoderLayer(nn.Module):
    def __init__(self, model: ModelSettings, attention: AttentionSettings, aligned: bool):
        super().__init__()
        self.self_attention = SelfAttention(model.width, model.heads, model.attention_dropout, attention.backend)
        self.self_attention_norm = ResidualNorm(model.width, model.dropout)
        policy = POLICIES[attention.policy]
        self.cross_attention = policy(model.width, model.heads, model.attention_dropout, attention, aligned)
        self.cross_attention_norm = ResidualNorm(model.width, model.dropout)
        self.feed_forward = FeedForward(model)

    def forward(
        self,
        hidden: Tensor,
        visible: Tensor,
        states: Tensor,
        source_lengths: Tensor,
        delta: float | Tensor | None,
        shared: Alignment | None,
    ) -> tuple[Tensor, Alignment]:
        """hidden: [B, T, E]; visible: [B, 1, T]; states: [B, S, E]"""
        hidden = self.self_attention_norm(hidden, self.self_attention(hidden, visible))
        attended, alignment = self.cross_attention(hidden, states, source_lengths, delta, shared)
        return self.feed_forward(self.cross_attention_norm(hidden, attended)), alignment


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


class ResidualNorm(nn.LayerNorm):
    """norm(x + dropout(change)): post-norm, as in the paper."""

    def __init__(self, width: int, dropout: float):
        super().__init__(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, change: Tensor) -> Tensor:
        return super().forward(hidden + self.dropout(change))
