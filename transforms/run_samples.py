"""Running one sample after another, several at once, with the same numbers however many those are.

A run that is spread over threads itself adds up in an order that depends on how many there are: the last bits
of convolutions differ, and what weights are tuned to with them.
"""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from transforms.run_model import RunOptions, provider_name

Given = TypeVar("Given")
Found = TypeVar("Found")


def one_thread(options: RunOptions | None) -> RunOptions:
    """Return how a model is opened of which each run is on one thread."""
    return dataclasses.replace(options or RunOptions(), threads=1)


def run_each(
    run: Callable[[Given], Found], samples: Iterable[Given], options: RunOptions | None
) -> Iterator[Found]:
    """Yield what ``run`` makes of each sample, in order; ``options.threads`` (0: all cores) are run at once.

    Other providers than the processor run one at a time.
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
    return options.threads or os.cpu_count() or 1
