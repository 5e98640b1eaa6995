"""Functions that `torch.compile` leaves alone."""

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def uncompiled(function: _Function) -> _Function:
    """As `torch.compiler.disable`, which imports the whole compiler and would double the time of our import."""
    disabled: list[Any] = []

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **options)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **options)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]  # torch looks for it on functions
    return cast(_Function, call)
