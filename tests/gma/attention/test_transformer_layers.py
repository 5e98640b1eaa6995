"""The module in the place of `multihead_attn` and `self_attn` inside torch's own Transformer layers."""

import math

import pytest
import torch
from torch import nn

from gma import GaussianMultiheadAttention

EMBED, HEADS, BATCH, ROWS, SOURCE = 16, 4, 3, 6, 8
EVERYTHING = {"prior": "none", "delta": math.inf}
LENGTHS = torch.tensor([SOURCE, 2, 5])
PADDING = torch.arange(SOURCE) >= LENGTHS[:, None]
MEMORY_MASK = torch.arange(SOURCE) > torch.arange(ROWS)[:, None] + 1


def decoder_layer(norm_first=False, dropout=0.0):
    return nn.TransformerDecoderLayer(EMBED, HEADS, 32, dropout, batch_first=True, norm_first=norm_first)


def with_gaussian_attention(layer, attention="multihead_attn", **options):
    plain = getattr(layer, attention)
    setattr(layer, attention, GaussianMultiheadAttention.from_multihead_attention(plain, **options))
    return layer


def sentences():
    return torch.randn(BATCH, ROWS, EMBED), torch.randn(BATCH, SOURCE, EMBED)


def assert_same(found, expected, tolerance=1e-6):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(4)


MASKS = {
    "none": {},
    "padding": {"memory_key_padding_mask": PADDING},
    "float padding": {"memory_key_padding_mask": torch.zeros(BATCH, SOURCE).masked_fill(PADDING, -math.inf)},
    "rows": {"memory_mask": MEMORY_MASK},
    "hinted rows": {"memory_mask": MEMORY_MASK, "memory_is_causal": True},
    "padding and rows": {"memory_key_padding_mask": PADDING, "memory_mask": MEMORY_MASK},
}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_without_prior_a_decoder_layer_computes_what_it_did(training, norm_first, masks):
    layer = decoder_layer(norm_first).train(training)
    target, memory = sentences()
    hint_free = {name: mask for name, mask in MASKS[masks].items() if name != "memory_is_causal"}
    expected = layer(target, memory, **hint_free)
    with_gaussian_attention(layer, **EVERYTHING)
    assert layer.multihead_attn.training == training
    assert_same(layer(target, memory, **MASKS[masks]), expected)


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2, "window": 3}], ids=str)
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_decoder_layer_trains_and_its_aligner_learns(norm_first, options):
    layer = with_gaussian_attention(decoder_layer(norm_first, dropout=0.1), width_rule="predicted", **options)
    target, memory = sentences()
    causal = nn.Transformer.generate_square_subsequent_mask(ROWS)
    output = layer(target, memory, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=PADDING)
    output.square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.isfinite().all(), name
    assert all(parameter.grad.abs().max() > 0 for parameter in layer.multihead_attn.aligner.parameters())


def test_eval_is_training_without_dropout():
    layer = with_gaussian_attention(decoder_layer())
    target, memory = sentences()
    in_training = layer(target, memory, memory_key_padding_mask=PADDING)
    with torch.no_grad():
        assert_same(layer.eval()(target, memory, memory_key_padding_mask=PADDING), in_training)


def test_padded_memory_is_never_read():
    layer = with_gaussian_attention(decoder_layer(), delta=math.inf)
    target, memory = sentences()
    before = layer(target, memory, memory_key_padding_mask=PADDING)
    memory[PADDING] = 1e3
    assert torch.equal(layer(target, memory, memory_key_padding_mask=PADDING), before)


@pytest.mark.parametrize("delta", [0.0, 1.0, math.inf])
def test_memory_past_what_a_row_may_use_is_never_read(delta):
    layer = with_gaussian_attention(decoder_layer(), delta=delta)
    target, memory = sentences()
    before = layer(target, memory, memory_mask=MEMORY_MASK)
    changed = memory.clone()
    # row i is masked after position i + 2
    changed[:, 3:] = 1e3
    assert torch.equal(layer(target, changed, memory_mask=MEMORY_MASK)[:, :2], before[:, :2])


def test_a_decoder_copies_the_layer_and_computes_what_it_did():
    plain = nn.TransformerDecoder(decoder_layer(), 3, nn.LayerNorm(EMBED)).eval()
    for layer in plain.layers:
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.2)
    ours = nn.TransformerDecoder(with_gaussian_attention(decoder_layer(), **EVERYTHING), 3, nn.LayerNorm(EMBED)).eval()
    result = ours.load_state_dict(plain.state_dict(), strict=False)
    assert not result.unexpected_keys
    assert all(".aligner." in key for key in result.missing_keys)
    target, memory = sentences()
    causal = nn.Transformer.generate_square_subsequent_mask(ROWS)
    masks = {"tgt_mask": causal, "memory_mask": MEMORY_MASK, "memory_key_padding_mask": PADDING}
    assert_same(ours(target, memory, **masks), plain(target, memory, **masks))


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 1, "window": 3}], ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_layer_in_eval_does_not_bypass_the_module(norm_first, padded, options):
    plain = nn.TransformerEncoderLayer(EMBED, HEADS, 32, 0.0, batch_first=True, norm_first=norm_first)
    layer = with_gaussian_attention(plain, "self_attn", **options)
    _, source = sentences()
    mask = PADDING if padded else None
    expected = layer.train()(source, src_key_padding_mask=mask)
    with torch.no_grad():
        assert_same(layer.eval()(source, src_key_padding_mask=mask), expected)
        layer.self_attn.aligner.delta = math.inf
        assert not torch.allclose(layer(source, src_key_padding_mask=mask), expected)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_an_encoder_of_such_layers_in_eval_gives_what_it_gives_in_training():
    layer = with_gaussian_attention(
        nn.TransformerEncoderLayer(EMBED, HEADS, 32, 0.0, batch_first=True), "self_attn", delta=math.inf
    )
    encoder = nn.TransformerEncoder(layer, 2)
    _, source = sentences()
    expected = encoder.train()(source, src_key_padding_mask=PADDING)
    with torch.no_grad():
        found = encoder.eval()(source, src_key_padding_mask=PADDING)
    assert_same(found[~PADDING], expected[~PADDING])


def test_a_whole_transformer_with_replaced_cross_attention_trains():
    model = nn.Transformer(EMBED, HEADS, 1, 2, 32, 0.0, batch_first=True)
    for layer in model.decoder.layers:
        with_gaussian_attention(layer)
    target, source = sentences()
    model(source, target, memory_key_padding_mask=PADDING, src_key_padding_mask=PADDING).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
