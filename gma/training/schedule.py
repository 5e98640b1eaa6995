"""The learning rate over time."""

import math

from gma.config.settings import TrainingSettings


def learning_rate(update: int, settings: TrainingSettings) -> float:
    """Rate of update 1, 2, …: linear from `warmup_from` to the peak at `warmup_updates`, then falling.

    "inverse_square_root" falls as 1/√update, whatever their number; "linear" reaches 0 just after the last one.
    """
    peak, warmup = settings.learning_rate, settings.warmup_updates
    if update < warmup:
        return settings.warmup_from + (peak - settings.warmup_from) * update / warmup
    if settings.schedule == "linear":
        return peak * max(0, settings.updates + 1 - update) / (settings.updates + 1 - max(1, warmup))
    return peak * math.sqrt(max(1, warmup) / update)
