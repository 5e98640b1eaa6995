"""ITST: what is transported, where rows stop, how it is weighted, and what is added to the loss."""

import math

import pytest
import torch

from gma.attention.memory import Projections
from gma.config.settings import AttentionSettings
from gma.policies import LatencyError, Look, Source, TransportCrossAttention
from gma.policies.itst import transport_loss
from gma.text.vocabulary import EOS
from tests.support.small_models import small_model

WIDTH, HEADS, HEAD = 16, 2, 8
LENGTHS, ROWS = [7, 4, 1], [5, 6, 2]


def attention(seed=0, **settings) -> TransportCrossAttention:
    torch.manual_seed(seed)
    layer = TransportCrossAttention(WIDTH, HEADS, 0.0, AttentionSettings(policy="itst", **settings)).double()
    # T is not the same everywhere
    with torch.no_grad():
        layer.query.weight.mul_(2.0)
    return layer


def inputs(layer, lengths, rows, seed=1):
    """Projected queries, projections of the source, its lengths."""
    torch.manual_seed(seed)
    states = torch.randn(len(lengths), max(lengths), WIDTH, dtype=torch.float64)
    query = layer.query(torch.randn(len(lengths), rows, WIDTH, dtype=torch.float64))
    return query, layer.project(states), torch.tensor(lengths)


def transported(query, memory, sentence, row, place):
    """T of one cell, by its definition."""
    asking, offered = query[sentence, row, WIDTH:], memory.part(2)[sentence, place].flatten()
    return 1 / (1 + math.exp(-(asking @ offered).item() / math.sqrt(HEAD)))


@pytest.mark.parametrize("theta", [0.0, 0.4, 0.9, 1.7, math.inf])
def test_rows_stop_where_the_definition_says(theta):
    layer = attention().eval()
    query, memory, lengths = inputs(layer, (9, 5, 1), 6)
    visible = layer(query, memory, lengths, theta)[1].visible[:, 0]
    for sentence, length in enumerate(lengths.tolist()):
        before = 1
        for row in range(6):
            received, enough = 0.0, length
            for place in range(length):
                received += transported(query, memory, sentence, row, place)
                if received >= theta:
                    enough = place + 1
                    break
            before = min(max(enough, before, row + 1), length)
            assert visible[sentence, row] == before


def test_the_posterior_is_attention_times_the_transport():
    layer = attention().eval()
    query, memory, lengths = inputs(layer, LENGTHS, 6)
    alignment = layer.align(query, Source(lengths, lengths, memory), None, 0.8)
    weights = layer.weights(query, memory, alignment)
    output = layer.attend(query, memory, alignment)
    for sentence in range(3):
        for row in range(6):
            seen, contexts = alignment.visible[sentence, 0, row].item(), []
            for head in range(HEADS):
                own = query[sentence, row, head * HEAD : (head + 1) * HEAD]
                scores = [
                    transported(query, memory, sentence, row, j)
                    * math.exp((own @ memory.part(0)[sentence, j, head]).item() / math.sqrt(HEAD))
                    for j in range(seen)
                ]
                posterior = [score / sum(scores) for score in scores]
                assert weights[sentence, head, row, :seen].tolist() == pytest.approx(posterior)
                assert not weights[sentence, head, row, seen:].any()
                contexts.append(sum(p * memory.part(1)[sentence, j, head] for j, p in enumerate(posterior)))
            torch.testing.assert_close(output[sentence, row], layer.output(torch.cat(contexts)))


def loss_by_definition(transport):
    """Both terms, of T [B, rows, S] as nested lists, cell by cell."""
    norm = cost = 0.0
    for matrix, source, target in zip(transport, LENGTHS, ROWS):
        for i in range(1, target + 1):
            norm += abs(sum(matrix[i - 1][:source]) - 1)
            for j in range(1, source + 1):
                cost += matrix[i - 1][j - 1] * max(abs(j - i * source / target) - 1, 0) / (target * source)
    return norm, cost


def test_the_loss_is_its_definition_whatever_padding_holds():
    torch.manual_seed(0)
    transport = torch.rand(3, max(ROWS), max(LENGTHS), dtype=torch.float64)
    losses = transport_loss(transport, torch.tensor(LENGTHS), torch.tensor(ROWS))
    expected = loss_by_definition(transport.tolist())
    assert min(expected) > 0.1
    assert [loss.item() for loss in losses] == pytest.approx(expected)
    for sentence, (source, target) in enumerate(zip(LENGTHS, ROWS)):
        transport[sentence, target:] = 99.0
        transport[sentence, :, source:] = -99.0
    again = transport_loss(transport, torch.tensor(LENGTHS), torch.tensor(ROWS))
    assert [loss.item() for loss in again] == pytest.approx(expected)


def test_nothing_is_added_where_each_row_takes_one_token_of_the_diagonal():
    transport = torch.eye(6, dtype=torch.float64)[None]
    norm, cost = transport_loss(transport, torch.tensor([6]), torch.tensor([6]))
    assert (norm.item(), cost.item()) == (0.0, 0.0)


def test_gradients_are_those_of_finite_differences():
    """Of the loss with respect to T, and of the layer's output and loss with respect to all that comes in."""
    torch.manual_seed(0)
    lengths, rows = torch.tensor(LENGTHS), torch.tensor(ROWS)
    transport = torch.rand(3, max(ROWS), max(LENGTHS), dtype=torch.float64, requires_grad=True)
    for which in (0, 1):
        assert torch.autograd.gradcheck(lambda x, which=which: transport_loss(x, lengths, rows)[which], (transport,))

    layer = attention(transport_cost=0.7).train()
    queries = torch.randn(3, max(ROWS), WIDTH, dtype=torch.float64, requires_grad=True)
    states = torch.randn(3, max(LENGTHS), WIDTH, dtype=torch.float64, requires_grad=True)

    def both(queries, states):
        query, memory = layer.query(queries), layer.project(states)
        output, alignment = layer(query, memory, lengths, 0.6)
        return output, layer.auxiliary_loss([Look(query, memory, alignment)], lengths, rows)

    assert torch.autograd.gradcheck(both, (queries, states))


def test_the_loss_is_the_mean_over_layers():
    layer = attention(transport_cost=3.0)
    looks = []
    for seed in (1, 2):
        query, memory, lengths = inputs(layer, LENGTHS, max(ROWS), seed)
        looks.append(Look(query, memory, layer.align(query, Source(lengths, lengths, memory), None, 0.5)))
    alone = [layer.auxiliary_loss([look], lengths, torch.tensor(ROWS)).item() for look in looks]
    assert layer.auxiliary_loss(looks, lengths, torch.tensor(ROWS)).item() == pytest.approx(sum(alone) / 2)
    transport = layer.energy(looks[0].query, looks[0].memory).sigmoid()
    norm, cost = loss_by_definition(transport.tolist())
    assert alone[0] == pytest.approx(norm + 3.0 * cost)


def test_a_row_asks_for_more_until_it_has_enough():
    layer = attention().eval()
    query, memory, lengths = inputs(layer, (9,), 1)
    enough = sum(transported(query, memory, 0, 0, place) for place in range(5)) - 1e-6
    theta = torch.tensor([enough], dtype=torch.float64)
    assert layer(query, memory, lengths, theta)[1].visible.item() == 5
    unknown, alignment = torch.tensor([2**30]), None
    for arrived in range(10):
        there = Projections(tuple(part[:, :arrived] for part in memory.parts))
        source = Source(unknown, torch.tensor([arrived]), there)
        if alignment is None:
            alignment = layer.align(query, source, None, theta)
        else:
            alignment = layer.resume(query, source, alignment, theta)
        assert alignment.visible.item() == min(arrived + 1, 5)


def test_every_sentence_keeps_a_threshold_of_its_own():
    layer = attention().eval()
    query, memory, lengths = inputs(layer, (9, 9, 9), 4)
    thetas = (0.3, 0.8, math.inf)
    together = layer(query, memory, lengths, torch.tensor(thetas))[1].visible
    alone = [layer(query, memory, lengths, theta)[1].visible[index] for index, theta in enumerate(thetas)]
    assert torch.equal(together, torch.stack(alone))
    assert (together[2] == 9).all()


def test_it_learns_to_transport_one():
    """The first of the two terms alone makes Σ_j T_ij one, whatever the length."""
    model = small_model(0, policy="itst", transport_cost=0.0).train()
    source = torch.randint(4, 40, (8, 10))
    source[:, -1] = EOS
    lengths, target = torch.full((8,), 10), torch.randint(4, 50, (8, 7))
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    losses = []
    for _ in range(60):
        losses.append(model(source, lengths, target, 0.5).auxiliary)
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.3 * losses[0]


def test_the_threshold_falls_in_training():
    drawn = [TransportCrossAttention.drawn_latency(0.2, 1.0, 0.5, 9, progress) for progress in (0.0, 0.2, 1.0)]
    assert drawn == pytest.approx([1.0, 0.2 + 0.8 * math.exp(-0.6), 0.2 + 0.8 * math.exp(-3)])


def test_a_threshold_that_makes_no_sense():
    with pytest.raises(LatencyError, match="0 or more"):
        TransportCrossAttention.checked_latency(-0.1)
    assert TransportCrossAttention.waits_for_all(math.inf)
