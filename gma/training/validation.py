"""How well a model does on held-out sentences: loss, and quality and latency of greedy simultaneous translation."""

import math
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from gma.corpus.batches import collate, length_batches
from gma.corpus.token_file import Split
from gma.decoding.greedy import greedy
from gma.metrics import bleu, corpus_latency
from gma.model.transformer import Transformer
from gma.text.tokenizer import Tokenizer
from gma.text.vocabulary import EOS, PAD
from gma.text.words import pieces_per_word, word_delays
from gma.training.loss import cross_entropy
from gma.training.world import World


class Validation:
    """Scores a model on the valid split, at the configured δ (the middle of a range); all processes share the work.

    Args:
        tokens: at most so many in a batch.
        sentences: how many of them are translated, the first ones; 0 for none.
    """

    def __init__(self, split: Split, tokenizer: Tokenizer, tokens: int, sentences: int, world: World):
        self.split, self.tokenizer, self.world = split, tokenizer, world
        self.batches = length_batches(split.source.lengths + 1, split.target.lengths + 1, tokens)[
            world.rank :: world.size
        ]
        # pairs with an empty side are left out: they have no latency
        texts = (split.source.lengths > 0) & (split.target.lengths > 0)
        self.translated = np.flatnonzero(texts)[:sentences].tolist()

    @torch.no_grad()
    def __call__(self, model: Transformer, precision: AbstractContextManager) -> dict[str, Any]:
        """`loss` is −log p per target token, without smoothing, computed under `precision`; translation is in float32.

        Leaves the model in training mode.
        """
        model.eval()
        with precision:
            likelihood, tokens = self.world.total(*self._loss(model))
        lines = self.world.gather(self._translate(model))
        model.train()
        loss = likelihood / tokens
        result = {"loss": loss, "perplexity": math.exp(min(loss, 100.0))}
        return result | self._score(lines) if lines else result

    def _loss(self, model: Transformer) -> tuple[float, int]:
        likelihood, tokens = 0.0, 0
        for indices in self.batches:
            batch = collate(self.split, indices).to(self.world.device)
            logits = model(batch.source, batch.source_lengths, batch.target_input).logits
            likelihood += cross_entropy(logits, batch.target_output, 0.0, PAD).likelihood.item()
            tokens += batch.tokens
        return likelihood, tokens

    def _translate(self, model: Transformer) -> list[tuple[int, str, list[int]]]:
        """(number, translation, delays in words) of this process's share of the sentences."""
        source, target = self.tokenizer.source, self.tokenizer.target
        mine = self.translated[self.world.rank :: self.world.size]
        hypotheses = greedy(model, [[*self.split.source[index].tolist(), EOS] for index in mine])
        lines = []
        for index, hypothesis in zip(mine, hypotheses):
            pieces = pieces_per_word(self.split.source[index].tolist(), source)
            delays = word_delays(pieces, hypothesis.tokens, hypothesis.needed, target)
            lines.append((index, target.decode(hypothesis.tokens), delays))
        return lines

    def _score(self, lines: list[tuple[int, str, list[int]]]) -> dict[str, Any]:
        _, hypotheses, delays = zip(*sorted(lines))
        sources = [self.split.source_text[index] for index in self.translated]
        references = [self.tokenizer.rules.text(self.split.target_text[index]) for index in self.translated]
        quality = bleu(hypotheses, references)
        latency = corpus_latency(
            delays,
            [len(text.split()) for text in sources],
            [len(text.split()) for text in references],
            convention="word",
        )
        return {
            "bleu": quality.score,
            "bleu_signature": quality.signature,
            "al": latency.al,
            "laal": latency.laal,
            "latency_convention": latency.label,
            "sentences": len(self.translated),
        }
