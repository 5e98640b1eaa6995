"""Batches: limits, padding, every sentence once an epoch, and an order that can be entered anywhere."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gma.corpus.batches import BatchPlan, UpdateStream, collate, length_batches
from gma.corpus.token_file import PreparedCorpus, Split, TokenFile, TokenFileWriter
from gma.text.vocabulary import BOS, EOS, PAD


def make_split(folder, source_lengths, target_lengths) -> Split:
    generator = np.random.default_rng(0)
    for side, lengths in (("source", source_lengths), ("target", target_lengths)):
        with TokenFileWriter(folder / side, 1000) as writer:
            writer.extend([generator.integers(4, 1000, length) for length in lengths])
    return Split(TokenFile(folder / "source"), TokenFile(folder / "target"))


def natural_split(folder, sentences=20_000) -> Split:
    """Lengths as in text: skewed, both sides related."""
    generator = np.random.default_rng(1)
    source = np.minimum(generator.gamma(3.0, 6.0, sentences).astype(int) + 1, 120)
    target = np.maximum(1, (source * generator.normal(1.0, 0.15, sentences)).astype(int))
    return make_split(folder, source, target)


def cost(split, batch) -> int:
    return len(batch) * (max(split.source.lengths[batch].max(), split.target.lengths[batch].max()) + 1)


lengths = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(lengths=lengths, tokens=st.integers(1, 200), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 5))
def test_every_sentence_once_and_within_the_limit(tmp_path_factory, lengths, tokens, seed, epoch):
    split = make_split(tmp_path_factory.mktemp("split"), *zip(*lengths))
    plan = BatchPlan(split, tokens, seed)
    for batches in (plan.epoch(epoch), length_batches(split.source.lengths + 1, split.target.lengths + 1, tokens)):
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
        assert all(cost(split, batch) <= tokens or len(batch) == 1 for batch in batches)
    assert len(plan.epoch(epoch)) == len(plan)


@settings(max_examples=40, deadline=None)
@given(lengths=lengths, data=st.data())
def test_collate_equals_the_plain_definition(tmp_path_factory, lengths, data):
    split = make_split(tmp_path_factory.mktemp("split"), *zip(*lengths))
    indices = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=9))
    batch = collate(split, np.array(indices))

    def padded(rows):
        width = max(map(len, rows))
        return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])

    source = [split.source[index].tolist() for index in indices]
    target = [split.target[index].tolist() for index in indices]
    assert torch.equal(batch.source, padded([[*row, EOS] for row in source]))
    assert torch.equal(batch.target_input, padded([[BOS, *row] for row in target]))
    assert torch.equal(batch.target_output, padded([[*row, EOS] for row in target]))
    assert batch.source_lengths.tolist() == [len(row) + 1 for row in source]
    assert batch.tokens == int((batch.target_output != PAD).sum())
    assert (batch.source.dtype, batch.source_lengths.dtype) == (torch.int64, torch.int32)
    assert batch.to("meta").source.device.type == "meta"
    assert batch.to("meta").tokens == batch.tokens


def test_order_depends_on_seed_and_epoch_alone(tmp_path):
    split = natural_split(tmp_path, 2000)

    def flat(plan, epoch):
        return np.concatenate(plan.epoch(epoch)).tolist()

    plan, again = BatchPlan(split, 512, 7), BatchPlan(split, 512, 7)
    later = flat(again, 3)  # asked for out of order
    assert [flat(plan, epoch) for epoch in range(4)] == [flat(again, epoch) for epoch in range(3)] + [later]
    assert flat(plan, 0) != flat(plan, 1)
    assert flat(plan, 0) != flat(BatchPlan(split, 512, 8), 0)
    # other sentences stand together in another epoch, not only the order of the batches is new
    together = [{frozenset(batch.tolist()) for batch in plan.epoch(epoch)} for epoch in (0, 1)]
    assert len(together[0] & together[1]) < 0.1 * len(plan)
    # short sentences do not come first
    means = [split.source.lengths[batch].mean() for batch in plan.epoch(0)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3


@pytest.mark.parametrize("tokens", [1024, 2048, 4096])
def test_padding_waste(tmp_path, tokens):
    split = natural_split(tmp_path)
    plan = BatchPlan(split, tokens, 0)
    padded = used = 0
    for indices in plan.epoch(2):
        batch = collate(split, indices)
        padded += batch.source.numel() + batch.target_output.numel()
        used += int((batch.source != PAD).sum()) + batch.tokens
    assert plan.padding_waste(2) == pytest.approx(1 - used / padded)
    assert plan.padding_waste(2) <= 0.1
    # batches are full, too
    assert np.mean([cost(split, batch) for batch in plan.epoch(2)]) > 0.93 * tokens


def flat_update(update):
    return [batch.tolist() for batch in update.batches]


def test_an_update_is_the_same_however_it_is_divided(tmp_path):
    plan = BatchPlan(natural_split(tmp_path, 500), 512, 3)
    one = UpdateStream(plan, accumulation=6)
    for world_size, accumulation in ((6, 1), (2, 3), (3, 2)):
        ranks = [UpdateStream(plan, world_size, rank, accumulation) for rank in range(world_size)]
        for number in (0, 1, 17):
            updates = [flat_update(rank.update(number)) for rank in ranks]
            assert all(len(update) == accumulation for update in updates)
            assert [batch for round_ in zip(*updates) for batch in round_] == flat_update(one.update(number))
            assert {rank.update(number).epoch for rank in ranks} == {one.update(number).epoch}


def test_updates_are_the_epochs_one_after_the_other(tmp_path):
    plan = BatchPlan(natural_split(tmp_path, 300), 512, 3)
    stream = UpdateStream(plan, accumulation=4)
    wanted = 3 * len(plan)
    numbers = range(-(-wanted // 4))
    seen = [batch for number in numbers for batch in flat_update(stream.update(number))]
    expected = [batch.tolist() for epoch in range(3) for batch in plan.epoch(epoch)]
    assert seen[:wanted] == expected
    assert [stream.update(number).epoch for number in numbers] == [number * 4 // len(plan) for number in numbers]
    # entered anywhere, by a stream that has seen nothing
    fresh = UpdateStream(BatchPlan(natural_split(tmp_path, 300), 512, 3), accumulation=4)
    assert flat_update(fresh.update(numbers[-2])) == flat_update(stream.update(numbers[-2]))


def test_length_batches_restore_the_order(tmp_path):
    split = natural_split(tmp_path, 700)
    results = np.full(len(split), -1)
    batches = length_batches(split.source.lengths + 1, split.target.lengths + 1, 1000)
    for batch in batches:
        results[batch] = split.source.lengths[batch]
    assert (results == split.source.lengths).all()
    longest = [np.maximum(split.source.lengths[batch], split.target.lengths[batch]) for batch in batches]
    assert (np.diff(np.concatenate(longest)) >= 0).all()


def test_wrong_arguments(tmp_path):
    split = make_split(tmp_path, [3], [4])
    with pytest.raises(ValueError, match="tokens: expected at least 1, got 0"):
        BatchPlan(split, 0, 0)
    with pytest.raises(ValueError, match="epoch: expected 0 or more, got -1"):
        BatchPlan(split, 10, 0).epoch(-1)
    plan = BatchPlan(split, 10, 0)
    for world_size, rank, accumulation in ((0, 0, 1), (2, 2, 1), (2, -1, 1), (1, 0, 0)):
        with pytest.raises(ValueError, match=f"rank {rank}, accumulation {accumulation}"):
            UpdateStream(plan, world_size, rank, accumulation)
    with pytest.raises(ValueError, match="number: expected 0 or more, got -1"):
        UpdateStream(plan).update(-1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="at least one sentence"):
        BatchPlan(make_split(tmp_path / "empty", [], []), 10, 0)


@pytest.mark.slow
@pytest.mark.skipif("GMA_DATA" not in os.environ, reason="needs the folder of corpora in the variable GMA_DATA")
@pytest.mark.parametrize("tokens", [2048, 4096])
def test_padding_waste_on_multi30k(tmp_path, tokens):
    from rich.console import Console

    from gma import config
    from gma.corpus.prepare import prepare

    overrides = [f"data.root={Path(os.environ['GMA_DATA']).resolve()}"]
    prepare(config.load("multi30k-de-en", overrides).config.data, tmp_path, Console(quiet=True))
    assert BatchPlan(PreparedCorpus.open(tmp_path).split("train"), tokens, 0).padding_waste() <= 0.1
