"""Nested tensors: what the module gives for a padded batch, and every gradient, with nothing padded."""

import re
import warnings

import pytest
import torch
from torch import nn

from gma import Alignment, GaussianMultiheadAttention

EMBED, HEADS = 16, 4
ROWS, SOURCE = [5, 1, 7, 3], [9, 4, 2, 6]


def nested(parts):
    return torch.nested.nested_tensor_from_jagged(
        torch.cat(parts), offsets=torch.tensor([0, *map(len, parts)]).cumsum(0)
    )


def padded(parts):
    return nn.utils.rnn.pad_sequence(parts, batch_first=True)


def padding(lengths):
    return torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]


def module_and_parts(rows=ROWS, source=SOURCE, dtype=torch.float64, **options):
    module = GaussianMultiheadAttention(EMBED, HEADS, batch_first=True, dtype=dtype, **options)
    with torch.no_grad():
        module.in_proj_bias.normal_()
        module.aligner.step.output.weight.normal_(std=0.4)
    shapes = ((rows, EMBED), (source, module.kdim), (source, module.vdim))
    return module, [[torch.randn(n, size, dtype=dtype) for n in lengths] for lengths, size in shapes]


def gradients(module, parts, output_of):
    """Output by sentence, and gradients by sentence and parameter, under weights that differ between rows."""
    module.zero_grad()
    parts = [[x.clone().requires_grad_() for x in batch] for batch in parts]
    outputs = output_of(*parts)
    sum((x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)).sum() for x in outputs).backward()
    parameters = {name: x.grad.clone() for name, x in module.named_parameters()}
    return outputs, [[x.grad for x in batch] for batch in parts], parameters


def of_nested(module):
    def output_of(query, key, value):
        output, weights = module(nested(query), nested(key), nested(value), need_weights=False)
        assert weights is None
        return output.unbind()

    return output_of


def of_padded(module):
    def output_of(query, key, value):
        mask = padding([len(x) for x in key])
        output, _ = module(*map(padded, (query, key, value)), key_padding_mask=mask, need_weights=False)
        return tuple(x[: len(row)] for x, row in zip(output, query))

    return output_of


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(3)


OPTIONS = [
    {},
    {"num_kv_heads": 2, "window": 1},
    {"num_kv_heads": 1, "share_heads": False, "delta": 3.0},
    {"convention": "reference", "width_rule": "predicted", "window": 0},
    {"positions": "absolute", "kdim": 6, "vdim": 10},
    {"prior": "none", "delta": float("inf")},
    {"prior": "laplace", "backend": "reference"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("lengths", [(ROWS, SOURCE), ([4], [3]), ([2, 3], [0, 5])], ids=["four", "one", "no source"])
def test_output_and_every_gradient_are_those_of_the_padded_call(lengths, options):
    module, parts = module_and_parts(*lengths, **options)
    found, expected = (gradients(module, parts, of(module)) for of in (of_nested, of_padded))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_in_bfloat16_under_autocast():
    module, parts = module_and_parts(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = of_nested(module)(*parts), of_padded(module)(*parts)
    assert found[0].dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


def test_dropout_drops_what_it_drops_in_a_padded_batch():
    module, parts = module_and_parts(dropout=0.4)
    torch.manual_seed(1)
    found = of_nested(module)(*parts)
    torch.manual_seed(1)
    torch.testing.assert_close(found, of_padded(module)(*parts), rtol=1e-11, atol=1e-11)
    assert not torch.allclose(found[0], of_nested(module.eval())(*parts)[0])


def test_the_output_can_be_added_to_the_query():
    module, (query, key, value) = module_and_parts()
    query, memory = nested(query), nested(key)
    residual = query + module(query, memory, memory, need_weights=False)[0]
    assert [len(x) for x in residual.unbind()] == ROWS
    assert value


def test_a_compiled_module_takes_them_and_leaves_that_part_alone():
    module, parts = module_and_parts(num_kv_heads=2, window=1)
    compiled = torch.compile(module, backend="aot_eager")
    found, expected = (gradients(module, parts, of_nested(way)) for way in (compiled, module))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_nan_of_one_sentence_stays_in_it():
    module, (query, key, _) = module_and_parts(backend="reference", positions="absolute")
    memory = nested(key)
    expected = module(nested(query), memory, memory, need_weights=False)[0].unbind()
    key[1][:] = torch.inf
    memory = nested(key)
    found = module(nested(query), memory, memory, need_weights=False)[0].unbind()
    for b in (0, 2, 3):
        torch.testing.assert_close(found[b], expected[b], rtol=0, atol=0)


def wrong_calls():
    _, (query, key, _) = module_and_parts(dtype=torch.float32)
    query, memory, plain = nested(query), nested(key), torch.zeros(4, 9, EMBED)
    other = nested([torch.zeros(n, EMBED) for n in (9, 4, 3, 6)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strided = torch.nested.nested_tensor([torch.zeros(n, EMBED) for n in ROWS], layout=torch.strided)
    gaps = torch.nested.narrow(plain, 1, torch.zeros(4, dtype=torch.long), torch.tensor(SOURCE), layout=torch.jagged)
    one = Alignment(*[torch.ones(4, 1, 7)] * 3)
    call = {"query": query, "key": memory, "value": memory, "need_weights": False}
    return [
        (call | {"need_weights": True}, ValueError, "need_weights True False nested"),
        (call | {"is_causal": True}, ValueError, "is_causal True False nested"),
        (call | {"key_padding_mask": torch.zeros(4, 9).bool()}, ValueError, "key_padding_mask nested None"),
        (call | {"attn_mask": torch.zeros(7, 9).bool()}, ValueError, "attn_mask nested None"),
        (call | {"alignment": one}, ValueError, "alignment nested None"),
        (call | {"query": plain}, TypeError, "query plain nested all three"),
        (call | {"key": plain}, TypeError, "key plain nested all three"),
        (call | {"value": plain}, TypeError, "value plain nested all three"),
        (call | {"value": None}, TypeError, "value NoneType Tensor"),
        (call | {"query": strided}, TypeError, "query torch.strided torch.jagged"),
        (call | {"query": query.transpose(1, 2)}, ValueError, "query 16"),
        (call | {"key": gaps, "value": gaps}, ValueError, "key gaps key.contiguous()"),
        (call | {"query": nested([torch.zeros(3, 5)])}, ValueError, "query 16"),
        (call | {"query": nested([torch.zeros(3, EMBED)])}, ValueError, "key 4 sentences 1"),
        (call | {"value": other}, ValueError, "value [9, 4, 3, 6] [9, 4, 2, 6] key"),
    ]


@pytest.mark.parametrize(("call", "error", "words"), wrong_calls())
def test_wrong_calls(call, error, words):
    with pytest.raises(error) as refusal:
        GaussianMultiheadAttention(EMBED, HEADS, batch_first=True)(**call)
    for word in re.findall(r"\[[^\]]*\]|\S+", words):
        assert word in str(refusal.value)


def test_rows_before_the_batch_cannot_be_nested():
    _, (query, key, _) = module_and_parts(dtype=torch.float32)
    with pytest.raises(ValueError, match="batch_first is False; expected batch_first=True"):
        GaussianMultiheadAttention(EMBED, HEADS)(nested(query), *[nested(key)] * 2, need_weights=False)


def test_positions_are_asked_for_with_a_padded_query():
    module, (query, _, _) = module_and_parts()
    with pytest.raises(TypeError, match="query is a nested tensor; expected a padded one"):
        module.align(nested(query), torch.tensor(SOURCE))
