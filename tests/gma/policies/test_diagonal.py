"""The loss that keeps GMA's positions, on average over a sentence, on the diagonal."""

import pytest
import torch

from gma.policies.latency_loss import diagonal_offset
from gma.text.vocabulary import PAD
from tests.support import tiny_run
from tests.support.small_models import SHARING, SOURCE_VOCABULARY, TARGET_VOCABULARY, small_model

LENGTHS, TARGET_LENGTHS = [9, 4, 12], [8, 5, 1]


def sentences():
    """Source [B, S], its lengths, and target [B, T], padded."""
    make = torch.Generator().manual_seed(0)
    source = torch.randint(4, SOURCE_VOCABULARY, (3, max(LENGTHS)), generator=make)
    target = torch.randint(4, TARGET_VOCABULARY, (3, max(TARGET_LENGTHS)), generator=make)
    for row, (length, rows) in enumerate(zip(LENGTHS, TARGET_LENGTHS)):
        source[row, length:] = PAD
        target[row, rows:] = PAD
    return source, torch.tensor(LENGTHS), target


def loss_by_definition(positions, length, rows):
    """Of one sentence; positions: of all layers and heads, [any, T]."""
    offset = 0.0
    for i in range(1, rows + 1):
        furthest = max(column[i - 1].item() for column in positions)
        offset += (min(furthest, length) - i * length / rows) / rows
    return rows * (offset**2 / 2 if abs(offset) <= 1 else abs(offset) - 1 / 2)


@pytest.mark.parametrize("sharing", SHARING)
def test_the_loss_is_its_definition(sharing):
    inputs = sentences()
    output = small_model(1, sharing=sharing, diagonal_weight=0.3).train()(*inputs)
    positions = torch.cat([alignment.center for alignment in output.alignments], dim=1).detach()
    expected = sum(map(loss_by_definition, positions, LENGTHS, TARGET_LENGTHS))
    assert expected > 0.1
    assert output.auxiliary.item() == pytest.approx(0.3 * expected)


def test_positions_on_the_diagonal_are_at_0_and_one_token_ahead_at_1():
    row = torch.arange(1.0, 9.0)
    on = torch.stack([row * length / rows for length, rows in zip(LENGTHS, TARGET_LENGTHS)])
    lengths = torch.tensor([2 * length for length in LENGTHS])
    rows = torch.tensor(TARGET_LENGTHS)
    torch.testing.assert_close(diagonal_offset(2 * on, lengths, rows), torch.zeros(3))
    # the last row of each is at the end of its source, where no position counts as further
    ahead = 1 - 1 / rows
    torch.testing.assert_close(diagonal_offset(2 * on + 1, lengths, rows), ahead)


def test_the_offset_has_the_gradient_of_finite_differences():
    make = torch.Generator().manual_seed(0)
    positions = (10 * torch.rand(3, 8, generator=make, dtype=torch.float64)).requires_grad_()
    lengths = torch.tensor(LENGTHS), torch.tensor(TARGET_LENGTHS)
    assert torch.autograd.gradcheck(lambda x: diagonal_offset(x, *lengths), (positions,))


def test_it_is_for_training_alone_and_only_if_asked_for():
    inputs = sentences()
    assert small_model(0).train()(*inputs).auxiliary is None
    assert small_model(0, diagonal_weight=1.0).eval()(*inputs).auxiliary is None


def test_training_brings_positions_to_the_diagonal(tmp_path):
    """A weight so large that nothing else counts."""
    corpus = tiny_run.make_corpus(tmp_path / "corpus")

    def offsets(weight, seed):
        trainer = tiny_run.trainer(
            corpus,
            tmp_path / f"{weight}-{seed}",
            f"attention.diagonal_weight={weight}",
            f"training.seed={seed}",
        )
        for _ in range(60):
            trainer._update()
        source, lengths, target = sentences()
        with torch.no_grad():
            alignments = trainer.model.eval()(source % 20, lengths, target % 20).alignments
        furthest = torch.cat([alignment.center for alignment in alignments], dim=1).amax(dim=1)
        return diagonal_offset(furthest, lengths, torch.tensor(TARGET_LENGTHS)).abs().mean().item()

    for seed in (1, 2):
        assert offsets(10.0, seed) < offsets(0.0, seed)
