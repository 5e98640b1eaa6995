"""Wrong calls of the module: the error's type, and the words that must be in its message."""

import math
import re

import pytest
import torch
from torch import nn

from gma import GaussianMultiheadAttention

EMBED, HEADS, BATCH, ROWS, SOURCE = 16, 4, 3, 5, 7
QUERY, MEMORY = torch.zeros(BATCH, ROWS, EMBED), torch.zeros(BATCH, SOURCE, EMBED)
LENGTHS = torch.tensor([SOURCE, 3, 1])


def make(*arguments, **options):
    return GaussianMultiheadAttention(EMBED, HEADS, *arguments, **options)


def attend(query=QUERY, key=MEMORY, value=None, **call):
    return make(batch_first=True)(query, key, key if value is None else value, **call)


def align(query=QUERY, source_lengths=LENGTHS, **call):
    return make(batch_first=True).align(query, source_lengths, **call)


HOLES = torch.tensor([False, True, False, False, False, False, False]).expand(BATCH, SOURCE)
LEFT = torch.arange(SOURCE).expand(BATCH, SOURCE) < 2

OPTIONS = [
    ({"add_bias_kv": True}, ValueError, "add_bias_kv False"),
    ({"add_zero_attn": True}, ValueError, "add_zero_attn False"),
    ({"prior": "normal"}, ValueError, "prior 'normal' 'gaussian' 'laplace' 'linear' 'none'"),
    ({"width_rule": "quarter"}, ValueError, "width_rule 'quarter' 'whole' 'half' 'third' 'predicted'"),
    ({"positions": "relative"}, ValueError, "positions 'relative' 'incremental' 'absolute'"),
    ({"convention": "fairseq"}, ValueError, "convention 'fairseq' 'paper' 'reference'"),
    ({"delta": math.nan}, ValueError, "delta nan inf"),
    ({"delta": "1"}, TypeError, "delta str number"),
    ({"delta": None}, TypeError, "delta NoneType number"),
    ({"delta": True}, TypeError, "delta bool number"),
    ({"dropout": 1.0}, ValueError, "dropout 1.0 < 1"),
    ({"dropout": -0.1}, ValueError, "dropout -0.1 0 <="),
    ({"dropout": "0.1"}, ValueError, "dropout '0.1' number"),
    ({"width_rule": ["half"]}, ValueError, "width_rule ['half'] 'whole'"),
    ({"backend": "bogus"}, ValueError, "backend 'bogus'"),
    ({"num_kv_heads": 3}, ValueError, "num_kv_heads 3 1 or 2 or 4 divisor None"),
    ({"num_kv_heads": 0}, ValueError, "num_kv_heads 0 1 or 2 or 4"),
    ({"num_kv_heads": -2}, ValueError, "num_kv_heads -2 1 or 2 or 4"),
    ({"num_kv_heads": 8}, ValueError, "num_kv_heads 8 1 or 2 or 4"),
    ({"num_kv_heads": 2.0}, TypeError, "num_kv_heads float whole number"),
    ({"num_kv_heads": True}, TypeError, "num_kv_heads bool whole number"),
    ({"num_kv_heads": "2"}, TypeError, "num_kv_heads str whole number"),
    ({"window": -1}, ValueError, "window -1 0 None"),
    ({"window": 2.5}, TypeError, "window float whole number None"),
    ({"window": math.inf}, TypeError, "window float whole number None"),
    ({"window": math.nan}, TypeError, "window float whole number None"),
    ({"window": False}, TypeError, "window bool whole number None"),
    ({"window": "8"}, TypeError, "window str whole number None"),
    ({"window": [8]}, TypeError, "window list whole number None"),
]

FORWARD = [
    ({"query": QUERY[0, 0]}, ValueError, "query (16,) dimensions"),
    ({"query": QUERY[None]}, ValueError, "query (1, 3, 5, 16) dimensions"),
    ({"key": MEMORY[0]}, ValueError, "key (7, 16) dimensions"),
    ({"value": MEMORY[0]}, ValueError, "value (7, 16) dimensions"),
    ({"query": QUERY[..., 1:]}, ValueError, "query 15 features 16"),
    ({"key": MEMORY[..., 1:]}, ValueError, "key 15 features 16"),
    ({"value": MEMORY[..., 1:]}, ValueError, "value 15 features 16"),
    ({"key": MEMORY[:2]}, ValueError, "key batch 2 3"),
    ({"value": MEMORY[:2]}, ValueError, "value batch 2 3"),
    ({"value": MEMORY[:, 1:]}, ValueError, "value (3, 6, 16) rows key"),
    ({"key_padding_mask": HOLES}, ValueError, "key_padding_mask prefix right"),
    ({"key_padding_mask": LEFT}, ValueError, "key_padding_mask prefix right"),
    ({"key_padding_mask": torch.ones(BATCH, SOURCE)}, ValueError, "key_padding_mask 0 -inf"),
    ({"key_padding_mask": torch.zeros(BATCH, SOURCE, dtype=torch.long)}, TypeError, "key_padding_mask int64 bool"),
    ({"key_padding_mask": HOLES[:, 1:]}, ValueError, "key_padding_mask (3, 6) [3, 7]"),
    ({"key_padding_mask": HOLES[0]}, ValueError, "key_padding_mask (7,) [3, 7]"),
    ({"attn_mask": torch.zeros(SOURCE, ROWS)}, ValueError, "attn_mask (7, 5) [5, 7] [12, 5, 7]"),
    ({"attn_mask": torch.zeros(BATCH, ROWS, SOURCE)}, ValueError, "attn_mask (3, 5, 7) [5, 7] [12, 5, 7]"),
    ({"attn_mask": torch.randn(ROWS, SOURCE)}, ValueError, "attn_mask prefix 0 -inf"),
    ({"attn_mask": torch.eye(ROWS, SOURCE).bool()}, ValueError, "attn_mask row prefix"),
    ({"attn_mask": torch.zeros(ROWS, SOURCE).int()}, TypeError, "attn_mask int32 bool"),
    ({"is_causal": True}, ValueError, "is_causal attn_mask"),
    ({"alignment": align(QUERY[:, :2])}, ValueError, "center (3, 1, 2) 5"),
    ({"alignment": align()._replace(visible=torch.ones(BATCH, 1, ROWS))}, TypeError, "visible int32"),
    ({"alignment": align()._replace(width=torch.zeros(BATCH, 1, ROWS))}, ValueError, "width 0 positive"),
]

ALIGN = [
    ({"source_lengths": torch.tensor([SOURCE])}, ValueError, "source_lengths (1,) [3]"),
    ({"source_lengths": LENGTHS[:, None]}, ValueError, "source_lengths (3, 1) [3]"),
    ({"previous": torch.ones(BATCH)}, ValueError, "previous (3,)"),
    ({"previous": torch.ones(BATCH, HEADS)}, ValueError, "previous (3, 4)"),
    ({"query": QUERY[..., 1:]}, ValueError, "query 15 features 16"),
    ({"source_lengths": LENGTHS.double()}, TypeError, "source_lengths float64 integers"),
    ({"source_lengths": [1, 2, 3]}, TypeError, "source_lengths list Tensor"),
]


def refused(call, arguments, error, words):
    with pytest.raises(error) as refusal:
        call(**arguments)
    # shapes such as (3, 4) and [3, 4] count as one word
    for word in re.findall(r"\([^)]*\)|\[[^\]]*\]|\S+", words):
        assert word in str(refusal.value)


@pytest.mark.parametrize(("options", "error", "words"), OPTIONS)
def test_wrong_options(options, error, words):
    refused(make, options, error, words)


@pytest.mark.parametrize(("call", "error", "words"), FORWARD)
def test_wrong_forward_calls(call, error, words):
    refused(attend, call, error, words)


@pytest.mark.parametrize(("call", "error", "words"), ALIGN)
def test_wrong_align_calls(call, error, words):
    refused(align, call, error, words)


@pytest.mark.parametrize("refused_option", ["add_bias_kv", "add_zero_attn"])
def test_an_attention_with_extra_keys_cannot_be_converted(refused_option):
    plain = nn.MultiheadAttention(EMBED, HEADS, **{refused_option: True})
    with pytest.raises(ValueError, match=refused_option):
        GaussianMultiheadAttention.from_multihead_attention(plain)


def test_a_head_too_large_for_the_operator_is_refused_at_once():
    with pytest.raises(ValueError, match="a head has 512 features; expected 256 at most"):
        GaussianMultiheadAttention(1024, 2)


@pytest.mark.parametrize("module", [nn.Linear(4, 4), make()], ids=["linear", "gaussian"])
def test_only_a_plain_attention_can_be_converted(module):
    with pytest.raises(TypeError, match=f"module is a {type(module).__name__}; expected a torch.nn.MultiheadAttention"):
        GaussianMultiheadAttention.from_multihead_attention(module)


def test_options_are_keyword_only():
    with pytest.raises(TypeError):
        make(0.0, True, False, False, None, None, False, None, None, 1.0)


def test_a_state_with_other_heads_of_keys_is_refused():
    with pytest.raises(RuntimeError, match=r"size mismatch for k_proj_weight"):
        make(num_kv_heads=2).load_state_dict(make(num_kv_heads=1).state_dict())
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: .*in_proj_weight"):
        make(num_kv_heads=2).load_state_dict(make().state_dict())
