"""Slots of a batch, and greedy search in them. That streams equal the masked pass is tested in `test_stream_parity`."""

import random

import pytest
import torch

from gma.attention import key_value_cache
from gma.decoding.greedy import greedy
from gma.decoding.hypothesis import length_limit
from gma.decoding.incremental import IncrementalBatch
from gma.text.vocabulary import BOS, EOS
from tests.support.small_models import random_source, small_model


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


@pytest.mark.parametrize("slots", [1, 3, 64])
def test_greedy_search_gives_what_a_stream_gives(slots):
    generator = random.Random(0)
    model = small_model(0, delta=(0.5, 2.5))
    sources = [random_source(generator) for _ in range(20)]
    finished = []
    hypotheses = greedy(model, sources, slots=slots, finished=finished.append)
    assert sum(finished) == len(sources)
    for source, hypothesis in zip(sources, hypotheses):
        limit = length_limit(max(hypothesis.needed))
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

    def steps(batch, slot, source):
        batch.push({slot: source})
        found = []
        for _ in range(4):
            scores = batch.advance([slot])
            batch.write([slot], [9])
            found.append((scores.logits, scores.needed, scores.positions))
        return found

    fresh, used = IncrementalBatch(model), IncrementalBatch(model)
    used.open()  # stays, and with it the memory
    slot = used.open(3.0)
    steps(used, slot, [8, 9, 10, 11, 12, EOS])
    used.close(slot)
    assert used.open(1.0) == slot
    source = [5, 6, 7, EOS]
    for one, other in zip(steps(used, slot, source), steps(fresh, fresh.open(1.0), source)):
        torch.testing.assert_close(one[0], other[0], rtol=0, atol=1e-12)
        assert one[1] == other[1]
        assert one[2][0] == pytest.approx(other[2][0], abs=1e-9)


def test_a_step_that_waits_keeps_its_place_when_a_long_translation_ends(monkeypatch):
    """The memory a long neighbour took is given back while a first step stands in front of a layer."""
    monkeypatch.setattr(key_value_cache, "LARGE", 4)
    model = small_model(0)

    def two_steps(batch, slot, meanwhile):
        batch.push({slot: [5]})
        assert not batch.advance([slot]).slots
        meanwhile()
        batch.push({slot: [6, 7, EOS]})
        batch.write(batch.advance([slot]).slots, [9])
        scores = batch.advance([slot])
        return scores.logits, scores.needed

    together, alone = IncrementalBatch(model), IncrementalBatch(model)
    long = together.open(1.0)
    together.push({long: [8, 9, EOS]})
    for _ in range(40):
        together.write(together.advance([long]).slots, [9])
    room = together._self_caches[0].key.shape[1]
    logits, needed = two_steps(together, together.open(1.0), lambda: together.close(long))
    assert together._self_caches[0].key.shape[1] < room
    expected = two_steps(alone, alone.open(1.0), lambda: None)
    torch.testing.assert_close(logits, expected[0], rtol=0, atol=1e-12)
    assert needed == expected[1]


def test_a_fork_goes_on_by_itself():
    model = small_model(0)
    batch = IncrementalBatch(model)
    slot = batch.open(1.0)
    batch.push({slot: [5, 6, 7, EOS]})
    batch.write(batch.advance().slots, [9])
    fork = batch.fork(slot)
    one, other = batch.advance().logits
    torch.testing.assert_close(one, other)
    batch.write([slot, fork], [8, 11])
    one, other = batch.advance().logits
    alone = [masked_logits(model, [5, 6, 7, EOS], 1.0, [9, token]) for token in (8, 11)]
    torch.testing.assert_close(torch.stack((one, other)), torch.stack(alone))
    batch.write([slot, fork], [4, 4])
    batch.copy({slot: fork})
    one, other = batch.advance([fork, slot]).logits
    torch.testing.assert_close(one, other)


def masked_logits(model, source, delta, tokens):
    """Of the token after these."""
    inputs = torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([[BOS, *tokens]])
    return model(*inputs, delta=torch.tensor([delta])).logits[0, -1]


def test_source_after_its_end_is_refused():
    batch = IncrementalBatch(small_model(0))
    slot = batch.open()
    batch.push({slot: [5, EOS]})
    with pytest.raises(ValueError, match="after the end"):
        batch.push({slot: [6]})


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        IncrementalBatch(small_model(0).train())
