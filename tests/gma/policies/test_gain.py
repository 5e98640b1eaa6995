"""The gain policy: what its head learns, where rows stop, how it trains."""

import math

import pytest
import torch

from gma.attention.memory import Projections
from gma.config.settings import AttentionSettings
from gma.policies import GainCrossAttention, LatencyError, Source
from gma.text.vocabulary import EOS, PAD
from tests.support.small_models import small_model

WIDTH, HEADS = 16, 2


def attention(seed=0, **settings) -> GainCrossAttention:
    torch.manual_seed(seed)
    return GainCrossAttention(WIDTH, HEADS, 0.0, AttentionSettings(policy="gain", **settings)).double()


def inputs(attention, lengths, rows, seed=1):
    """Projected queries, projections of the source, its lengths."""
    torch.manual_seed(seed)
    states = torch.randn(len(lengths), max(lengths), WIDTH, dtype=torch.float64)
    query = attention.query(torch.randn(len(lengths), rows, WIDTH, dtype=torch.float64))
    return query, attention.project(states), torch.tensor(lengths)


def gains(attention, query, memory):
    """u, [B, T, S], of every pair."""
    heard = memory.part(2).flatten(2)
    return attention.log_gain(query[:, :, None, WIDTH:], heard[:, None]).exp()


def first(memory, tokens):
    return Projections(tuple(part[:, :tokens] for part in memory.parts))


def test_rows_stop_where_the_definition_says():
    layer = attention()
    query, memory, lengths = inputs(layer, (9, 5, 1), 6)
    gain = gains(layer, query, memory)
    for theta in gain.flatten().quantile(torch.tensor([0.0, 0.1, 0.3, 0.6, 1.0], dtype=torch.float64)).tolist():
        visible = layer.eval()(query, memory, lengths, theta)[1].visible[:, 0]
        for sentence, length in enumerate(lengths.tolist()):
            before = 1
            for row in range(6):
                stops = [j for j in range(max(before, row + 1), length + 1) if gain[sentence, row, j - 1] <= theta]
                before = min([*stops, length])
                assert visible[sentence, row] == before


def test_a_higher_threshold_never_waits_longer_for_the_first_row():
    layer = attention().eval()
    query, memory, lengths = inputs(layer, (9, 9, 4), 1)
    waits = torch.stack([layer(query, memory, lengths, theta)[1].visible for theta in (0.0, 0.5, 0.9, 1.1, 3.0)])
    assert (waits.diff(dim=0) <= 0).all()
    assert (waits[0, :, 0, 0] == lengths).all()
    assert (waits[-1] == 1).all()


def test_every_sentence_keeps_a_threshold_of_its_own():
    layer = attention().eval()
    query, memory, lengths = inputs(layer, (9, 9, 9), 4)
    thetas = (0.0, 1.0, 5.0)
    together = layer(query, memory, lengths, torch.tensor(thetas))[1].visible
    alone = [layer(query, memory, lengths, theta)[1].visible[index] for index, theta in enumerate(thetas)]
    assert torch.equal(together, torch.stack(alone))


def test_a_row_asks_for_one_token_at_a_time_and_goes_on_where_it_stopped():
    layer = attention().eval()
    query, memory, lengths = inputs(layer, (9,), 1)
    theta = torch.tensor([gains(layer, query, memory).min().item()])  # met at one place only
    expected = layer(query, memory, lengths, theta)[1].visible.item()
    unknown, alignment = torch.tensor([2**30]), None
    for arrived in range(1, 10):
        source = Source(unknown, torch.tensor([arrived]), first(memory, arrived))
        if alignment is None:
            alignment = layer.align(query, source, None, theta)
        else:
            alignment = layer.resume(query, source, alignment, theta)
        needed = alignment.visible.item()
        assert needed == (arrived + 1 if arrived < expected else expected)


def test_nothing_has_arrived():
    layer = attention().eval()
    query, memory, _ = inputs(layer, (3,), 1)
    source = Source(torch.tensor([2**30]), torch.tensor([0]), first(memory, 0))
    assert layer.align(query, source, None, torch.tensor([5.0])).visible.item() == 1


def test_the_head_learns_the_mean_of_the_divergence():
    """The same query and state with two different divergences: their mean is the minimum of the loss."""
    layer = attention()
    query, memory, lengths = inputs(layer, (4,), 1)
    alignment = layer.eval()(query, memory, lengths, 0.0)[1]
    scores = torch.zeros(1, 1, 3, dtype=torch.float64)
    hindsights = [torch.tensor([[[math.log(p), math.log(q), math.log(q)]]]) for p, q in ((0.9, 0.05), (0.4, 0.3))]
    divergences = [sum(p * math.log(3 * p) for p in hindsight.exp().flatten().tolist()) for hindsight in hindsights]
    real = torch.ones(1, 1)
    optimizer = torch.optim.Adam(layer.gain.parameters(), 0.05)
    for _ in range(500):
        losses = [layer.hindsight_loss(query.detach(), memory, alignment, scores, h, real) for h in hindsights]
        optimizer.zero_grad()
        sum(losses).backward(retain_graph=True)
        optimizer.step()
    assert gains(layer, query, memory)[0, 0, -1].item() == pytest.approx(sum(divergences) / 2, rel=1e-3)


def test_padding_teaches_nothing():
    layer = attention()
    query, memory, lengths = inputs(layer, (4,), 2)
    alignment = layer.eval()(query, memory, lengths, 0.0)[1]
    scores, hindsight = torch.randn(2, 1, 2, 5)
    one = layer.hindsight_loss(query, memory, alignment, scores, hindsight, torch.tensor([[1.0, 0.0]]))
    hindsight[0, 1], scores[0, 1] = 7.0, -3.0
    assert one == layer.hindsight_loss(query, memory, alignment, scores, hindsight, torch.tensor([[1.0, 0.0]]))


def sentences():
    source = torch.tensor([[5, 6, 7, 8, 9, EOS], [10, 11, EOS, PAD, PAD, PAD]])
    return source, torch.tensor([6, 3]), torch.tensor([[2, 4, 5, 6, 7], [2, 7, 8, PAD, PAD]])


def test_only_the_head_feels_the_loss():
    model = small_model(0, policy="gain").train()
    torch.manual_seed(0)
    model(*sentences(), 0.5).auxiliary.backward()
    layer = model.decoder.layers[0].cross_attention
    own = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and parameter.grad.any()
    }
    prefix = "decoder.layers.0.cross_attention."
    assert {name.removeprefix(prefix) for name in own} <= {
        *("gain.weight", "gain.bias", "query.weight", "query.bias", "memory.weight", "memory.bias")
    }
    assert layer.gain.weight.grad.any()
    assert not layer.query.weight.grad[: layer.query.in_features].any()
    assert not layer.memory.weight.grad[: 2 * layer.memory.in_features].any()


def test_training_sees_both_its_own_waiting_and_the_diagonal():
    """With a threshold that is never met the policy waits for all; Wait-k's rows see a token more than those before."""
    model = small_model(0, policy="gain").train()
    source = torch.randint(4, 40, (64, 12))
    source[:, -1] = EOS
    lengths = torch.full((64,), 12)
    torch.manual_seed(1)
    visible = model(source, lengths, torch.randint(4, 50, (64, 10)), 1e-9).alignments[0].visible[:, 0]
    everything = (visible == 12).all(dim=1)
    step = visible.diff(dim=1)
    diagonal = ((step == 1) | (visible[:, 1:] == 12)).all(dim=1)
    assert 16 < everything.sum() < 56
    assert (everything | diagonal).all()
    assert len(set(visible[~everything, 0].tolist())) > 4


def test_whole_sentences_at_zero():
    model = small_model(0, policy="gain")
    source, lengths, target = sentences()
    for theta in (0.0, torch.zeros(2, dtype=torch.float64)):
        for alignment in model(source, lengths, target, theta).alignments:
            assert torch.equal(alignment.visible, lengths.int()[:, None, None].expand(2, 1, 5))


@pytest.mark.parametrize("theta", [-0.1, math.inf])
def test_thresholds_that_make_no_sense(theta):
    with pytest.raises(LatencyError, match="0 or more"):
        GainCrossAttention.checked_latency(theta)


def test_drawn_thresholds_are_even_on_a_logarithmic_scale():
    drawn = [GainCrossAttention.drawn_latency(0.01, 1.0, share, 9, 0.0) for share in (0.0, 0.5, 1.0)]
    assert drawn == pytest.approx([0.01, 0.1, 1.0])
