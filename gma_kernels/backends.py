"""Which implementations this machine has, and which one a call gets."""

import functools
import warnings
from collections.abc import Callable
from typing import NamedTuple

from gma_kernels import native

DTYPES = ("float32", "float16", "bfloat16")


class BackendStatus(NamedTuple):
    """Whether a backend can be used here; if not, `reason` says why and what to do about it."""

    available: bool
    reason: str
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]


class BackendUnavailable(RuntimeError):
    """A backend was asked for by name and cannot be used. The message holds the reason and the remedy."""


def _reference() -> BackendStatus:
    return BackendStatus(True, "plain PyTorch", ("any",), (*DTYPES, "float64"))


def _native() -> BackendStatus:
    available, reason = native.status()
    return BackendStatus(available, reason, ("cpu",), (*DTYPES, "float64"))


def _triton() -> BackendStatus:
    return BackendStatus(False, "not part of this version; use backend='auto'", ("cuda",), DTYPES)


def _cuda() -> BackendStatus:
    return BackendStatus(False, "not part of this version; use backend='auto'", ("cuda",), DTYPES)


PROBES: dict[str, Callable[[], BackendStatus]] = {
    "reference": _reference,
    "native": _native,
    "triton": _triton,
    "cuda": _cuda,
}
# what `auto` tries on each kind of device, before `reference`
PREFERENCE = {"cpu": ("native",), "cuda": ("cuda", "triton")}


@functools.cache
def _status(name: str) -> BackendStatus:
    return PROBES[name]()


def backends() -> dict[str, BackendStatus]:
    """Every backend by name: whether it is available, why or why not, its devices and dtypes."""
    return {name: probe() for name, probe in PROBES.items()}


def choose_backend(name: str, device: str) -> str:
    """The backend that serves a call on tensors of this device type. Raises rather than replace one asked for."""
    if name == "auto":
        return _automatic(device)
    if not isinstance(name, str) or name not in PROBES:
        raise ValueError(f"backend is {name!r}; expected one of 'auto', {', '.join(map(repr, PROBES))}")
    status = _status(name)
    if not status.available:
        raise BackendUnavailable(f"backend '{name}' is not available: {status.reason}")
    if "any" not in status.devices and device not in status.devices:
        raise BackendUnavailable(
            f"backend '{name}' serves {' and '.join(status.devices)} tensors and was given {device} tensors; "
            "move them, or use backend='auto'"
        )
    return name


# what torch.compiler.assume_constant_result does, which would import the whole compiler and double our import time
choose_backend._dynamo_marked_constant = True


@functools.cache
def _automatic(device: str) -> str:
    preferred = PREFERENCE.get(device, ())
    for name in preferred:
        if _status(name).available:
            return name
    reasons = "; ".join(f"{name}: {_status(name).reason}" for name in preferred) or "no fused backend serves it"
    warnings.warn(f"gma_kernels uses the slow 'reference' backend on {device} ({reasons})", stacklevel=4)
    return "reference"
