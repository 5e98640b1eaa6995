"""Masks become lengths: prefix masks exactly, everything else refused."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.library import opcheck

from gma.attention.masks import leading_lengths

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
lengths_and_source = st.integers(0, 12).flatmap(
    lambda source: st.tuples(st.lists(st.integers(0, source), min_size=1, max_size=6), st.just(source))
)


def prefix_mask(lengths, source, dtype=torch.bool):
    forbidden = torch.arange(source) >= torch.tensor(lengths)[:, None]
    return forbidden if dtype == torch.bool else as_float(forbidden, dtype)


def as_float(forbidden, dtype=torch.float32):
    return torch.zeros(forbidden.shape, dtype=dtype).masked_fill(forbidden, -math.inf)


@settings(deadline=None)
@given(lengths_and_source, st.sampled_from((torch.bool, *FLOATS)))
def test_a_prefix_mask_gives_its_lengths(case, dtype):
    lengths, source = case
    found = leading_lengths(prefix_mask(lengths, source, dtype), "mask")
    assert found.dtype == torch.int32
    assert found.tolist() == lengths


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4), st.booleans())
def test_a_mask_is_accepted_exactly_when_nothing_is_allowed_after_something_forbidden(rows, as_floating_point):
    mask = torch.tensor(rows)
    is_prefix = all(row == sorted(row) for row in rows)
    given_mask = as_float(mask) if as_floating_point else mask
    if is_prefix:
        assert leading_lengths(given_mask, "mask").tolist() == [row.count(False) for row in rows]
    else:
        with pytest.raises(ValueError, match="prefix"):
            leading_lengths(given_mask, "mask")


@settings(deadline=None)
@given(
    lengths_and_source,
    st.floats(width=32).filter(lambda x: x != 0 and x != -math.inf),
    st.data(),
)
def test_any_number_but_zero_and_minus_infinity_is_refused(case, number, data):
    lengths, source = case
    assume(source > 0)
    mask = prefix_mask(lengths, source, torch.float32)
    row = data.draw(st.integers(0, len(lengths) - 1))
    mask[row, data.draw(st.integers(0, source - 1))] = number
    with pytest.raises(ValueError, match="mask"):
        leading_lengths(mask, "mask")


def test_negative_zero_allows():
    assert leading_lengths(torch.tensor([-0.0, 0.0, -math.inf]), "mask").item() == 2


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (2, 3, 4, 7)])
def test_leading_dimensions_are_kept(shape):
    lengths = torch.randint(8, shape[:-1])
    mask = torch.arange(7) >= lengths[..., None]
    torch.testing.assert_close(leading_lengths(mask, "mask"), lengths.int())


def test_a_mask_of_any_strides_is_read_correctly():
    mask = prefix_mask([1, 3, 2], 5)
    strided = torch.empty(5, 6, dtype=torch.bool)[:, ::2].t().copy_(mask)
    assert leading_lengths(strided, "mask").tolist() == [1, 3, 2]
    assert leading_lengths(prefix_mask([2], 5).expand(4, 5), "mask").tolist() == [2] * 4


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_empty_masks_are_legal(shape):
    assert leading_lengths(torch.zeros(shape, dtype=torch.bool), "mask").tolist() == [0] * shape[0]


@pytest.mark.parametrize("row", [[True, False, False], [False, True, False], [True, True, False]])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_the_refusal_names_the_mask_the_row_and_the_remedy(row, dtype):
    mask = torch.tensor([[False] * 3, row])
    if dtype != torch.bool:
        mask = as_float(mask, dtype)
    with pytest.raises(ValueError, match="right") as refusal:
        leading_lengths(mask, "key_padding_mask")
    for word in ("key_padding_mask", "row [1]", "prefix"):
        assert word in str(refusal.value)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.complex64])
def test_other_dtypes_are_refused_by_name(dtype):
    with pytest.raises(TypeError, match=r"attn_mask.*bool"):
        leading_lengths(torch.zeros(2, 3, dtype=dtype), "attn_mask")


def test_values_are_also_checked_inside_a_compiled_graph():
    compiled = torch.compile(lambda mask: leading_lengths(mask, "attn_mask") * 2, fullgraph=True, backend="aot_eager")
    assert compiled(prefix_mask([3, 0], 4)).tolist() == [6, 0]
    with pytest.raises(ValueError, match=r"attn_mask.*prefix"):
        compiled(torch.tensor([[False, True, False, True]] * 2))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_the_operator_is_registered_correctly(dtype):
    opcheck(torch.ops.gma.leading_lengths.default, (prefix_mask([3, 1, 0], 4, dtype), "mask"))
