"""Two systems at the same lag: the setting of one that lags as far behind as the other, and who translates better.

Interpolating BLEU between two points of a curve would compare with a system that nobody has run; here the setting is
searched for and run, so that the difference has a paired bootstrap interval.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

from gma.evaluation.sweep import Point
from gma.metrics import BootstrapDifference
from gma.paper.systems import GMA

# words of AL that count as equal
TOLERANCE = 0.1
# settings tried for one lag; each costs a translation of the test set
TRIES = 6
# decimals of a setting, which is shown in tables
DECIMALS = 3


class Comparison(NamedTuple):
    """A baseline's point, the nearest one of the system, and the difference system − baseline in BLEU and AL.

    `name` is the system's, `lag` what is equal, a latency of `Point`, and `seed` that of both models, from 0.
    """

    baseline: Point
    system: Point
    bleu: BootstrapDifference
    al: BootstrapDifference
    name: str = GMA
    lag: str = "al"
    seed: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether the two lag equally; if not, no setting of the system comes nearer."""
        return abs(getattr(self.system, self.lag) - getattr(self.baseline, self.lag)) < TOLERANCE


def nearest_setting(lag: float, known: Mapping[float, float], measure: Callable[[float], float]) -> float:
    """The setting whose lag is nearest to `lag`, among the known ones and those tried in between.

    Args:
        known: setting → its lag; settings outside of them are not tried.
        measure: gives the lag of a setting.
    """
    lags = dict(known)
    for _ in range(TRIES):
        best = min(lags, key=lambda setting: abs(lags[setting] - lag))
        bracket = _bracket(lag, lags)
        if abs(lags[best] - lag) < TOLERANCE or bracket is None:
            return best
        setting = _between(lag, *bracket, lags)
        if setting in lags:
            return best
        lags[setting] = measure(setting)
    return min(lags, key=lambda setting: abs(lags[setting] - lag))


def _bracket(lag: float, lags: Mapping[float, float]) -> tuple[float, float] | None:
    """The narrowest two neighbouring settings with the lag between theirs."""
    found = [(a, b) for a, b in pairwise(sorted(lags)) if min(lags[a], lags[b]) <= lag <= max(lags[a], lags[b])]
    return min(found, key=lambda pair: pair[1] - pair[0], default=None)


def _between(lag: float, low: float, high: float, lags: Mapping[float, float]) -> float:
    """Where a straight line through the two would have the lag, but no nearer to either than a tenth of the way."""
    share = (lag - lags[low]) / (lags[high] - lags[low])
    return round(low + min(max(share, 0.1), 0.9) * (high - low), DECIMALS)
