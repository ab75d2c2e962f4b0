"""Run samples one after another or several at once, with the same numbers in either case.

A run on several threads adds up in an order that depends on their number: the last bits of convolutions
differ, and with them tuned weights. So each run has the same number of threads on every machine, and further
cores run several samples at once. NumPy's products take one thread: tuned weights depend on their sums, and
they are many and small, so that waiting threads cost more than they gain.
"""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import numpy as np  # noqa: F401  # its libraries must be loaded before their threads are limited
from threadpoolctl import threadpool_limits

from ops.array_types import Feed
from transforms.run.tensor_sizes import is_small_feed
from transforms.runtime.session import RunOptions, provider_name

Sample = TypeVar("Sample")
Result = TypeVar("Result")

_OF_A_RUN = 2
"""Threads of a run. One would not be faster for small models: samples run at once wait for Python."""


def with_fixed_threads(options: RunOptions | None) -> RunOptions:
    """Return options with which each run of a model has the same number of threads on every machine."""
    return dataclasses.replace(options or RunOptions(), threads=_OF_A_RUN)


def with_resting_threads(options: RunOptions | None) -> RunOptions:
    """Return the same for models with few runs: idle threads sleep, which takes less processor time.

    Spinning threads also take it while tensors of a running model are watched.
    """
    return dataclasses.replace(with_fixed_threads(options), spin=False)


def with_bounded_memory(options: RunOptions, feeds: Iterable[Feed]) -> RunOptions:
    """Return options with which runs of large samples take no more memory than their tensors."""
    return options if all(map(is_small_feed, feeds)) else dataclasses.replace(options, arena=False)


def run_each(
    run: Callable[[Sample], Result], samples: Iterable[Sample], options: RunOptions | None
) -> Iterator[Result]:
    """Yield the result of ``run`` for each sample, in order; ``options.threads`` limits how many run at once.

    0 stands for one thread for each core; each run takes two. On providers other than the CPU samples run
    one at a time.
    """
    at_once = _at_once(options or RunOptions())
    if at_once == 1:
        yield from map(run, samples)
        return
    running = deque[Future[Result]]()
    with ThreadPoolExecutor(at_once) as pool:
        for sample in samples:
            running.append(pool.submit(run, sample))
            if len(running) > at_once:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def _at_once(options: RunOptions) -> int:
    if provider_name(options.provider) != "CPUExecutionProvider":
        return 1
    return max(1, (options.threads or os.cpu_count() or 1) // _OF_A_RUN)


@contextmanager
def products_on_one_thread() -> Iterator[None]:
    """Limit NumPy's matrix products to one thread meanwhile, in the whole process.

    Also a decorator. ONNX Runtime has its own threads.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def start_products_on_one_thread() -> None:
    """Limit them from now on, in a worker process."""
    threadpool_limits(limits=1, user_api="blas")
