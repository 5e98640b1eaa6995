"""The attention module on nested tensors: a batch of sentences of any lengths, of which nothing is padded."""

from typing import TYPE_CHECKING

import torch

import gma_kernels
from gma.attention.arguments import check_is_tensor
from gma.attention.packing import NestedTensor, Packing
from gma.attention.uncompiled import uncompiled

if TYPE_CHECKING:
    from gma.attention.module import GaussianMultiheadAttention


# torch cannot compile sums over sentences whose lengths are data
@uncompiled
def attend_nested(
    attention: "GaussianMultiheadAttention", query: NestedTensor, key: NestedTensor, value: NestedTensor
) -> NestedTensor:
    """The module's output as a nested tensor like `query`.

    query: nested, in the jagged layout, [B, T of each, E]; key and value [B, S of each, features].
    """
    rows, keys = _checked(attention, query, key, value)
    features = attention.project_query(query.values())  # [N, E]
    alignment = attention.aligner.packed(features * attention.head_dim**-0.5, rows, keys.lengths)
    center, width, visible = (x[0].T for x in alignment[:3])
    first = attention.first_visible(center, visible)
    query_heads, key_heads, value_heads = (
        x.unflatten(1, (-1, attention.head_dim))
        for x in (features, *attention.project_source(key.values(), value.values()))
    )
    context = gma_kernels.gaussian_attention_packed(
        query_heads,
        key_heads,
        value_heads,
        center,
        width,
        visible,
        rows.offsets,
        keys.offsets,
        first=first,
        prior=attention.prior,
        dropout_p=attention.dropout if attention.training else 0.0,
        backend=attention.backend,
    )
    output = attention.out_proj(context.flatten(1))
    # the same offsets, not only equal ones, are what lets torch add query and output
    return torch.nested.nested_tensor_from_jagged(output, offsets=query.offsets())


def refuse_beside_nested(**given: object) -> None:
    """Refuse arguments that make no sense with sentences of different lengths in one tensor."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} is given with nested tensors; expected None: their sentences have no padding")


def _checked(
    attention: "GaussianMultiheadAttention", query: NestedTensor, key: NestedTensor, value: NestedTensor
) -> tuple[Packing, Packing]:
    """Where rows and keys lie, if these tensors fit the module and one another."""
    if not attention.batch_first:
        raise ValueError("query, key and value are nested and batch_first is False; expected batch_first=True for them")
    features = (attention.embed_dim, attention.kdim, attention.vdim)
    for name, x, size in zip(("query", "key", "value"), (query, key, value), features):
        check_is_tensor(name, x)
        if not x.is_nested:
            raise TypeError(f"{name} is a plain tensor beside nested ones; expected all three nested, or none")
        if x.layout != torch.jagged:
            raise TypeError(
                f"{name} is a nested tensor of layout {x.layout}; expected torch.jagged, or a padded tensor: in a "
                "torch.nn.TransformerEncoder, set use_nested_tensor = False"
            )
        if x.dim() != 3 or x.shape[-1] != size:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected [sentences, rows of each, {size}]")
        if x.lengths() is not None:
            raise ValueError(f"{name} has gaps between its sentences; expected none: pass {name}.contiguous()")
    for name, x in (("key", key), ("value", value)):
        if x.shape[0] != query.shape[0]:
            raise ValueError(f"{name} has {x.shape[0]} sentences; expected {query.shape[0]} like query")
    if value.offsets() is not key.offsets() and not torch.equal(value.offsets(), key.offsets()):
        lengths = [x.offsets().diff().tolist() for x in (value, key)]
        raise ValueError(f"value has sentences of {lengths[0]} rows; expected {lengths[1]} like key")
    return Packing.of(query), Packing.of(key)
