"""The module against `nn.MultiheadAttention`, against the paper's formula, and its own promises."""

import copy
import inspect
import io
import math
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

from gma import Alignment, GaussianMultiheadAttention
from tests.support.literal_attention import literal_attention

EMBED, HEADS, BATCH, ROWS, SOURCE = 16, 4, 3, 7, 9
EVERYTHING = {"prior": "none", "delta": math.inf}
PROJECTIONS = {
    "packed": {},
    "no bias": {"bias": False},
    "separate": {"kdim": 6, "vdim": 10},
    "separate, no bias": {"kdim": 6, "vdim": 10, "bias": False},
}


def twins(dtype=torch.float32, **settings):
    """nn.MultiheadAttention with random biases, and ours made from it with the prior switched off."""
    plain = nn.MultiheadAttention(EMBED, HEADS, dtype=dtype, **settings)
    randomise(plain)
    return plain, GaussianMultiheadAttention.from_multihead_attention(plain, **EVERYTHING)


def randomise(module):
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "bias" in name:
                parameter.normal_()


def inputs(module, batched=True, dtype=torch.float32, requires_grad=False):
    """query, key and value in the layout the module was made for."""
    tensors = []
    for rows, features in ((ROWS, module.embed_dim), (SOURCE, module.kdim), (SOURCE, module.vdim)):
        shape = (BATCH, rows, features) if module.batch_first else (rows, BATCH, features)
        tensors.append(torch.randn(shape if batched else (rows, features), dtype=dtype, requires_grad=requires_grad))
    return tensors


def padding(kind, batched=True, dtype=torch.float32):
    if kind == "none":
        return None
    forbidden = torch.arange(SOURCE) >= torch.tensor([SOURCE, 1, 5])[:, None]
    forbidden = forbidden if batched else forbidden[2]
    return forbidden if kind == "bool" else as_float(forbidden, dtype)


def as_float(forbidden, dtype=torch.float32):
    return torch.zeros(forbidden.shape, dtype=dtype).masked_fill(forbidden, -math.inf)


def every_gradient(module, tensors, **call):
    for parameter in module.parameters():
        parameter.grad = None
    tensors = [x.detach().requires_grad_() for x in tensors]
    output, weights = module(*tensors, **call)
    direction = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    ((output * direction).sum() + weights.square().sum()).backward()
    return dict(zip("qkv", (x.grad for x in tensors))) | {name: p.grad for name, p in module.named_parameters()}


def assert_same(found, expected, tolerance):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(20)


@pytest.mark.parametrize("projections", PROJECTIONS)
@pytest.mark.parametrize("pad", ["none", "bool", "float"])
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "rows first"])
def test_without_prior_it_is_multihead_attention(batch_first, batched, pad, projections):
    plain, ours = twins(batch_first=batch_first, **PROJECTIONS[projections])
    tensors = inputs(plain, batched)
    for average in (True, False):
        call = {"key_padding_mask": padding(pad, batched), "average_attn_weights": average}
        for found, expected in zip(ours(*tensors, **call), plain(*tensors, **call)):
            assert found.shape == expected.shape
            assert_same(found, expected, 1e-6)


@pytest.mark.parametrize("projections", PROJECTIONS)
@pytest.mark.parametrize("pad", ["none", "bool"])
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
def test_without_prior_every_gradient_is_that_of_multihead_attention(batched, pad, projections):
    plain, ours = twins(torch.float64, **PROJECTIONS[projections])
    tensors = inputs(plain, batched, torch.float64)
    call = {"key_padding_mask": padding(pad, batched)}
    found, expected = every_gradient(ours, tensors, **call), every_gradient(plain, tensors, **call)
    for name, gradient in expected.items():
        assert_same(found[name], gradient, 1e-12)


def prefix_masks():
    causal = torch.arange(SOURCE) > torch.arange(ROWS)[:, None] + 1
    each = torch.arange(SOURCE) >= torch.randint(1, SOURCE + 1, (BATCH * HEADS, ROWS, 1))
    return {"causal": causal, "each head": each}


@pytest.mark.parametrize("kind", ["causal", "each head"])
@pytest.mark.parametrize("floating", [False, True], ids=["bool", "float"])
@pytest.mark.parametrize("pad", ["none", "same kind"])
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
def test_a_prefix_mask_acts_as_in_multihead_attention(kind, floating, pad, batched):
    plain, ours = twins()
    tensors = inputs(plain, batched)
    mask = prefix_masks()[kind]
    mask = mask if batched or kind == "causal" else mask[:HEADS]
    key_padding = padding("none" if pad == "none" else "float" if floating else "bool", batched)
    call = {"attn_mask": as_float(mask) if floating else mask, "key_padding_mask": key_padding}
    for average in (True, False):
        found = ours(*tensors, average_attn_weights=average, **call)
        assert_same(found, plain(*tensors, average_attn_weights=average, **call), 1e-6)


def test_is_causal_is_a_hint_that_changes_nothing():
    plain, ours = twins()
    query = torch.randn(SOURCE, BATCH, EMBED)
    mask = nn.Transformer.generate_square_subsequent_mask(SOURCE)
    hinted = ours(query, query, query, attn_mask=mask, is_causal=True, need_weights=False)[0]
    assert torch.equal(hinted, ours(query, query, query, attn_mask=mask)[0])
    assert_same(hinted, plain(query, query, query, attn_mask=mask, is_causal=True, need_weights=False)[0], 1e-6)


def test_signatures_begin_like_those_of_multihead_attention():
    for method, own in (("__init__", 9), ("forward", 1)):
        theirs = list(inspect.signature(getattr(nn.MultiheadAttention, method)).parameters.values())
        ours = list(inspect.signature(getattr(GaussianMultiheadAttention, method)).parameters.values())
        assert [(p.name, p.default) for p in ours[: len(theirs)]] == [(p.name, p.default) for p in theirs]
        assert len(ours) == len(theirs) + own
        assert all(p.kind is p.KEYWORD_ONLY for p in ours[len(theirs) :])


class Literal(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, query, key, value):
        output, weights = literal_attention(self.module, query, key, value)
        return output, weights.mean(dim=1)


@pytest.mark.parametrize("share_heads", [True, False])
@pytest.mark.parametrize("delta", [0.0, 1.0, 2.7, math.inf])
def test_posterior_and_gradients_are_the_papers_three_steps(share_heads, delta):
    module = GaussianMultiheadAttention(
        EMBED, HEADS, batch_first=True, dtype=torch.float64, share_heads=share_heads, delta=delta
    )
    randomise(module)
    tensors = inputs(module, dtype=torch.float64)
    literal = Literal(copy.deepcopy(module))
    assert_same(module(*tensors), literal(*tensors), 1e-12)
    expected = {name.removeprefix("module."): grad for name, grad in every_gradient(literal, tensors).items()}
    found = every_gradient(module, tensors)
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].abs().max() > 0
        assert_same(found[name], expected[name], 1e-12)


@pytest.mark.parametrize("prior", ["gaussian", "laplace", "linear", "none"])
def test_weights_are_a_distribution_over_what_is_visible(prior):
    module = GaussianMultiheadAttention(EMBED, HEADS, prior=prior, share_heads=False)
    query, key, value = inputs(module)
    mask = padding("bool")
    _, weights = module(query, key, value, key_padding_mask=mask, average_attn_weights=False)
    visible = module.align(query, (~mask).sum(-1)).visible
    assert_same(weights.sum(-1), torch.ones(BATCH, HEADS, ROWS), 1e-6)
    assert (weights[torch.arange(SOURCE) >= visible[..., None].expand(*weights.shape[:3], 1)] == 0).all()


def test_a_sentence_of_padding_only_gives_a_zero_context_and_finite_gradients():
    module = GaussianMultiheadAttention(EMBED, HEADS, batch_first=True)
    randomise(module)
    mask = padding("bool")
    mask[1] = True
    output, weights = module(*inputs(module), key_padding_mask=mask)
    assert torch.equal(output[1], module.out_proj.bias.expand(ROWS, EMBED))
    assert (weights[1] == 0).all()
    gradients = every_gradient(module, inputs(module), key_padding_mask=mask)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


EMPTY_BATCH = """
import torch, gma
module = gma.GaussianMultiheadAttention(8, 2)
output, weights = module(torch.randn(4, 0, 8), *[torch.randn(5, 0, 8)] * 2)
assert output.shape == (4, 0, 8) and weights.shape == (0, 4, 5)
output.sum().backward()
"""


def test_an_empty_batch_is_legal():
    # in a process of its own, because the failure is a signal
    assert subprocess.run([sys.executable, "-c", EMPTY_BATCH]).returncode == 0


@pytest.mark.parametrize(("rows", "source"), [(0, 5), (4, 0), (1, 0)])
def test_no_rows_and_no_source_are_legal(rows, source):
    module = GaussianMultiheadAttention(EMBED, HEADS, batch_first=True)
    memory = torch.randn(2, source, EMBED)
    output, weights = module(torch.randn(2, rows, EMBED), memory, memory)
    assert (output.shape, weights.shape) == ((2, rows, EMBED), (2, rows, source))
    output.sum().backward()


def test_weights_are_returned_only_when_asked_for():
    module = GaussianMultiheadAttention(EMBED, HEADS)
    tensors = inputs(module)
    output, weights = module(*tensors, need_weights=False)
    assert weights is None
    assert torch.equal(output, module(*tensors)[0])


def test_an_alignment_passed_in_is_used_and_masks_still_apply():
    module = GaussianMultiheadAttention(EMBED, HEADS, batch_first=True)
    tensors = inputs(module)
    center = torch.randint(1, SOURCE + 1, (BATCH, 1, ROWS)).float()
    everything = torch.full((BATCH, 1, ROWS), SOURCE, dtype=torch.int32)
    sharp = Alignment(center, torch.full_like(center, 1e-3), everything)
    one_hot = nn.functional.one_hot(center[:, 0].long() - 1, SOURCE).float()
    assert_same(module(*tensors, alignment=sharp)[1], one_hot, 1e-6)

    mask = padding("bool")
    assert (module(*tensors, key_padding_mask=mask, alignment=sharp)[1][mask[:, None].expand(one_hot.shape)] == 0).all()
    predicted = module.align(tensors[0], torch.full((BATCH,), SOURCE))
    assert torch.equal(module(*tensors, alignment=predicted)[0], module(*tensors)[0])


def test_nothing_is_hidden_on_the_module_between_calls():
    module = GaussianMultiheadAttention(EMBED, HEADS)
    tensors, before = inputs(module), {name: set(vars(part)) for name, part in module.named_modules()}
    first = module(*tensors)
    module(*inputs(module))
    module.align(tensors[0], torch.tensor([SOURCE] * BATCH))
    assert_same(module(*tensors), first, 0)
    assert {name: set(vars(part)) for name, part in module.named_modules()} == before


def test_dropout_acts_in_training_only_and_after_the_weights():
    module = GaussianMultiheadAttention(EMBED, HEADS, dropout=0.5)
    tensors = inputs(module)
    undropped = module.eval()(*tensors)
    assert_same(module(*tensors), undropped, 0)
    output, weights = module.train()(*tensors)
    assert torch.equal(weights, undropped[1])
    assert not torch.allclose(output, undropped[0])


def test_dropout_is_reproduced_by_the_seed_and_differs_between_calls():
    module = GaussianMultiheadAttention(EMBED, HEADS, dropout=0.3)
    tensors = inputs(module)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs += [module(*tensors)[0], module(*tensors)[0]]
    assert torch.equal(runs[0], runs[2])
    assert torch.equal(runs[1], runs[3])
    assert not torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[4])


def saved_and_loaded(module):
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    fresh = GaussianMultiheadAttention(EMBED, HEADS, width_rule="predicted", delta=2.5)
    assert str(fresh.load_state_dict(torch.load(buffer, weights_only=True))) == "<All keys matched successfully>"
    return fresh


@pytest.mark.parametrize("copied", [copy.deepcopy, saved_and_loaded, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_compute_the_same_and_are_independent(copied):
    module = GaussianMultiheadAttention(EMBED, HEADS, width_rule="predicted", delta=2.5)
    tensors = inputs(module)
    before = module(*tensors)
    other = copied(module)
    assert_same(other(*tensors), before, 0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()
    assert_same(module(*tensors), before, 0)


@pytest.mark.parametrize("projections", PROJECTIONS)
def test_a_state_dict_of_multihead_attention_loads_with_only_the_aligner_missing(projections):
    plain, _ = twins(**PROJECTIONS[projections])
    module = GaussianMultiheadAttention(EMBED, HEADS, **PROJECTIONS[projections], **EVERYTHING)
    result = module.load_state_dict(plain.state_dict(), strict=False)
    assert not result.unexpected_keys
    assert all(key.startswith("aligner.") for key in result.missing_keys)
    tensors = inputs(plain)
    assert_same(module(*tensors), plain(*tensors), 1e-6)


def test_from_multihead_attention_keeps_the_settings_and_copies_the_weights():
    plain = nn.MultiheadAttention(EMBED, HEADS, dropout=0.25, batch_first=True, dtype=torch.float64).eval()
    module = GaussianMultiheadAttention.from_multihead_attention(plain, delta=3.0, width_rule="third")
    assert isinstance(module, GaussianMultiheadAttention)
    assert (module.dropout, module.batch_first, module.training) == (0.25, True, False)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float64}
    assert plain.in_proj_weight.data_ptr() != module.in_proj_weight.data_ptr()
    assert module.out_proj.weight.data_ptr() != plain.out_proj.weight.data_ptr()
