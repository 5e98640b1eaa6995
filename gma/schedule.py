"""The learning rate over time."""

import math


def inverse_square_root(update: int, peak: float, warmup_updates: int, warmup_from: float) -> float:
    """Rate of update 1, 2, …: linear from `warmup_from` up to `peak` at `warmup_updates`, then falling as 1/√update."""
    if update < warmup_updates:
        return warmup_from + (peak - warmup_from) * update / warmup_updates
    return peak * math.sqrt(max(1, warmup_updates) / update)
