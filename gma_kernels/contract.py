"""What operators promise, whichever backend runs them: priors, limits, dtypes, precision and impossible values.

A row with visible = 0 gives zeros and gets zero gradients; NaN in its query, center, width or incoming gradient reaches
no other row, key or value. The same holds for keys and values that no row sees.

This file imports no backend. The backends import it, and so may whoever calls them.
"""

import contextlib

import torch
from torch import Tensor

# in the operators' schemas a prior is its index in this tuple
PRIORS = ("gaussian", "laplace", "linear", "none")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# features of a head, of the query as of the value
LARGEST_HEAD = 256

# smaller widths count as this one: the prior is one-hot long before, and 1/w² stays finite in float32
SMALLEST_WIDTH = 2.0**-40
# |peak − center| counts as at most this many widths, so that no factor of the log-prior overflows
LARGEST_OFFSET = {torch.float32: 2.0**80, torch.float64: 2.0**600}
# the linear prior falls no lower than this share of its peak
LINEAR_FLOOR = 2.0**-10


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums, and of center and width: float32, or float64 where query, key and value are float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def full_precision(device_type: str) -> contextlib.AbstractContextManager:
    """Switches autocast off, on devices that have it: it would round products to 16 bits."""
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return contextlib.nullcontext()


def check_values(center: Tensor, width: Tensor, visible: Tensor) -> None:
    """Refuse impossible values on the CPU. Tensors on other devices are never looked at: that would synchronise."""
    if visible.device.type != "cpu" or visible.numel() == 0:
        return
    _refuse("visible", visible, visible < 0, "0 or more")
    sees = visible > 0
    _refuse("center", center, sees & ~center.isfinite(), "a finite number where visible > 0")
    _refuse("width", width, sees & ~(width.isfinite() & (width > 0)), "a finite positive number where visible > 0")


def _refuse(name: str, values: Tensor, bad: Tensor, expected: str) -> None:
    if bad.any():
        b, h, i = bad.nonzero()[0].tolist()
        given = values.expand(bad.shape)[b, h, i].item()
        raise ValueError(f"{name}[b={b}, h={h}, i={i}] is {given}; expected {expected}")
