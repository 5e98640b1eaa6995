"""Which implementations this machine has, and which one a call gets."""

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch

from gma_kernels import cuda, native

DTYPES = ("float32", "float16", "bfloat16")

# what a call may ask for beyond the plain one, and which backends have it
FEATURES = ("grouped heads", "first", "logsumexp", "packed batches")
FEATURES_OF: dict[str, tuple[str, ...]] = {
    "reference": FEATURES,
    "native": FEATURES,
    "triton": FEATURES,
    "cuda": FEATURES,
}


class BackendStatus(NamedTuple):
    """Whether a backend can be used here; if not, or not on every GPU, `reason` says why and what to do about it."""

    available: bool
    reason: str
    devices: tuple[str, ...]  # "any", a type such as "cuda", or single ones such as "cuda:0"
    dtypes: tuple[str, ...]
    features: tuple[str, ...] = ()  # of FEATURES


class BackendUnavailable(RuntimeError):
    """A backend was asked for by name and cannot be used. The message holds the reason and the remedy."""


def _reference() -> BackendStatus:
    return BackendStatus(True, "plain PyTorch", ("any",), (*DTYPES, "float64"))


def _native() -> BackendStatus:
    available, reason = native.status()
    return BackendStatus(available, reason, ("cpu",), (*DTYPES, "float64"))


def _triton() -> BackendStatus:
    if importlib.util.find_spec("triton") is None:
        return BackendStatus(
            False, "triton is not installed; on Linux, pip install triton, or use backend='auto'", ("cuda",), DTYPES
        )
    if os.environ.get("TRITON_INTERPRET") == "1":
        return BackendStatus(True, "Triton's interpreter, for tests", ("cpu",), DTYPES)
    if not torch.cuda.is_available():
        reason = "triton is installed, but torch finds no GPU: install a driver and a build of torch for your GPU"
        return BackendStatus(False, f"{reason}, or use backend='auto'", ("cuda",), DTYPES)
    unfit = {}
    for index in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(index)
        if torch.version.hip is None and capability < (8, 0):
            unfit[index] = (
                f"cuda:{index} has compute capability {'{}.{}'.format(*capability)}, and Triton serves 8.0 and above; "
                "leave the device out of CUDA_VISIBLE_DEVICES, or use backend='auto'"
            )
    return status_of_gpus(f"triton {_triton_version()}", torch.cuda.device_count(), unfit)


def _triton_version() -> str:
    """The version of Triton, whichever package contains it: builds of torch for other GPUs have their own."""
    for name in ("triton", "triton-rocm", "pytorch-triton-rocm", "triton-windows", "pytorch-triton-xpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "of unknown version"


def _cuda() -> BackendStatus:
    return status_of_gpus(*cuda.status())


def status_of_gpus(reason: str, count: int, unfit: dict[int, str]) -> BackendStatus:
    """Of a GPU backend on a machine with `count` GPUs. unfit: why some cannot be used; one that can is enough."""
    fit = [index for index in range(count) if index not in unfit]
    if not fit:
        return BackendStatus(False, "; ".join(unfit.values()) or reason, ("cuda",), DTYPES)
    devices = tuple(f"cuda:{index}" for index in fit) if unfit else ("cuda",)
    return BackendStatus(True, "; ".join([reason, *unfit.values()]), devices, DTYPES)


PROBES: dict[str, Callable[[], BackendStatus]] = {
    "reference": _reference,
    "native": _native,
    "triton": _triton,
    "cuda": _cuda,
}
NAMES = tuple(PROBES)
# what `auto` tries on each kind of device, before `reference`
PREFERENCE = {"cpu": ("native",), "cuda": ("cuda", "triton")}
# NVIDIA parts whose tensor cores have instructions of their own, wgmma and tcgen05: Triton's compiler makes them, while
# the CUDA kernels are written in mma.sync, all that other parts have. By what compilers make, not by measured times
TRITON_FIRST = (9, 10)


@functools.cache
def _status(name: str) -> BackendStatus:
    return _probed(name)


def _probed(name: str) -> BackendStatus:
    return PROBES[name]()._replace(features=FEATURES_OF[name])


def backends() -> dict[str, BackendStatus]:
    """Every backend by name: whether it is available, why or why not, its devices, dtypes and features."""
    return {name: _probed(name) for name in PROBES}


def choose_backend(name: str, device: torch.device, dtype: torch.dtype, needed: tuple[str, ...] = ()) -> str:
    """The backend for a call on tensors of this device and dtype. One asked for by name is used or refused.

    needed: of FEATURES.
    """
    if name == "auto":
        return _automatic(device, dtype, needed)
    if not isinstance(name, str) or name not in PROBES:
        raise ValueError(f"backend is {name!r}; expected one of 'auto', {', '.join(map(repr, PROBES))}")
    status = _status(name)
    if not status.available:
        raise BackendUnavailable(f"backend '{name}' is not available: {status.reason}")
    if not _serves_device(status, device):
        why = f" ({status.reason})" if any(x.startswith(device.type) for x in status.devices) else ""
        raise BackendUnavailable(
            f"backend '{name}' serves {' and '.join(status.devices)} tensors and was given {device} tensors{why}; "
            "move them, or use backend='auto'"
        )
    if not _serves_dtype(status, dtype):
        raise BackendUnavailable(
            f"backend '{name}' serves {', '.join(status.dtypes)} and was given {dtype} tensors; "
            "convert them, or use backend='auto'"
        )
    missing = [feature for feature in needed if feature not in status.features]
    if missing:
        raise BackendUnavailable(f"backend '{name}' does not have {' and '.join(missing)}; use backend='auto'")
    return name


# what torch.compiler.assume_constant_result does, which would import the whole compiler and double our import time
choose_backend._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch looks for it on functions


def _serves_device(status: BackendStatus, device: torch.device) -> bool:
    return device.type in status.devices or "any" in status.devices or str(device) in status.devices


def _serves_dtype(status: BackendStatus, dtype: torch.dtype) -> bool:
    # a dtype that no backend serves is refused later, with the tensor's name
    return dtype is not torch.float64 or "float64" in status.dtypes


def preference(device: torch.device) -> tuple[str, ...]:
    """What `auto` tries on this device, the best first."""
    found = PREFERENCE.get(device.type, ())
    nvidia = device.type == "cuda" and torch.version.hip is None and torch.cuda.is_available()
    if nvidia and torch.cuda.get_device_capability(device)[0] in TRITON_FIRST:
        return tuple(reversed(found))
    return found


@functools.cache
def _automatic(device: torch.device, dtype: torch.dtype, needed: tuple[str, ...] = ()) -> str:
    preferred = preference(device)
    reasons: list[str] = []
    for name in preferred:
        status = _status(name)
        missing = [feature for feature in needed if feature not in status.features]
        if status.available and _serves_device(status, device) and _serves_dtype(status, dtype) and not missing:
            # a compiler at hand and no kernels: an installation that went otherwise than it was meant to
            if reasons and shutil.which("nvcc") and "GMA_CUDA=0" not in reasons[0]:
                warnings.warn(f"gma_kernels uses '{name}' on {device} ({reasons[0]})", stacklevel=4)
            return name
        if status.available and missing:
            reasons.append(f"{name}: does not have {' and '.join(missing)}")
        elif status.available:
            served = f"serves {', '.join(status.dtypes)} on {' and '.join(status.devices)}"
            reasons.append(f"{name}: {served}, {status.reason}")
        else:
            reasons.append(f"{name}: {status.reason}")
    why = "; ".join(reasons) or "no fused backend serves it"
    warnings.warn(f"gma_kernels uses the slow 'reference' backend on {device} ({why})", stacklevel=4)
    return "reference"
