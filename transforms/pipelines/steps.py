"""The lists of steps by which models are made, and the loop that takes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from transforms.pipelines.build import build
from transforms.pipelines.decide import decide
from transforms.pipelines.fit import fit
from transforms.pipelines.measure import measure
from transforms.pipelines.prepare import fits_weights, prepare
from transforms.pipelines.work import Work
from transforms.run.run_each import products_on_one_thread

Step = Callable[[Work], None]
"""Reads and changes a work; one that has nothing to do returns at once."""

IN_MEMORY: tuple[Step, ...] = (prepare, measure, decide, build, fit)
"""The steps from a float graph to a quantized one."""


@products_on_one_thread()
def run(work: Work, steps: Sequence[Step]) -> Work:
    """Take the steps one after another; the record says which ran, and for how many seconds each.

    Without the step ``decide``, rules decide whatever the scheme leaves open. Raises what a step raises; the
    graph is then in an undefined state.
    """
    if decide not in steps:
        work.close()
    work.keeps_float |= fit in steps and fits_weights(work)
    for step in steps:
        start = time.perf_counter()
        step(work)
        work.record.steps.append((step.__name__, time.perf_counter() - start))
    return work
