"""Calls with values that mean nothing: refused with what came and what was expected."""

import pytest
import torch

from gma import GaussianMultiheadAttention, StreamingTranslator
from gma.errors import UserError


@pytest.mark.parametrize("longest", ["abc", "100", None, 1.5, True, 0, -1, float("inf")])
def test_a_translator_needs_a_whole_number_of_tokens(longest):
    with pytest.raises(UserError, match=r"longest is .*; expected a whole number"):
        StreamingTranslator.load(longest=longest)


@pytest.mark.parametrize("lengths", [[-1, 3], [3, -(2**31)], [-5, -5]])
def test_lengths_are_not_negative(lengths):
    attention = GaussianMultiheadAttention(8, 2, batch_first=True)
    with pytest.raises(ValueError, match=f"source_lengths has {min(lengths)}; expected lengths, 0 or more"):
        attention.align(torch.randn(2, 3, 8), torch.tensor(lengths))
