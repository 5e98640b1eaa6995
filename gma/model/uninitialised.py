"""Modules whose parameters are about to be read from a file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


class _NothingDrawn(TorchFunctionMode):
    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if function in (torch.Tensor.normal_, torch.Tensor.uniform_):
            return args[0]
        if getattr(function, "__module__", None) == nn.init.__name__:
            return options["tensor"] if "tensor" in options else args[0]
        return function(*args, **options)


@contextmanager
def uninitialised() -> Iterator[None]:
    """Modules made here draw no random numbers: that takes time, moves the caller's generator, and on the device
    'meta' imports torch's whole compiler."""
    with _NothingDrawn():
        yield
