"""The loop that takes the steps of a list."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import takewhile

from transforms.pipelines.work import Work
from transforms.run.run_each import products_on_one_thread

Step = Callable[[Work], None]
"""Reads and changes a work; one that has nothing to do returns at once."""

LOAD, DECIDE, REQUIRE = "load", "decide", "require"
"""Names of steps that the loop looks for."""


@products_on_one_thread()
def run(work: Work, steps: Sequence[Step]) -> Work:
    """Take the steps one after another; the record says which ran, and for how many seconds each.

    Without a step ``decide``, rules decide whatever the scheme leaves open. Those between ``load`` and
    ``require`` build a model, and are taken again where other schemes are tried. Raises what a step raises;
    the graph is then in an undefined state.
    """
    names = [step.__name__ for step in steps]
    if DECIDE not in names:
        work.close()
    first = names.index(LOAD) + 1 if LOAD in names else 0
    work.building = tuple(takewhile(lambda step: step.__name__ != REQUIRE, steps[first:]))
    for name, step in zip(names, steps, strict=True):
        start = time.perf_counter()
        step(work)
        work.record.steps.append((name, time.perf_counter() - start))
    return work
