"""What operators promise, whichever backend runs them: priors, limits, dtypes, precision and impossible values.

A row that sees nothing (visible ≤ first, or first ≥ S) gives zeros and the logsumexp −∞ and gets zero gradients; NaN in
its query, center, width or incoming gradients reaches no other row, key or value. The same holds for keys and values
left and right of all that the rows of their head see.

A weight below e⁻⁶⁰ of its row's largest (e⁻⁶⁰⁰ in float64) may come out as 0, and a backend need not look at its key.

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
# in a logsumexp that is handed out, a center further from all that its row sees than this counts as this far: in widths
LARGEST_LOGSUMEXP_OFFSET = 2.0**30
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


def peak_position(center: Tensor, first: Tensor | int, visible: Tensor) -> Tensor:
    """The position nearest the center of those that a row sees: first + 1 … visible, at least one."""
    last = visible.to(center.dtype)
    nearest = torch.minimum(torch.maximum(center, torch.as_tensor(first + 1, device=center.device)), last)
    # as in csrc/prior.h, so that both take the same position where two are equally near
    return torch.minimum((nearest + 0.5).floor(), last)


def check_values(center: Tensor, width: Tensor, visible: Tensor, first: Tensor | None = None) -> None:
    """Refuse impossible values on the CPU. Tensors on other devices are never looked at: that would synchronise."""
    if visible.device.type != "cpu" or visible.numel() == 0:
        return
    _refuse("visible", visible, visible < 0, "0 or more")
    if first is None:
        sees, where = visible > 0, "where visible > 0"
    else:
        _refuse("first", first, first < 0, "0 or more")
        sees, where = visible > first, "where visible > first"
    _refuse("center", center, sees & ~center.isfinite(), f"a finite number {where}")
    _refuse("width", width, sees & ~(width.isfinite() & (width > 0)), f"a finite positive number {where}")


def check_offsets(name: str, offsets: Tensor, total: int, of: str) -> None:
    """Refuse offsets of packed sentences that do not lead from 0 to `total`, on the CPU. of: what they count."""
    if offsets.device.type != "cpu":
        return
    steps = offsets.diff()
    if steps.numel() and (steps < 0).any():
        at = int((steps < 0).nonzero()[0])
        raise ValueError(f"{name} falls from {int(offsets[at])} to {int(offsets[at + 1])}; expected it never to fall")
    if int(offsets[0]) != 0 or int(offsets[-1]) != total:
        raise ValueError(
            f"{name} leads from {int(offsets[0])} to {int(offsets[-1])}; expected from 0 to {total}, the rows of {of}"
        )


def _refuse(name: str, values: Tensor, bad: Tensor, expected: str) -> None:
    if bad.any():
        b, h, i = bad.nonzero()[0].tolist()
        given = values.expand(bad.shape)[b, h, i].item()
        raise ValueError(f"{name}[b={b}, h={h}, i={i}] is {given}; expected {expected}")
