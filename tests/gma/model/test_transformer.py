"""The Transformer: its size, that it never looks ahead, and its options."""

import math
import random

import pytest
import torch

from gma.config.settings import AttentionSettings, ModelSettings
from gma.model.transformer import Transformer
from gma.text.vocabulary import BOS, EOS
from tests.support.small_models import SHARING, SOURCE_VOCABULARY, TARGET_VOCABULARY, random_source, small_model


def closed_form(preset: str, source: int, target: int, embeddings: str, policy: str, sharing: str) -> int:
    """Number of parameters, from the widths alone."""
    width, inner, heads = {"small": (512, 1024, 4), "base": (512, 2048, 8), "big": (1024, 4096, 16)}[preset]
    attention = 4 * (width * width + width)
    feed_forward = 2 * width * inner + inner + width
    norm = 2 * width
    encoder = 6 * (attention + feed_forward + 2 * norm)
    decoder = 6 * (2 * attention + feed_forward + 3 * norm)
    outputs = heads if sharing in ("none", "layers") else 1
    predictors = 1 if sharing in ("layers", "all") else 6
    aligners = predictors * (width * width + width * outputs) if policy == "gaussian" else 0
    if policy == "monotonic":
        # energies with infinite lookback have a query, a key and a bias of their own
        aligners = 6 * (2 * (width * width + width) + 1)
    tables = {"separate": source + 2 * target, "target": source + target, "shared": target}[embeddings]
    return encoder + decoder + aligners + tables * width


@pytest.mark.parametrize("preset", ["small", "base", "big"])
@pytest.mark.parametrize("embeddings", ["separate", "target", "shared"])
@pytest.mark.parametrize(
    ("policy", "sharing"),
    [
        *(("gaussian", sharing) for sharing in SHARING),
        *((policy, "heads") for policy in ("wait_k", "monotonic", "offline")),
    ],
)
def test_the_number_of_parameters_is_the_closed_formula(preset, embeddings, policy, sharing):
    options = {"sharing": sharing} if policy == "gaussian" else {}
    source, target = (7700, 7700) if embeddings == "shared" else (17191, 7709)
    with torch.device("meta"):
        model = Transformer(
            ModelSettings(preset=preset, embeddings=embeddings),
            AttentionSettings(policy=policy, **options),
            source,
            target,
        )
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == closed_form(preset, source, target, embeddings, policy, sharing)


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("seed", range(8))
def test_a_later_source_token_changes_nothing_before_it(sharing, seed):
    generator = random.Random(seed)
    model = small_model(seed, sharing=sharing, delta=generator.choice([0.0, 1.0, 2.5]))
    source = torch.tensor([[generator.randrange(4, SOURCE_VOCABULARY) for _ in range(29)] + [EOS]])
    target = torch.tensor([[BOS] + [generator.randrange(4, TARGET_VOCABULARY) for _ in range(9)]])
    lengths = torch.tensor([30])
    states, output = model.encoder(source, lengths), model(source, lengths, target)
    # what a row has used directly or through the rows before it, in any layer
    used = torch.stack([alignment.visible.amax(dim=1)[0] for alignment in output.alignments]).amax(dim=0)
    used = used.cummax(dim=0).values
    unchanged = 0
    for changed in range(30):
        other = source.clone()
        other[0, changed] = 4 + (other[0, changed] - 3) % (SOURCE_VOCABULARY - 4)
        other_states, other_output = model.encoder(other, lengths), model(other, lengths, target)
        assert torch.equal(states[:, :changed], other_states[:, :changed])
        assert not torch.allclose(states[:, changed:], other_states[:, changed:])
        rows = used <= changed
        torch.testing.assert_close(output.logits[0, rows], other_output.logits[0, rows], rtol=0, atol=1e-12)
        assert not torch.allclose(output.logits[0, ~rows], other_output.logits[0, ~rows]) or not (~rows).any()
        unchanged += int(rows.sum())
    assert unchanged > 30  # the test has seen rows that do not wait for everything


def test_padding_changes_nothing():
    generator = random.Random(0)
    model = small_model(0)
    sources = [random_source(generator) for _ in range(6)]
    target = torch.tensor([[BOS] + [generator.randrange(4, TARGET_VOCABULARY) for _ in range(7)]] * 6)
    longest = max(map(len, sources))
    padded = torch.tensor([source + [0] * (longest - len(source)) for source in sources])
    together = model(padded, torch.tensor([len(source) for source in sources]), target)
    for row, source in enumerate(sources):
        alone = model(torch.tensor([source]), torch.tensor([len(source)]), target[:1] * 0 + target[row])
        torch.testing.assert_close(together.logits[row], alone.logits[0], rtol=0, atol=1e-12)


def test_a_bidirectional_encoder_sees_everything():
    model = small_model(0, encoder="bidirectional", policy="offline")
    source = torch.tensor([[5, 6, 7, EOS, 0]])
    states = model.encoder(source, torch.tensor([4]))
    later = model.encoder(torch.tensor([[5, 6, 8, EOS, 0]]), torch.tensor([4]))
    padding = model.encoder(torch.tensor([[5, 6, 7, EOS, 9]]), torch.tensor([4]))
    assert not torch.allclose(states[0, 0], later[0, 0])
    assert torch.equal(states[0, :4], padding[0, :4])


def test_delta_of_the_call_replaces_the_configured_one():
    model = small_model(0, delta=(0.0, 4.0))
    source, lengths, target = torch.tensor([[5] * 20 + [EOS]] * 2), torch.tensor([21, 21]), torch.tensor([[BOS, 6]] * 2)
    configured = model(source, lengths, target).alignments[0].visible
    assert torch.equal(configured, model(source, lengths, target, delta=2.0).alignments[0].visible)
    each = model(source, lengths, target, delta=torch.tensor([2.0, 9.0])).alignments[0].visible
    assert torch.equal(each[1], configured[1] + 7)
    assert (model(source, lengths, target, delta=math.inf).alignments[0].visible == 21).all()


@pytest.mark.parametrize("sharing", SHARING)
def test_every_parameter_learns(sharing):
    model = small_model(1, sharing=sharing).train()
    output = model(torch.tensor([[5, 6, 7, 8, EOS]]), torch.tensor([5]), torch.tensor([[BOS, 9, 10]]))
    output.logits.logsumexp(dim=-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0 or "bias" in name, name


def test_shared_embeddings_are_one_table():
    settings = ModelSettings(preset="tiny", embeddings="shared")
    model = Transformer(settings, AttentionSettings(), 40, 40)
    assert model.encoder.embed.tokens.weight is model.decoder.embed.tokens.weight is model.project.weight
    with pytest.raises(ValueError, match=r"40 and 50.*data\.joint"):
        Transformer(settings, AttentionSettings(), 40, 50)


def test_positions_beyond_the_first_table():
    model = small_model(0, dtype=torch.float32)
    source = torch.full((1, 700), 5)
    states = model.encoder(source, torch.tensor([700]))
    assert states.shape == (1, 700, 32)
    assert states.isfinite().all()
    assert torch.equal(states[:, :300], model.encoder(source[:, :300], torch.tensor([300])))


def test_looking_at_the_attention():
    model = small_model(0, sharing="none")
    source, lengths, target = torch.tensor([[5, 6, 7, 8, EOS]]), torch.tensor([5]), torch.tensor([[BOS, 9, 10]])
    output, weights = model.look(source, lengths, target)
    assert torch.equal(output.logits, model(source, lengths, target).logits)
    assert [w.shape for w in weights] == [(1, 4, 3, 5)] * 2
    for layer, alignment in zip(weights, output.alignments):
        torch.testing.assert_close(layer.sum(dim=-1), torch.ones(1, 4, 3, dtype=torch.float64))
        outside = torch.arange(1, 6) > alignment.visible[..., None]
        assert (layer[outside] == 0).all()
