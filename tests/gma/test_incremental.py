"""Streaming equals the masked pass: the same tokens, the same waiting, the same positions, however the source comes."""

import math
import random

import pytest
import torch

from gma.incremental import IncrementalBatch
from gma.search import greedy, length_limit
from gma.tokenizer import BOS, EOS
from tests.small_models import SHARING, random_source, small_model

DELTAS = (-1.0, 0.0, 0.6, 1.0, 2.5, 5.0, math.inf)
LONGEST = 25
POLICIES = [
    *({"policy": "gaussian", "sharing": sharing} for sharing in SHARING),
    {"policy": "gaussian", "convention": "reference"},
    {"policy": "gaussian", "positions": "absolute", "width_rule": "predicted"},
    {"policy": "gaussian", "prior": "laplace", "width_rule": "third"},
    {"policy": "offline"},
    {"policy": "offline", "encoder": "bidirectional"},
]


def stream(model, sources, deltas, generator, burst):
    """Translate all sources in one batch; sentences begin, and their tokens come, at random times."""
    batch = IncrementalBatch(model)
    steps = [[] for _ in sources]
    waiting, at_work, unread = list(range(len(sources))), {}, {}
    while waiting or at_work:
        if waiting and (not at_work or generator.random() < 0.4):
            index = waiting.pop(generator.randrange(len(waiting)))
            slot = batch.open(deltas[index])
            at_work[slot], unread[slot] = index, list(sources[index])
        arriving = {}
        for slot in at_work:
            if unread[slot] and generator.random() < 0.7:
                count = generator.randint(1, burst)
                arriving[slot], unread[slot] = unread[slot][:count], unread[slot][count:]
        batch.push(arriving)
        while (scores := batch.advance()) is not None:
            tokens = scores.logits.argmax(dim=1).tolist()
            for step, slot in enumerate(scores.slots):
                row = steps[at_work[slot]]
                if len(row) == LONGEST:
                    tokens[step] = EOS
                row.append((tokens[step], scores.needed[step], scores.positions[step], unread[slot]))
                # nothing is written before what it needs has come
                assert scores.needed[step] <= batch.sentences[slot].arrived
            batch.write(scores.slots, tokens)
        for slot in [slot for slot in at_work if batch.sentences[slot].token is None]:
            batch.close(slot)
            del at_work[slot]
    return steps


def masked(model, source, delta, tokens):
    """Best tokens, g and positions of one pass forced with these tokens."""
    output = model(
        torch.tensor([source]),
        torch.tensor([len(source)]),
        torch.tensor([[BOS, *tokens[:-1]]]),
        delta=torch.tensor([delta]),
    )
    needed = torch.stack([alignment.visible.amax(dim=1)[0] for alignment in output.alignments]).amax(dim=0)
    positions = torch.stack([alignment.center.amax(dim=1)[0] for alignment in output.alignments], dim=1)
    return output.logits.argmax(dim=-1)[0].tolist(), needed.tolist(), positions


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_every_way_of_cutting_the_input_gives_the_masked_pass(policy, seed):
    generator = random.Random(seed)
    model = small_model(seed, delta=1.0, **policy) if policy["policy"] == "gaussian" else small_model(seed, **policy)
    sources = [random_source(generator) for _ in range(10)]
    deltas = [generator.choice(DELTAS) for _ in sources]
    by_word, in_bursts, at_once = (stream(model, sources, deltas, generator, burst) for burst in (1, 4, 99))
    alone = [stream(model, [s], [d], generator, 1)[0] for s, d in zip(sources, deltas)]
    for index, (source, delta) in enumerate(zip(sources, deltas)):
        tokens, needed, positions, _ = (list(column) for column in zip(*by_word[index]))
        best, masked_needed, masked_positions = masked(model, source, delta, tokens)
        cut_off = len(tokens) > LONGEST
        assert tokens[: len(tokens) - cut_off] == best[: len(tokens) - cut_off]
        assert needed == masked_needed
        torch.testing.assert_close(torch.tensor(positions, dtype=torch.float64), masked_positions, rtol=0, atol=1e-9)
        for other in (in_bursts, at_once, alone):
            assert [row[:2] for row in other[index]] == list(zip(tokens, needed))
            torch.testing.assert_close(
                torch.tensor([row[2] for row in other[index]], dtype=torch.float64), masked_positions, rtol=0, atol=1e-9
            )


def test_it_writes_before_the_source_has_ended():
    generator = random.Random(5)
    model = small_model(3)
    sources = [[*random_source(generator)[:-1], *[7] * 10, EOS] for _ in range(5)]
    for steps in stream(model, sources, [0.0] * 5, generator, 1):
        assert steps[0][3], "the first word waited for the whole source"


@pytest.mark.parametrize("slots", [1, 3, 64])
def test_greedy_search_gives_what_a_stream_gives(slots):
    generator = random.Random(0)
    model = small_model(0, delta=(0.5, 2.5))
    sources = [random_source(generator) for _ in range(20)]
    finished = []
    hypotheses = greedy(model, sources, slots=slots, finished=finished.append)
    assert sum(finished) == len(sources)
    for source, hypothesis in zip(sources, hypotheses):
        limit = length_limit(len(source))
        assert len(hypothesis.needed) == len(hypothesis.tokens) + 1 == len(hypothesis.positions)
        best, needed, _ = masked(model, source, 1.5, [*hypothesis.tokens, EOS])
        assert hypothesis.needed == needed
        if hypothesis.complete:
            assert best == [*hypothesis.tokens, EOS]
        else:
            assert len(hypothesis.tokens) == limit
            assert best[:limit] == hypothesis.tokens
    assert any(not hypothesis.complete for hypothesis in hypotheses)


def test_a_closed_slot_is_used_again_and_forgets():
    model = small_model(0)
    batch = IncrementalBatch(model)
    results = []
    for _ in range(2):
        other, slot = batch.open(0.0), batch.open(1.0)
        batch.push({slot: [5, 6, 7, EOS], other: [9]})
        batch.advance()
        scores = batch.advance() or batch.advance()
        results.append((slot, batch.sentences[slot].needed, scores and scores.positions))
        batch.close(slot)
        batch.close(other)
    assert results[0] == results[1]


def test_source_after_its_end_is_refused():
    batch = IncrementalBatch(small_model(0))
    slot = batch.open()
    batch.push({slot: [5, EOS]})
    with pytest.raises(ValueError, match="after the end"):
        batch.push({slot: [6]})


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        IncrementalBatch(small_model(0).train())
