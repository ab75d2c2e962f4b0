"""Seconds of an inference of two models, measured in turns within a few seconds, in this process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

import numpy as np

from transforms.runtime.session import OpenModel

_SECONDS = 3.0
_RUNS = 200


def quick_time(first: OpenModel, second: OpenModel, feed: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """Return the median seconds of both models on one feed, warm.

    Shorter than :func:`transforms.compare.measure_run.measure_both`, and without memory.
    """
    models = first, second
    for model in models:
        model.run(feed)
    seconds: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + _SECONDS
    while len(seconds[0]) < _RUNS and (not seconds[0] or time.perf_counter() < end):
        for i in (0, 1) if len(seconds[0]) % 2 else (1, 0):
            start = time.perf_counter()
            models[i].run(feed)
            seconds[i].append(time.perf_counter() - start)
    one, two = (statistics.median(found) for found in seconds)
    return one, two
