"""Finding the setting of equal lag, on lags that are known."""

import math

import pytest

from gma.paper.equal_lag import TOLERANCE, TRIES, nearest_setting

KNOWN = (0.0, 1.0, 3.0, 7.0)


def search(lag: float, curve) -> tuple[float, list[float]]:
    tried = []

    def measure(setting: float) -> float:
        tried.append(setting)
        return curve(setting)

    return nearest_setting(lag, {setting: curve(setting) for setting in KNOWN}, measure), tried


@pytest.mark.parametrize(
    "curve",
    [lambda x: 0.5 + x, lambda x: 9 * (1 - math.exp(-x / 2)), lambda x: x**2 / 7, lambda x: 0.8 * x + math.sin(x) / 2],
    ids=["line", "flattening", "steepening", "wavy"],
)
@pytest.mark.parametrize("share", [0.02, 0.2, 0.45, 0.7, 0.97])
def test_a_lag_within_the_range_is_found_to_within_the_tolerance(curve, share):
    lag = curve(0.0) + share * (curve(7.0) - curve(0.0))
    setting, tried = search(lag, curve)
    assert abs(curve(setting) - lag) < TOLERANCE
    assert len(tried) <= TRIES
    assert all(0 < value < 7 for value in tried)


def test_a_known_setting_that_is_near_enough_costs_nothing():
    assert search(3.55, lambda x: 0.5 + x) == (3.0, [])


@pytest.mark.parametrize(("lag", "expected"), [(-1.0, 0.0), (20.0, 7.0)])
def test_a_lag_outside_of_the_range_has_its_end_and_nothing_is_tried(lag, expected):
    assert search(lag, lambda x: 0.5 + x) == (expected, [])


def test_a_lag_that_is_leapt_over_has_the_nearer_side():
    setting, tried = search(3.0, lambda x: 1.0 if x < 2.0 else 6.5)
    assert setting < 2.0
    assert len(tried) <= TRIES
    setting, _ = search(5.0, lambda x: 1.0 if x < 2.0 else 6.5)
    assert setting >= 2.0
