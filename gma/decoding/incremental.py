"""The batch in PyTorch: on every device, in every dtype, for every policy; and what the native one is compared with."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gma.attention.alignment import UNKNOWN_LENGTH, Alignment, without_prior
from gma.attention.key_value_cache import KeyValueCache
from gma.attention.memory import CachedRows, Past
from gma.attention.self_attention import causal
from gma.decoding.batch import SearchableBatch
from gma.model.transformer import Front, Transformer
from gma.policies import Source
from gma.text.padding import padded
from gma.text.vocabulary import BOS, EOS

NOWHERE = -1
# of a slot that no row has aligned yet, in the order of Alignment's fields
UNALIGNED = (1.0, 1.0, 0, math.nan)


@dataclass
class Sentence:
    """One slot of the batch. Counts are in model tokens, the source's end-of-sentence included."""

    delta: float
    arrived: int = 0
    ended: bool = False
    written: int = 0
    token: int | None = BOS  # the decoder's next input; None once the translation has ended
    layer: int = NOWHERE  # decoder layer at whose cross-attention the next token waits
    needed: int = 0  # source tokens that it waits for there
    furthest: int = 0  # source tokens that the next token has used so far
    unread: list[int] = field(default_factory=list)  # of a bidirectional encoder, which starts at the end

    @property
    def can_go_on(self) -> bool:
        return self.token is not None and (self.layer == NOWHERE or self.ended or self.needed <= self.arrived)

    @property
    def source_length(self) -> int:
        return self.arrived if self.ended else UNKNOWN_LENGTH


class TorchScores(NamedTuple):
    slots: list[int]
    logits: Tensor  # [n, V]
    needed: list[int]
    positions: list[list[float]]
    widths: list[list[float]]

    @property
    def best(self) -> list[int]:
        return self.logits.argmax(dim=1).tolist()


class IncrementalBatch(SearchableBatch):
    def __init__(self, model: Transformer):
        super().__init__(model)
        self.sentences: dict[int, Sentence] = {}
        self._forget_everything()

    def _forget_everything(self) -> None:
        weight = self.model.project.weight
        attention = self.model.decoder.layers[0].cross_attention

        def cache(parts: int = 2) -> KeyValueCache:
            return KeyValueCache(attention.heads, attention.head_dim, weight.detach(), parts)

        self._encoder_caches = [cache() for _ in self.model.encoder.layers]
        self._self_caches = [cache() for _ in self.model.decoder.layers]
        self._cross_caches = [cache(layer.cross_attention.memories) for layer in self.model.decoder.layers]
        self._slots = 0
        # rows that wait at a cross-attention, [N, 1, …], and every layer's latest alignment, [N, 1 or H, 1]
        self._hidden = weight.new_zeros(0, 1, weight.shape[1])
        self._query = weight.new_zeros(0, 1, attention.query.out_features)
        self._alignments: list[Alignment | None] = [None] * len(self.model.decoder.layers)
        # what the waiting rows went on from, [N, 1 or H, 1] of every layer: with another latency they start again
        self._origins: list[Tensor | None] = [None] * len(self.model.decoder.layers)

    @property
    def slots(self) -> list[int]:
        return sorted(self.sentences)

    def open(self, delta: float | None = None) -> int:
        latency = self.model.latency(delta)
        slot = next(slot for slot in range(len(self.sentences) + 1) if slot not in self.sentences)
        self.reserve(slot + 1)
        row = self._tensor([slot])
        self._alignments = [
            alignment and alignment._replace(position=alignment.position.index_fill(0, row, math.nan))
            for alignment in self._alignments
        ]
        self.sentences[slot] = Sentence(latency)
        return slot

    def change_latency(self, slot: int, delta: float | None) -> None:
        latency, sentence = self.model.latency(delta), self.sentences[slot]
        sentence.delta = latency
        if sentence.layer == NOWHERE:
            return
        row = self._tensor([slot])
        for index in range(sentence.layer + 1):
            origin, alignment = self._origins[index], self._aligned(index)
            start = alignment.position.new_full((1,), math.nan) if origin is None else origin[slot]
            self._alignments[index] = alignment._replace(
                position=alignment.position.index_copy(0, row, start.expand_as(alignment.position[row]))
            )
        sentence.layer, sentence.needed, sentence.furthest = NOWHERE, 0, 0

    def close(self, slot: int) -> None:
        del self.sentences[slot]
        if not self.sentences:
            self._forget_everything()
            return
        arrived = max(sentence.arrived for sentence in self.sentences.values())
        for cache in (*self._encoder_caches, *self._cross_caches):
            cache.give_back(arrived)
        # a step that waits between two layers has left its own position behind already
        written = max(sentence.written for sentence in self.sentences.values()) + 1
        for cache in self._self_caches:
            cache.give_back(written)

    def fork(self, slot: int) -> int:
        fork = self.open()
        self.sentences[fork] = replace(self.sentences[slot])
        source, target = self._tensor([slot]), self._tensor([fork])
        for cache in (*self._self_caches, *self._cross_caches):
            cache.reserve(self._slots, 0)
        for cache in self._cross_caches:
            cache.copy(source, target)
        self.copy({fork: slot})
        return fork

    def copy(self, origins: Mapping[int, int]) -> None:
        if not origins:
            return
        source, target = self._tensor(list(origins.values())), self._tensor(list(origins))
        for cache in self._self_caches:
            cache.copy(source, target)
        self._alignments = [
            alignment and Alignment(*(x.index_copy(0, target, x[source]) for x in alignment))
            for alignment in self._alignments
        ]

    def reserve(self, slots: int) -> None:
        if slots <= self._slots:
            return
        self._slots = max(slots, 2 * self._slots)
        self._hidden, self._query = (_lengthened(x, self._slots, 0.0) for x in (self._hidden, self._query))
        self._alignments = [
            alignment and Alignment(*(_lengthened(x, self._slots, fill) for x, fill in zip(alignment, UNALIGNED)))
            for alignment in self._alignments
        ]

    @torch.no_grad()
    def push(self, tokens: Mapping[int, Sequence[int]], *, wanted: bool = False) -> dict[int, Tensor]:
        for slot, new in tokens.items():
            if self.sentences[slot].ended:
                raise ValueError(f"slot {slot} was given {len(new)} tokens after the end of its source")
        if not self.model.encoder.causal:
            tokens = self._complete_sources(tokens)
        slots = sorted(slot for slot, new in tokens.items() if new)
        if not slots:
            return {}
        sentences = [self.sentences[slot] for slot in slots]
        lengths = [len(tokens[slot]) for slot in slots]
        longest = max(lengths)
        capacity = longest + max(sentence.arrived for sentence in sentences)
        for cache in (*self._encoder_caches, *self._cross_caches):
            cache.reserve(self._slots, capacity)

        source = padded([tokens[slot] for slot in slots], self.model.project.weight.device)
        rows, start = self._tensor(slots), self._tensor([sentence.arrived for sentence in sentences])
        if self.model.encoder.causal:
            states = self.model.encoder.extend(source, self._encoder_caches, rows, start, capacity - 1)
        else:
            states = self.model.encoder(source, self._tensor(lengths))
        for layer, cache in zip(self.model.decoder.layers, self._cross_caches):
            cache.write(rows, start, *layer.remember(states).parts)
        for slot, sentence in zip(slots, sentences):
            sentence.arrived += len(tokens[slot])
            sentence.ended = tokens[slot][-1] == EOS
        return {slot: row[:length] for slot, row, length in zip(slots, states, lengths)} if wanted else {}

    def _complete_sources(self, tokens: Mapping[int, Sequence[int]]) -> dict[int, Sequence[int]]:
        """A bidirectional encoder reads a source when it is complete."""
        for slot, new in tokens.items():
            self.sentences[slot].unread.extend(new)
        sources = {slot: self.sentences[slot].unread for slot in tokens}
        return {slot: source for slot, source in sources.items() if source and source[-1] == EOS}

    @torch.no_grad()
    def advance(self, slots: Iterable[int] | None = None) -> TorchScores | None:
        slots = sorted(self.sentences if slots is None else slots)
        going = [slot for slot in slots if self.sentences[slot].can_go_on]
        if not going:
            return None
        stood = {slot: self.sentences[slot].layer for slot in going}
        before = self._alignments.copy()
        rows = self._rows([slot for slot, layer in stood.items() if layer == NOWHERE])
        hidden = self._embed(rows)
        for index in range(len(self.model.decoder.layers)):
            waiting = self._approach(index, rows, hidden) if rows.slots else None
            self._resume(index, [slot for slot, layer in stood.items() if layer == index])
            ready = [slot for slot in going if self._is_ready(slot, index)]
            # mostly all go on at once; only what stops here, or has waited here before, is kept
            if ready != rows.slots:
                if waiting is not None:
                    self._keep(rows, waiting.front)
                rows = self._rows(ready)
                waiting = self._kept(index, rows) if ready else None
            hidden = hidden[:0] if waiting is None else self._pass(index, rows, waiting)
        came_through = set(rows.slots)
        self._keep_origins(before, [slot for slot in going if stood[slot] == NOWHERE and slot not in came_through])
        needed = [sentence.furthest for sentence in rows.sentences]
        return TorchScores(rows.slots, self.model.project(hidden[:, 0]), needed, *self._places(rows))

    def write(self, slots: Sequence[int], tokens: Sequence[int]) -> None:
        for slot, token in zip(slots, tokens):
            sentence = self.sentences[slot]
            sentence.written += 1
            sentence.token = None if token == EOS else token
            sentence.layer, sentence.needed, sentence.furthest = NOWHERE, 0, 0

    def _keep_origins(self, before: list[Alignment | None], slots: list[int]) -> None:
        """Remember where rows that have just begun to wait went on from; before: the alignments when they began."""
        if not slots:
            return
        row = self._tensor(slots)
        for index, alignment in enumerate(before):
            # no row had come to this layer: none goes on from anywhere
            if alignment is None:
                continue
            origin = self._origins[index]
            kept = alignment.position if origin is None else _lengthened(origin, self._slots, math.nan)
            self._origins[index] = kept.index_copy(0, row, alignment.position[row])

    def _places(self, rows: "Rows") -> tuple[list[list[float]], list[list[float]]]:
        """Position and width of the furthest head, [n][layers] each."""
        if not rows.slots:
            return [], []
        layers = [self._latest(index, rows) for index in range(len(self._alignments))]
        centers = [alignment.center[:, :, 0] for alignment in layers]
        widths = [alignment.width[:, :, 0] for alignment in layers]
        if centers[0].shape[1] > 1:
            heads = [center.argmax(dim=1, keepdim=True) for center in centers]
            centers = [center.gather(1, head) for center, head in zip(centers, heads)]
            widths = [width.gather(1, head) for width, head in zip(widths, heads)]
        return torch.cat(centers, dim=1).tolist(), torch.cat(widths, dim=1).tolist()

    def _is_ready(self, slot: int, layer: int) -> bool:
        sentence = self.sentences[slot]
        return sentence.layer == layer and sentence.can_go_on

    def awaited(self, slot: int) -> int:
        return self.sentences[slot].needed

    def arrived(self, slot: int) -> int:
        return self.sentences[slot].arrived

    def take_back(self, slot: int, arrived: int) -> None:
        sentence = self.sentences[slot]
        sentence.arrived, sentence.ended = arrived, False

    @torch.no_grad()
    def force(self, tokens: Mapping[int, Sequence[int]]) -> None:
        for slot, given in tokens.items():
            sentence = self.sentences[slot]
            sentence.written, sentence.token = len(given) - 1, given[-1]
            sentence.layer, sentence.needed, sentence.furthest = NOWHERE, 0, 0
        slots = sorted(slot for slot, given in tokens.items() if len(given) > 1)
        if not slots:
            return
        rows = self._rows(slots)
        target = padded([tokens[slot][:-1] for slot in slots], rows.index.device)
        longest = target.shape[1]
        start = torch.zeros_like(rows.index)
        # what padding leaves behind is overwritten before it is seen
        seen = causal(target.shape[0], longest, target.device)
        heard = rows.arrived.int()[:, None, None].expand(-1, 1, longest)
        hidden = self.model.decoder.embed.extend(target, start, longest - 1)
        for index, (layer, own) in enumerate(zip(self.model.decoder.layers, self._self_caches)):
            own.reserve(self._slots, longest)
            front = layer.approach(hidden, seen, Past(own, rows.index, start))
            hidden = layer.attend(front, self._memory(index, rows), without_prior(front.query, heard))

    def _embed(self, rows: "Rows") -> Tensor:
        """[n, 1, E]"""
        furthest = max((sentence.written for sentence in rows.sentences), default=0)
        for cache in self._self_caches:
            cache.reserve(self._slots, furthest + 1)
        tokens = self._tensor([sentence.token for sentence in rows.sentences])
        return self.model.decoder.embed.extend(tokens[:, None], rows.written, furthest)

    def _approach(self, index: int, rows: "Rows", hidden: Tensor) -> "Waiting":
        """Go up to a layer's cross-attention, and find how much source the layer needs."""
        past = Past(self._self_caches[index], rows.index, rows.written)
        front = self.model.decoder.layers[index].approach(hidden, rows.visible, past)
        alignment = self._align(index, rows, front)
        self._settle(index, rows, alignment)
        return Waiting(front, alignment)

    def _resume(self, index: int, slots: list[int]) -> None:
        """Re-align slots waiting at this layer whose source has arrived."""
        if not slots:
            return
        rows = self._rows(slots)
        waiting, layer, source = self._kept(index, rows), self.model.decoder.layers[index], self._source(index, rows)
        self._settle(index, rows, layer.resume(waiting.front, source, waiting.alignment, rows.delta))

    def _settle(self, index: int, rows: "Rows", alignment: Alignment) -> None:
        """Let these rows wait at a layer for what their alignment needs."""
        before = self._alignments[index]
        if before is None:
            before = Alignment(*(_lengthened(x[:0], self._slots, fill) for x, fill in zip(alignment, UNALIGNED)))
        self._alignments[index] = Alignment(*(rows.put(new, old) for new, old in zip(alignment, before)))
        for sentence, needed in zip(rows.sentences, alignment.visible.amax(dim=(1, 2)).tolist()):
            sentence.layer, sentence.needed = index, needed

    def _keep(self, rows: "Rows", front: Front) -> None:
        self._hidden, self._query = rows.put(front.hidden, self._hidden), rows.put(front.query, self._query)

    def _kept(self, index: int, rows: "Rows") -> "Waiting":
        return Waiting(Front(rows.of(self._hidden), rows.of(self._query)), self._latest(index, rows))

    def _latest(self, index: int, rows: "Rows") -> Alignment:
        """A layer's alignments of these rows."""
        return Alignment(*(rows.of(x) for x in self._aligned(index)))

    def _aligned(self, index: int) -> Alignment:
        """All slots' alignments of a layer that some row has come to."""
        alignment = self._alignments[index]
        assert alignment is not None
        return alignment

    def _source(self, index: int, rows: "Rows") -> Source:
        return Source(rows.source_length, rows.arrived, self._memory(index, rows))

    def _memory(self, index: int, rows: "Rows") -> CachedRows:
        cache, longest = self._cross_caches[index], max(sentence.arrived for sentence in rows.sentences)
        # a policy may look before anything has arrived
        cache.reserve(self._slots, 0)
        return CachedRows(cache, rows.index, longest)

    def _align(self, index: int, rows: "Rows", front: Front) -> Alignment:
        """[n, 1 or H, 1] each"""
        layer, source = self.model.decoder.layers[index], self._source(index, rows)
        if index > 0 and self.model.decoder.shares_layers:
            # the source may have ended since the first layer asked for more
            return layer.resume(front, source, self._latest(0, rows), rows.delta)
        before = self._alignments[index]
        previous = None if before is None else rows.of(before.position)[:, :, 0]
        return layer.align(front, source, previous, rows.delta)

    def _pass(self, index: int, rows: "Rows", waiting: "Waiting") -> Tensor:
        """A layer's cross-attention and what follows it, [n, 1, E]."""
        for sentence in rows.sentences:
            sentence.furthest = max(sentence.furthest, sentence.needed)
        layer = self.model.decoder.layers[index]
        return layer.attend(waiting.front, self._memory(index, rows), waiting.alignment)

    def _rows(self, slots: list[int]) -> "Rows":
        return Rows(slots, [self.sentences[slot] for slot in slots], self.model.project.weight.device)

    def _tensor(self, numbers: list) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.model.project.weight.device)


class Waiting(NamedTuple):
    """Rows at a layer's cross-attention, and what they need."""

    front: Front  # [n, 1, …]
    alignment: Alignment  # [n, 1 or H, 1] each


class Rows:
    """Some of the slots, ascending, and what the decoder must know of them as tensors."""

    def __init__(self, slots: list[int], sentences: list[Sentence], device: torch.device):
        self.slots, self.sentences = slots, sentences
        columns = [(slot, s.written, s.arrived, s.source_length) for slot, s in zip(slots, sentences)]
        whole = torch.tensor(columns, dtype=torch.int64, device=device).reshape(-1, 4)
        self.index, self.written, self.arrived, self.source_length = whole.unbind(1)  # [n] each
        self.visible = (self.written + 1).int()[:, None, None]  # to self-attention, [n, 1, 1]
        self.delta = torch.tensor([s.delta for s in sentences], dtype=torch.float64, device=device)

    def of(self, buffer: Tensor) -> Tensor:
        """These rows of all slots' [N, …]."""
        return buffer if len(self.slots) == buffer.shape[0] else buffer[self.index]

    def put(self, x: Tensor, buffer: Tensor) -> Tensor:
        """All slots' [N, …] with these rows replaced."""
        return x if len(self.slots) == buffer.shape[0] else buffer.index_copy(0, self.index, x)


def _lengthened(x: Tensor, rows: int, fill: float) -> Tensor:
    """[n, …] → [rows, …]"""
    return torch.cat((x, x.new_full((rows - x.shape[0], *x.shape[1:]), fill)))
