"""Interleaved timing: every round runs each contender once, so that a noisy moment hits all of them."""

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(
    benchmark, contenders: Mapping[str, Callable[[], object]], rounds: int, warm: bool = False
) -> dict[str, float]:
    """Median milliseconds of each contender. One round of all is what pytest-benchmark sees as its function.

    warm: all of them have run already.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}

    def one_round():
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - start) * 1e3)

    for run in () if warm else contenders.values():  # compile, fill caches, start threads
        run()
        run()
    benchmark.pedantic(one_round, rounds=rounds, iterations=1, warmup_rounds=0 if warm else 1)
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    benchmark.extra_info["milliseconds"] = medians
    return medians
