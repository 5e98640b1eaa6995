"""Incremental decoding with the small preset: what a step costs late in a sentence, in a batch, and without a cache."""

import random
import statistics
import time
from unittest.mock import patch

import pytest
import torch

from benchmarks.suites.corpora import long_sources
from benchmarks.suites.interleave import interleaved
from gma.config.settings import AttentionSettings, ModelSettings
from gma.decoding.greedy import greedy
from gma.decoding.incremental import IncrementalBatch
from gma.model.transformer import Transformer
from gma.text.vocabulary import BOS, EOS, PAD

VOCABULARY = 8000
EARLY, LATE, AROUND = 20, 200, 8
SLOTS = 64


@pytest.fixture(scope="module")
def model() -> Transformer:
    """Untrained; what it writes takes as long as what a trained one writes. It never ends a sentence by itself."""
    torch.manual_seed(0)
    model = Transformer(ModelSettings(preset="small"), AttentionSettings(), VOCABULARY, VOCABULARY).eval()
    with torch.no_grad():
        model.project.weight[EOS] = 0.0
    return model


def random_sources(count: int, length: int) -> list[list[int]]:
    generator = random.Random(0)
    return [[generator.randrange(4, VOCABULARY) for _ in range(length)] + [EOS] for _ in range(count)]


def test_late_steps(benchmark, model):
    """Time of a step around target position 200 against position 20, one stream, source of 30 tokens."""
    times = {EARLY: [], LATE: []}

    def one_sentence():
        batch = IncrementalBatch(model)
        slot = batch.open()
        batch.push({slot: random_sources(1, 30)[0]})
        for position in range(1, LATE + AROUND):
            start = time.perf_counter()
            scores = batch.advance()
            batch.write(scores.slots, scores.logits.argmax(dim=1).tolist())
            for place, samples in times.items():
                if abs(position - place) < AROUND:
                    samples.append((time.perf_counter() - start) * 1e3)

    benchmark.pedantic(one_sentence, rounds=7, warmup_rounds=1)
    milliseconds = {str(place): statistics.median(samples) for place, samples in times.items()}
    benchmark.extra_info.update(
        suite="late steps", size=f"target position {LATE} against {EARLY}", milliseconds=milliseconds
    )


def test_streams_together(benchmark, model):
    """Tokens per second of 64 streams in a batch against one stream after another."""
    sources = random_sources(SLOTS, 20)
    few = sources[:4]
    with patch("gma.decoding.hypothesis.length_limit", lambda needed: max(needed, 20)):
        alone, together = greedy(model, sources, slots=1), greedy(model, sources, slots=SLOTS)
        refuse_if_different(alone, together)
        tokens = {"together": _steps(together), "alone": _steps(alone[: len(few)])}
        runs = {"together": lambda: greedy(model, sources, slots=SLOTS), "alone": lambda: greedy(model, few, slots=1)}
        times = interleaved(benchmark, runs, 5)
    speed = {name: tokens[name] / times[name] * 1e3 for name in times}
    benchmark.extra_info.update(suite="streams", size=f"{SLOTS} streams against one", tokens_per_second=speed)


def test_cached_against_recomputed(benchmark, model):
    """Long sentences: `translate`'s search against running the whole decoder over the prefix at every step.

    The second takes minutes, so that three batches stand for all: a short, a middle and a long one.
    """
    name, sources = long_sources(VOCABULARY)
    by_length = sorted(sources, key=len)
    middles = [len(sources) * part // 6 for part in (1, 3, 5)]
    sample = [by_length[middle - SLOTS // 2 : middle + SLOTS // 2] for middle in middles]
    found = {}

    def cached():
        found["cached"] = greedy(model, [source for batch in sample for source in batch], slots=SLOTS)

    def recompute():
        found["recomputed"] = [tokens for batch in sample for tokens in recomputed(model, batch)]

    with patch("gma.decoding.hypothesis.length_limit", lambda needed: max(needed, 20)):
        greedy(model, sample[0], slots=SLOTS)
        times = interleaved(benchmark, {"cached": cached, "recomputed": recompute}, 2, warm=True)
        cut = [tokens[: len(hypothesis.tokens)] for tokens, hypothesis in zip(found["recomputed"], found["cached"])]
        refuse_if_different(found["cached"], cut)
        start = time.perf_counter()
        everything = greedy(model, sources, slots=SLOTS)
        seconds = time.perf_counter() - start
    benchmark.extra_info.update(
        suite="cache",
        size=f"three batches of {SLOTS} of {len(sources):,} sentences of {name}",
        ratio=times["recomputed"] / times["cached"],
        sentences=len(sources),
        seconds=seconds,
        tokens_per_second=_steps(everything) / seconds,
    )


@torch.no_grad()
def recomputed(model: Transformer, sources: list[list[int]]) -> list[list[int]]:
    """Greedy tokens of a batch, as many for each sentence as its longest source has; the source is encoded once."""
    lengths = torch.tensor([len(source) for source in sources])
    longest = int(lengths.max())
    states = model.encoder(torch.tensor([source + [PAD] * (longest - len(source)) for source in sources]), lengths)
    target = torch.full((len(sources), 1), BOS)
    for _ in range(longest + 1):
        hidden = model.decoder(target, states, lengths)[-1].hidden
        target = torch.cat((target, model.project(hidden[:, -1]).argmax(dim=1, keepdim=True)), dim=1)
    return target[:, 1:].tolist()


def refuse_if_different(first: list, second: list) -> None:
    """Rounding may turn a near tie of two words; anything more is an error."""
    first, second = ([getattr(side, "tokens", side) for side in sides] for sides in (first, second))
    same = sum(a == b for a, b in zip(first, second))
    assert same >= 0.9 * len(first), f"{len(first) - same} of {len(first)} translations differ: no speed is reported"


def _steps(hypotheses: list) -> int:
    return sum(len(hypothesis.needed) for hypothesis in hypotheses)
