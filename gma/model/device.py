"""Where a model runs."""

import contextlib
import platform

import torch

from gma.errors import UserError


def choose_device(name: str, *, option: str = "device", process: int = 0) -> torch.device:
    """'cpu', 'cuda:N', 'cuda' (each process of a machine takes its own), or 'auto': a GPU if there is one.

    Args:
        option: what the user calls it, for messages.
        process: its number on this machine, from 0.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device: torch.device | None = None
    with contextlib.suppress(RuntimeError):
        device = torch.device(("cuda" if count else "cpu") if name == "auto" else name)
    if device is None or device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise UserError(f"{option} is {name!r}; expected auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return torch.device("cpu")
    if count == 0:
        raise UserError(f"{option} is {name!r}, but torch finds no GPU here; expected cpu or auto")
    index = process if device.index is None else device.index
    if index >= count:
        raise UserError(
            f"{option} is {name!r}, which is cuda:{index} here, but there are {count} GPUs; expected cuda:0 to "
            f"cuda:{count - 1}, and one process for each at most"
        )
    return torch.device("cuda", index)


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for products of bfloat16; True where torch cannot tell."""
    told = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    return platform.machine().lower() not in ("x86_64", "amd64") or any(ask is None or ask() for ask in told)
