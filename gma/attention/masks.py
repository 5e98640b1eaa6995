"""Attention masks and padding, folded into one number per row: how many leading source positions it may use."""

import torch
from torch import Tensor


def leading_lengths(mask: Tensor, name: str) -> Tensor:
    """How many leading positions each row of `mask` allows: [..., S] → int32 [...].

    As in `torch.nn.MultiheadAttention`, True or −inf forbids and False or 0 allows. A mask that allows anything after
    something forbidden, or holds other numbers, cannot be expressed by a length: ValueError.
    """
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"{name} has dtype {mask.dtype}; expected bool, or floating point with 0 and -inf")
    return torch.ops.gma.leading_lengths(mask, name)


# an operator, so that the check of values also happens inside a compiled graph
@torch.library.custom_op("gma::leading_lengths", mutates_args=())
def _leading_lengths(mask: Tensor, name: str) -> Tensor:
    forbidden = mask if mask.dtype == torch.bool else mask == -torch.inf
    lengths = (~forbidden).sum(dim=-1, dtype=torch.int32)
    is_prefix = forbidden == (torch.arange(mask.shape[-1], device=mask.device) >= lengths[..., None])
    if mask.dtype != torch.bool:
        is_prefix &= forbidden | (mask == 0)
    if mask.device.type != "cpu":
        # no synchronisation: the device reports a failure at its next one
        torch._assert_async(is_prefix.all(), f"{name} must keep a leading prefix of each row")
    elif not is_prefix.all():
        row = (~is_prefix.all(dim=-1)).nonzero()[0].tolist()
        raise ValueError(
            f"{name}, row {row}, does not keep a leading prefix of the source, or holds numbers other than 0 and -inf. "
            "Gaussian attention can hide the end of the source, not its middle: pad on the right, or use "
            "torch.nn.MultiheadAttention for this mask"
        )
    return lengths


@_leading_lengths.register_fake
def _(mask: Tensor, name: str) -> Tensor:
    return mask.new_empty(mask.shape[:-1], dtype=torch.int32)
