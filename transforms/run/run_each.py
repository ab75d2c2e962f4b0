"""Running one sample after another, several at once, with the same numbers however many those are.

A run that is spread over threads adds up in an order that depends on how many there are: the last bits of
convolutions differ, and what weights are tuned to with them. So each run has the same number of threads
everywhere, and where there are more, several samples are run at once. Products of matrices take one thread:
what weights are tuned to follows from their sums, and they are many and small, so that threads that wait for
each other cost more than they bring.
"""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import numpy as np  # noqa: F401  # threads are those of libraries that are loaded
from threadpoolctl import threadpool_limits

from ops.array_types import Feed
from transforms.run.tensor_sizes import is_small_feed
from transforms.runtime.session import RunOptions, provider_name

Given = TypeVar("Given")
Found = TypeVar("Found")

_OF_A_RUN = 2
"""Threads of a run. One would be no faster for small models: samples that run at once wait for Python."""


def with_fixed_threads(options: RunOptions | None) -> RunOptions:
    """Return options with which each run of a model has the same number of threads on every machine."""
    return dataclasses.replace(options or RunOptions(), threads=_OF_A_RUN)


def with_resting_threads(options: RunOptions | None) -> RunOptions:
    """Return the same for models of a few runs: threads without work rest, which takes less processor time.

    Those that look for work do so, too, while the tensors of a running model are looked at.
    """
    return dataclasses.replace(with_fixed_threads(options), spin=False)


def with_bounded_memory(options: RunOptions, feeds: Iterable[Feed]) -> RunOptions:
    """Return options with which runs of large samples take no more memory than their tensors."""
    return options if all(map(is_small_feed, feeds)) else dataclasses.replace(options, arena=False)


def run_each(
    run: Callable[[Given], Found], samples: Iterable[Given], options: RunOptions | None
) -> Iterator[Found]:
    """Yield what ``run`` makes of each sample, in order; as many run at once as ``options.threads`` allow.

    0 stands for one thread for each core, and each run takes two. On other providers than the processor there
    is one run at a time.
    """
    at_once = _at_once(options or RunOptions())
    if at_once == 1:
        yield from map(run, samples)
        return
    running = deque[Future[Found]]()
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
    """Let NumPy's products of matrices run on one thread meanwhile, in the whole process.

    Also a decorator. ONNX Runtime has threads of its own.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def start_products_on_one_thread() -> None:
    """Let them do so from now on, in a process that works for another one."""
    threadpool_limits(limits=1, user_api="blas")
