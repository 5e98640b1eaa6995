"""The learning rate: a line up to its peak, then down in one of two ways."""

import pytest

from gma.config.settings import TrainingSettings
from gma.training.schedule import learning_rate


def rates(updates: int, **settings) -> list[float]:
    chosen = TrainingSettings(updates=updates, **settings)
    return [learning_rate(update, chosen) for update in range(1, updates + 1)]


@pytest.mark.parametrize("schedule", ["inverse_square_root", "linear"])
@pytest.mark.parametrize("warmup", [0, 1, 10, 4000])
def test_the_rate_rises_to_its_peak_and_falls(warmup, schedule):
    found = rates(3 * max(1, warmup) + 5, learning_rate=5e-4, warmup_updates=warmup, schedule=schedule)
    peak = found.index(max(found)) + 1
    assert peak == max(1, warmup)
    assert max(found) == pytest.approx(5e-4)
    assert found[:peak] == sorted(found[:peak])
    assert found[peak:] == sorted(found[peak:], reverse=True)
    assert min(found) > 0


def test_the_warm_up_is_a_line_from_its_start():
    first, second, third = rates(1000, learning_rate=1.0, warmup_updates=100, warmup_from=0.1)[:3]
    assert second - first == pytest.approx(third - second)
    assert first - (second - first) == pytest.approx(0.1)


@pytest.mark.parametrize("warmup", [0, 1, 10, 4000])
def test_four_times_the_updates_halve_an_inverse_square_root(warmup):
    found = rates(4 * max(1, warmup), learning_rate=5e-4, warmup_updates=warmup)
    assert found[-1] == pytest.approx(2.5e-4)


def test_a_line_down_would_reach_nothing_just_after_the_last_update():
    found = rates(110, learning_rate=1.0, warmup_updates=10, schedule="linear")
    assert found[9] == pytest.approx(1.0)
    assert found[59] == pytest.approx(51 / 101)
    assert found[-1] == pytest.approx(1 / 101)
