"""The module with shared heads of keys and values, and with a window: against every step written out."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

from gma import Alignment, GaussianMultiheadAttention
from tests.support.literal_attention import literal_attention

EMBED, HEADS, BATCH, ROWS, SOURCE = 16, 4, 3, 7, 9
LENGTHS = [SOURCE, 2, 5]
PADDING = torch.arange(SOURCE) >= torch.tensor(LENGTHS)[:, None]


def attention(dtype=torch.float64, **options):
    return GaussianMultiheadAttention(EMBED, HEADS, batch_first=True, dtype=dtype, **options)


def inputs(module):
    shapes = ((ROWS, module.embed_dim), (SOURCE, module.kdim), (SOURCE, module.vdim))
    dtype = module.out_proj.weight.dtype
    return [torch.randn(BATCH, *shape, dtype=dtype) for shape in shapes]


def assert_same(found, expected, tolerance=1e-12):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(5)


@pytest.mark.parametrize("delta", [0.0, 2.7, math.inf])
@pytest.mark.parametrize("share_heads", [True, False])
@pytest.mark.parametrize("projections", [{}, {"bias": False}, {"kdim": 6, "vdim": 10}], ids=str)
@pytest.mark.parametrize(("key_heads", "window"), [*itertools.product([1, 2, 4], [None, 0, 1, 3])])
def test_output_weights_and_every_gradient(key_heads, window, projections, share_heads, delta):
    options = {"num_kv_heads": key_heads, "window": window, "share_heads": share_heads, "delta": delta}
    module = attention(**projections, **options)
    # rows that stand in the source and rows that have left it
    nn.init.normal_(module.aligner.step.output.weight, std=0.5)
    if module.in_proj_bias is not None:
        nn.init.normal_(module.in_proj_bias)
    tensors = inputs(module)
    found = every_result(module, tensors, lambda *x: module(*x, key_padding_mask=PADDING, average_attn_weights=False))
    assert_same(found, every_result(module, tensors, lambda *x: literal_attention(module, *x, lengths=LENGTHS)))


def every_result(module, tensors, attend):
    """Output and weights, and the gradients of inputs and parameters."""
    module.zero_grad()
    tensors = [x.clone().requires_grad_() for x in tensors]
    output, weights = attend(*tensors)
    direction = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    ((output * direction).sum() + weights.square().sum()).backward()
    gradients = {name: parameter.grad.clone() for name, parameter in module.named_parameters()}
    return output, weights, [x.grad for x in tensors], gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_lower_precision(dtype):
    module = attention(num_kv_heads=2, window=2, delta=2.0, dtype=dtype)
    tensors = inputs(module)
    exact = copy.deepcopy(module).double()
    expected = literal_attention(exact, *(x.double() for x in tensors), lengths=LENGTHS)[0]
    assert_same(
        module(*tensors, key_padding_mask=PADDING)[0].double(), expected, 1e-5 if dtype == torch.float32 else 0.05
    )


def test_as_many_heads_of_keys_as_heads_is_the_plain_module():
    torch.manual_seed(1)
    plain = attention()
    torch.manual_seed(1)
    same = attention(num_kv_heads=HEADS)
    assert plain.state_dict().keys() == same.state_dict().keys()
    assert all(torch.equal(x, same.state_dict()[name]) for name, x in plain.state_dict().items())


def test_shapes_of_the_parameters():
    module = attention(num_kv_heads=2, kdim=6, vdim=10)
    half = EMBED // 2
    shapes = {name: tuple(x.shape) for name, x in module.named_parameters() if "proj_" in name}
    assert shapes == {
        "q_proj_weight": (EMBED, EMBED),
        "k_proj_weight": (half, 6),
        "v_proj_weight": (half, 10),
        "in_proj_bias": (EMBED + 2 * half,),
    }
    assert all(parameter.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("projections", [{}, {"bias": False}, {"kdim": 6, "vdim": 10}], ids=str)
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_a_plain_attention_whose_heads_are_alike_in_groups_is_copied_without_loss(key_heads, projections):
    plain = nn.MultiheadAttention(EMBED, HEADS, batch_first=True, dtype=torch.float64, **projections)
    group = HEADS // key_heads
    with torch.no_grad():
        weights = [plain.k_proj_weight, plain.v_proj_weight]
        if plain.in_proj_weight is not None:
            weights = list(plain.in_proj_weight.chunk(3)[1:])
        biases = [] if plain.in_proj_bias is None else list(plain.in_proj_bias.normal_().chunk(3)[1:])
        for x in (*weights, *biases):
            heads = x.unflatten(0, (key_heads, group, -1))
            heads.copy_(heads[:, :1].clone().expand_as(heads))
    plain.out_proj.weight.requires_grad_(False)
    everything = {"prior": "none", "delta": math.inf}
    ours = GaussianMultiheadAttention.from_multihead_attention(plain, num_kv_heads=key_heads, **everything)
    tensors = inputs(plain)
    assert_same(ours(*tensors), plain(*tensors))
    frozen = [name for name, parameter in ours.named_parameters() if not parameter.requires_grad]
    assert frozen == ["out_proj.weight"]


def test_heads_that_come_to_share_one_are_averaged():
    plain = nn.MultiheadAttention(EMBED, HEADS)
    ours = GaussianMultiheadAttention.from_multihead_attention(plain, num_kv_heads=2)
    first, second, third, fourth = plain.in_proj_weight.chunk(3)[1].chunk(HEADS)
    assert_same(ours.k_proj_weight, torch.cat(((first + second) / 2, (third + fourth) / 2)), 1e-6)


def test_frozen_projections_stay_frozen():
    plain = nn.MultiheadAttention(EMBED, HEADS)
    plain.in_proj_weight.requires_grad_(False)
    ours = GaussianMultiheadAttention.from_multihead_attention(plain, num_kv_heads=1)
    frozen = {name for name, parameter in ours.named_parameters() if not parameter.requires_grad}
    assert frozen == {"q_proj_weight", "k_proj_weight", "v_proj_weight"}


def test_state_is_saved_and_loaded():
    module, fresh = attention(num_kv_heads=2, window=3), attention(num_kv_heads=2, window=3)
    assert str(fresh.load_state_dict(module.state_dict())) == "<All keys matched successfully>"
    tensors = inputs(module)
    assert_same(fresh(*tensors), module(*tensors), 0)
    assert_same(copy.deepcopy(module)(*tensors), module(*tensors), 0)


@pytest.mark.parametrize("window", [0, 2])
def test_what_lies_before_the_window_is_not_read(window):
    module = attention(window=window, delta=1.0)
    query, key, value = inputs(module)
    center = torch.full((BATCH, 1, ROWS), 6.5, dtype=torch.float64)
    given = Alignment(center, center / 2, torch.full((BATCH, 1, ROWS), 7, dtype=torch.int32))
    expected = module(query, key, value, alignment=given)
    key[:, : 5 - window] = math.nan
    value[:, : 5 - window] = math.nan
    assert_same(module(query, key, value, alignment=given), expected, 0)
    assert (expected[1][..., : 5 - window] == 0).all()
    assert (expected[1][..., 5 - window : 7] > 0).all()


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("kind", ["together", "each head"])
def test_a_mask_moves_the_window_back_and_leaves_something_to_see(kind, window):
    module = attention(window=window, delta=math.inf)
    nn.init.constant_(module.aligner.step.output.weight, 10.0)  # every row has left the source
    limits = torch.randint(1, SOURCE + 1, (1 if kind == "together" else BATCH * HEADS, ROWS, 1))
    mask = torch.arange(SOURCE) >= limits
    _, weights = module(*inputs(module), attn_mask=mask[0] if kind == "together" else mask, average_attn_weights=False)
    limits = limits.view(1 if kind == "together" else BATCH, -1, ROWS, 1)
    position = torch.arange(1, SOURCE + 1)
    # the position may be near: then the window begins behind it
    seen = weights > 0
    assert (seen.sum(dim=-1) >= 1).all()
    assert not (seen & (position > limits)).any()
    assert (weights.sum(dim=-1) - 1).abs().max() < 1e-12


def test_a_window_wider_than_the_source_changes_nothing():
    module = attention()
    tensors = inputs(module)
    expected = module(*tensors)
    module.window = 10**9
    assert_same(module(*tensors), expected)


def test_compiled_whole_it_gives_the_same():
    module = attention(num_kv_heads=2, window=2)
    tensors = inputs(module)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert_same(compiled(*tensors), module(*tensors))
