"""Checks of what the attention module is given, whose errors name the argument, what came and what was expected."""

import torch
from torch import Tensor, nn

from gma.attention.alignment import Alignment


def checked_key_heads(given: int | None, heads: int) -> int:
    """How many heads keys and values have."""
    if given is None:
        return heads
    _check_whole("num_kv_heads", given, f"heads, or None for {heads}")
    if given < 1 or heads % given:
        divisors = " or ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ValueError(f"num_kv_heads is {given}; expected {divisors}, a divisor of num_heads, or None for {heads}")
    return given


def checked_window(given: int | None) -> int | None:
    if given is None:
        return None
    _check_whole("window", given, "source words, or None for all")
    if given < 0:
        raise ValueError(f"window is {given}; expected 0 source words or more, or None for all")
    return given


def _check_whole(name: str, given: int, of: str) -> None:
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{name} is a {type(given).__name__}; expected a whole number of {of}")


def check_query_key_value(module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse tensors that do not fit the module, or one another."""
    check_features("query", query, module.embed_dim)
    check_features("key", key, module.kdim)
    check_features("value", value, module.vdim)
    batch_dim = 0 if module.batch_first else 1
    for name, x in (("key", key), ("value", value)):
        if x.dim() != query.dim():
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {query.dim()} dimensions like query")
        if x.dim() == 3 and x.shape[batch_dim] != query.shape[batch_dim]:
            batch = query.shape[batch_dim]
            raise ValueError(f"{name} has batch size {x.shape[batch_dim]}; expected {batch} like query")
    if key.shape[:-1] != value.shape[:-1]:
        raise ValueError(f"value has shape {tuple(value.shape)}; expected as many rows as key, {tuple(key.shape)}")


def check_features(name: str, x: Tensor, features: int) -> None:
    check_is_tensor(name, x)
    if x.is_nested:
        raise TypeError(f"{name} is a nested tensor; expected a padded one: only the module itself takes nested ones")
    if x.dim() not in (2, 3):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected 3 dimensions, or 2 without a batch")
    if x.shape[-1] != features:
        raise ValueError(f"{name} has {x.shape[-1]} features; expected {features}")


def check_alignment(alignment: Alignment) -> None:
    if not isinstance(alignment, Alignment):
        raise TypeError(f"alignment is a {type(alignment).__name__}; expected a gma.Alignment")


def check_lengths(name: str, lengths: Tensor, batch: int) -> None:
    check_shape(name, lengths, (batch,))
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(f"{name} has dtype {lengths.dtype}; expected integers")
    if can_look_at(lengths) and (lengths < 0).any():
        raise ValueError(f"{name} has {int(lengths.min())}; expected lengths, 0 or more")


def can_look_at(x: Tensor) -> bool:
    """Whether values can be checked: elsewhere that would make the device wait."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def check_is_tensor(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; expected a torch.Tensor")


def check_shape(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    check_is_tensor(name, x)
    if x.shape != shape:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {list(shape)}")
