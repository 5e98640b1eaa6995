"""Where a model runs."""

import torch

from gma.errors import UserError


class DeviceError(UserError, ValueError):
    """A device that is not here; the message says what is."""


def choose_device(name: str) -> torch.device:
    """'cpu', 'cuda' or 'cuda:N', or 'auto': a GPU if there is one."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if count else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise DeviceError(f"--device is {name!r}; expected auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and count == 0:
        raise DeviceError(f"--device is {name!r}, but torch finds no GPU here; expected cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= count:
        raise DeviceError(f"--device is {name!r}, but there are {count} GPUs here; expected cuda:0 to cuda:{count - 1}")
    return device
