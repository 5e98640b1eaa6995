"""Monotonic attention: where heads stop, how a scan waits and goes on, what it is trained with, and its losses.

That streams equal the masked pass is tested in `test_stream_parity`, the expectation in `test_expected_alignment`.
"""

import math
import random

import pytest
import torch

from gma.config.settings import AttentionSettings
from gma.decoding.incremental import IncrementalBatch
from gma.policies.latency_loss import expected_latency
from gma.text.vocabulary import BOS, EOS, PAD
from tests.support import tiny_run
from tests.support.small_models import SOURCE_VOCABULARY, TARGET_VOCABULARY, small_model

KINDS = ("hard", "infinite_lookback")
# with this energy bias the heads of a random model stop neither at once nor all at the end
BIAS = 1.0


def monotonic_model(seed=0, kind="infinite_lookback", dtype=torch.float64, **more):
    return small_model(seed, dtype, policy="monotonic", monotonic=kind, **{"energy_bias": BIAS, **more})


def sentences(seed=0, lengths=(12, 7, 1), rows=9):
    """Right-padded source, its lengths, and target input, all of the same number of tokens."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(4, SOURCE_VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    for row, length in enumerate(lengths):
        source[row, length - 1], source[row, length:] = EOS, PAD
    target = torch.randint(4, TARGET_VOCABULARY, (len(lengths), rows), generator=generator)
    target[:, 0] = BOS
    return source, torch.tensor(lengths), target


def watched(model, *inputs):
    """The output of a pass, and of every layer its attention, energies and alignment."""
    seen = []
    hooks = [
        layer.cross_attention.register_forward_hook(lambda *pass_: seen.append(pass_)) for layer in model.decoder.layers
    ]
    with torch.no_grad():
        output = model(*inputs)
        for hook in hooks:
            hook.remove()
        layers = [
            (attention, attention.energy(query, memory), alignment)
            for attention, (query, memory, *_), (_, alignment) in seen
        ]
    return output, layers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_heads_stop_where_the_definition_says(kind, seed):
    """t_i = the first j ≥ t_{i−1} with p_ij ≥ ½, otherwise |x|."""
    source, lengths, target = sentences(seed)
    _, layers = watched(monotonic_model(seed, kind), source, lengths, target)
    moves = 0
    for _, energy, alignment in layers:
        for sentence, length in enumerate(lengths.tolist()):
            for head in range(4):
                pointer = 1
                for row in range(target.shape[1]):
                    probability = energy[sentence, head, row].sigmoid()
                    stops = [j for j in range(pointer, length + 1) if probability[j - 1] >= 0.5]
                    moves += (stops[0] if stops else length) > pointer
                    pointer = stops[0] if stops else length
                    assert alignment.visible[sentence, head, row] == pointer
                    assert alignment.position[sentence, head, row] == pointer
    assert moves >= 8


@pytest.mark.parametrize("kind", KINDS)
def test_what_heads_attend_to(kind):
    source, lengths, target = sentences(3)
    output, weights = monotonic_model(3, kind).look(source, lengths, target)
    place = torch.arange(1, source.shape[1] + 1)
    for layer, alignment in zip(weights, output.alignments):
        torch.testing.assert_close(layer.sum(dim=-1), torch.ones_like(layer[..., 0]))
        if kind == "hard":
            assert torch.equal(layer, (place == alignment.position[..., None]).double())
        else:
            assert torch.equal(layer > 0, (place <= alignment.position[..., None]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_scan_waits_in_the_middle_and_goes_on(kind, monkeypatch):
    """Token by token: while a head has seen all that is there, the row waits for exactly one more."""
    source, lengths, target = sentences(1, (25,), 12)
    model = monotonic_model(1, kind)
    output, _ = watched(model, source, lengths, target)
    expected = torch.stack([alignment.visible.amax(dim=1)[0] for alignment in output.alignments]).amax(dim=0).tolist()
    resumed = []
    for index, layer in enumerate(model.decoder.layers):
        attention = layer.cross_attention

        def watch(query, source, alignment, delta, resume=attention.resume, index=index):
            result = resume(query, source, alignment, delta)
            resumed.append((index, alignment.position[..., 0], result.position[..., 0]))
            return result

        monkeypatch.setattr(attention, "resume", watch)
    batch = IncrementalBatch(model)
    slot = batch.open()
    found, logits, arrived = [], [], 0
    for token in source[0].tolist():
        batch.push({slot: [token]})
        arrived += 1
        while (scores := batch.advance()) is not None:
            if not scores.slots:
                continue
            found += scores.needed
            logits.append(scores.logits[0])
            if len(found) == target.shape[1]:
                break
            batch.write([slot], [target[0, len(found)].item()])
        if len(found) == target.shape[1]:
            break
        assert batch.sentences[slot].needed == arrived + 1
    assert found == expected
    torch.testing.assert_close(torch.stack(logits), output.logits[0], rtol=0, atol=1e-9)
    # a head that had stopped stays, while others of its layer go on
    assert any(((before == after).any() and (before < after).any()) for _, before, after in resumed)
    assert all((before <= after).all() for _, before, after in resumed)
    assert len(resumed) > 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_scan_begins_before_anything_has_arrived(kind):
    """Of the first sentence of a batch, and of one that joins it."""
    model, source = monotonic_model(1, kind), sentences(1, (12,))[0][0].tolist()
    expected = IncrementalBatch(model)
    expected.push({expected.open(): source})
    batch = IncrementalBatch(model)
    for slot in range(3):
        assert batch.open() == slot
        assert batch.advance([slot]).slots == []
        assert batch.sentences[slot].needed == 1
        batch.push({slot: source})
    torch.testing.assert_close(batch.advance([0]).logits, expected.advance().logits, rtol=0, atol=1e-9)


def certain(model):
    """Let every energy be far from 0, so that nothing is left to chance."""
    with torch.no_grad():
        for layer in model.decoder.layers:
            attention = layer.cross_attention
            attention.query.weight[-32:] *= 1e6
            attention.energy_bias *= 1e6
    return model


def train_mode(model):
    """Without dropout."""
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_training_on_certain_decisions_is_decoding(kind):
    """The expectation over random stops is the hard decision where p is 0 or 1."""
    inputs = sentences(4)
    model = certain(monotonic_model(4, kind, noise=0.0))
    hard, _ = watched(model, *inputs)
    expected = train_mode(model)(*inputs)
    for one, other in zip(hard.alignments, expected.alignments):
        torch.testing.assert_close(one.position, other.center, rtol=0, atol=1e-9)
    torch.testing.assert_close(hard.logits, expected.logits, rtol=0, atol=1e-9)
    assert any(1 < t < 12 for t in hard.alignments[0].position[0].flatten().tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_leaves_decisions_and_expectations_in_float32(kind):
    """Energies are products of rounded queries and keys, but are not rounded themselves; nor are delays."""
    inputs = sentences(7)
    model = monotonic_model(7, kind, torch.float32, noise=0.0)
    for mode in (model.eval(), train_mode(model)):
        with torch.autocast("cpu", torch.bfloat16):
            output, layers = watched(mode, *inputs)
        for attention, energy, alignment in layers:
            assert energy.dtype == alignment.center.dtype == torch.float32
            assert not torch.equal(energy, energy.bfloat16().float())
            assert attention.energy_bias.dtype == torch.float32
        assert output.logits.isfinite().all()


def test_noise_is_for_training_alone():
    inputs = sentences()
    for noise, differ in ((1.0, True), (0.0, False)):
        model = train_mode(monotonic_model(noise=noise))
        one, other = (model(*inputs).logits for _ in range(2))
        assert torch.equal(one, other) != differ
        model.eval()
        assert torch.equal(model(*inputs).logits, model(*inputs).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_learns(kind):
    model = monotonic_model(1, kind).train()
    output = model(*sentences())
    (output.logits.logsumexp(dim=-1).sum() + output.auxiliary).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0 or "bias" in name, name
        assert parameter.grad.abs().max() > 0 or "energy" not in name


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing_in_training(kind):
    source, lengths, target = sentences(5)
    target_lengths = [9, 4, 6]
    for row, length in enumerate(target_lengths):
        target[row, length:] = PAD
    model = train_mode(monotonic_model(5, kind, noise=0.0))
    together, auxiliary = model(source, lengths, target), 0.0
    for row, (length, rows) in enumerate(zip(lengths.tolist(), target_lengths)):
        alone = model(source[row : row + 1, :length], lengths[row : row + 1], target[row : row + 1, :rows])
        torch.testing.assert_close(together.logits[row, :rows], alone.logits[0], rtol=0, atol=1e-9)
        auxiliary = auxiliary + alone.auxiliary
    torch.testing.assert_close(together.auxiliary, auxiliary, rtol=0, atol=1e-9)


def lag_by_definition(delays, source, target):
    """Differentiable average lagging of one sentence, step by step."""
    step, before, total = source / target, -math.inf, 0.0
    for i, delay in enumerate(delays):
        before = max(delay, before + step)
        total += before - i * step
    return total / target


def test_the_latency_loss_is_its_definition():
    generator = random.Random(0)
    heads, longest = 3, 8
    source_lengths, target_lengths = [9, 4, 12], [8, 5, 1]
    delays = torch.tensor(
        [[sorted(generator.uniform(1, n) for _ in range(longest)) for _ in range(heads)] for n in source_lengths],
        dtype=torch.float64,
    )
    found = expected_latency(delays, torch.tensor(source_lengths), torch.tensor(target_lengths))
    assert {latency.dtype for latency in found} == {torch.float64}
    for sentence, (n, m) in enumerate(zip(source_lengths, target_lengths)):
        columns = [[delays[sentence, head, i].item() for head in range(heads)] for i in range(m)]
        together = [sum(math.exp(g) * g for g in column) / sum(math.exp(g) for g in column) for column in columns]
        means = [sum(column) / heads for column in columns]
        spread = sum(sum((g - mean) ** 2 for g in column) / heads for column, mean in zip(columns, means)) / m
        assert found.average[sentence].item() == pytest.approx(lag_by_definition(together, n, m), rel=1e-13)
        assert found.variance[sentence].item() == pytest.approx(spread, rel=1e-13)


def test_the_latency_loss_has_the_gradient_of_finite_differences():
    generator = torch.Generator().manual_seed(0)
    delays = (9 * torch.rand(2, 3, 5, generator=generator, dtype=torch.float64)).requires_grad_()
    lengths = torch.tensor([9, 6]), torch.tensor([5, 3])
    assert torch.autograd.gradcheck(lambda x: tuple(expected_latency(x, *lengths)), (delays,))


@pytest.mark.parametrize(("average", "variance"), [(0.0, 0.0), (0.7, 0.0), (0.0, 0.3), (0.7, 0.3), (0.2, 5.0)])
def test_average_and_variance_have_their_own_weights(average, variance):
    """A variance weighted by λ_avg, or by both, would be off in all but the first case."""
    inputs = sentences(2)
    model = train_mode(monotonic_model(2, noise=0.0, latency_average=average, latency_variance=variance))
    output = model(*inputs)
    delays = torch.cat([alignment.center for alignment in output.alignments], dim=1)
    assert delays.shape[1] == 8  # the heads of all layers together
    latency = expected_latency(delays, inputs[1], torch.tensor([9, 9, 9]))
    assert latency.variance.sum() > 0.1
    torch.testing.assert_close(output.auxiliary, average * latency.average.sum() + variance * latency.variance.sum())


def test_the_latency_loss_makes_heads_stop_earlier_and_together():
    inputs = sentences(6, (12, 12, 12))
    for weights, measure in (((1.0, 0.0), "average"), ((0.0, 1.0), "variance")):
        model = train_mode(monotonic_model(6, noise=0.0, latency_average=weights[0], latency_variance=weights[1]))
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        values = []
        for _ in range(12):
            output = model(*inputs)
            delays = torch.cat([alignment.center for alignment in output.alignments], dim=1)
            latency = expected_latency(delays, inputs[1], torch.tensor([9, 9, 9]))
            values.append(getattr(latency, measure).sum().item())
            optimizer.zero_grad()
            output.auxiliary.backward()
            optimizer.step()
        assert values[-1] < 0.7 * values[0]


def test_no_policy_adds_to_the_loss_unless_asked_or_monotonic():
    inputs = sentences()
    assert monotonic_model().eval()(*inputs).auxiliary is None
    for policy in ("gaussian", "wait_k", "offline"):
        assert small_model(0, policy=policy).train()(*inputs).auxiliary is None


def test_the_trainer_minimises_the_policy_s_loss_too(tmp_path):
    """λ_avg so large that nothing else counts: the latency of the trained model falls."""
    corpus = tiny_run.make_corpus(tmp_path / "corpus")
    delays = []
    for weight in (0.0, 30.0):
        trainer = tiny_run.trainer(
            corpus,
            tmp_path / str(weight),
            "attention.policy=monotonic",
            "attention.energy_bias=0.0",
            f"attention.latency_average={weight}",
            "attention.latency_variance=0",
        )
        for _ in range(25):
            trainer._update()
        output = trainer.model(*sentences(0, (12, 12, 12)))
        delays.append(output.alignments[0].center.mean().item())
    assert delays[1] < delays[0] - 0.5


def test_settings_by_default():
    settings = AttentionSettings(policy="monotonic")
    assert (settings.monotonic, settings.energy_bias, settings.noise) == ("infinite_lookback", -2.0, 1.0)
