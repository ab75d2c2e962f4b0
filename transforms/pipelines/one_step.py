"""The first run of a large model: one step of few numbers, a token, in the memory that its session takes.

Sessions of the float model and of what was made of it are open one after the other, none without
optimization, which shows faults of kernels, and no other sizes are tried.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ops.array_types import Feed
from transforms.functions import DOMAIN
from transforms.model_io import Exported
from transforms.pipelines.first_result import RANDOM
from transforms.pipelines.float_runs import MOST_AT_ONCE, FloatRun, Made, Samples
from transforms.pipelines.source import Source
from transforms.run.other_sizes import FreeSize, Sizes, free_sizes_in, resized
from transforms.runtime.compare_runs import MOST_WEIGHTS, run_in_time, too_large
from transforms.runtime.inputs import ModelInput, random_array
from transforms.runtime.session import OpenModel, RunOptions

MEMORY = 8 << 30
"""Bytes that a session may take, if the machine has them."""

_IN_SESSION, _UNPACKED = 2, 7
"""How often a session has the bytes of a float model: with a copy in the order of its kernels, and where
weights are decoded as a model is opened, with all that this takes until it is open."""

_MOST_FREE = 6
_MOST_TRIED = 300
_SECONDS = 10.0
"""Free sizes of which all choices are tried, those tried, and seconds of processors for them."""


def is_large(exported: Exported, stored: int) -> bool:
    """Return whether a model that was made of so many stored bytes is run for one step only."""
    return stored > MOST_WEIGHTS or bool(too_large(*exported))


def why_not_opened(exported: Exported, stored: int) -> str:
    """Return why a large model is not run at all, empty if its session fits the memory of the machine."""
    light, weights = exported
    held = max(stored, sum(weight.nbytes for weight in weights.values()))
    decodes = any(node.domain == DOMAIN for node in light.graph.node)
    needed = held * (_UNPACKED if decodes else _IN_SESSION)
    most, where = min((MEMORY, f"{MEMORY:,}"), (_free_memory(), f"the {_free_memory():,} that are free"))
    return f"a session may take {needed:,} bytes, more than {where}" if needed > most else ""


def run_one_step(
    source: Source, samples: Samples | None, inputs: Sequence[ModelInput], made: Made, run: RunOptions
) -> FloatRun:
    """Run the float model on the first sample, cut to one step if it takes that, or on random numbers.

    Raises what its run does, ValueError for a whole sample whose tensors are too large.
    """
    model = source.open(replace(run, optimize=False, prepack=False))
    words = RANDOM
    if samples is None:
        random = np.random.default_rng(0)
        feed: Feed = {one.name: random_array(one, random) for one in _typed(model, inputs)}
    else:
        name, feed = next(iter(samples(model.inputs)))
        words = f"sample '{name}'"
    end, failure = time.process_time() + _SECONDS, Exception("no sizes of its inputs were found")
    for sizes in _steps(free_sizes_in(made.graph.inputs, feed), is_random=samples is None):
        fed = resized(feed, sizes) if sizes else feed
        if not sizes and made.bytes_of(fed) > MOST_AT_ONCE:
            raise ValueError(f"tensors of {words} take more than {MOST_AT_ONCE:,} bytes at once")
        try:
            outputs = run_in_time(model, fed)
        except Exception as error:  # of the runtime, which shares no narrower class
            failure = error
        else:
            if all(value.size for value in outputs.values() if isinstance(value, np.ndarray)):
                return FloatRun(words, fed, outputs, _words(sizes))
        if time.process_time() > end:
            break
    raise failure


def _typed(model: OpenModel, inputs: Sequence[ModelInput]) -> list[ModelInput]:
    kinds = {one.name: one.dtype for one in model.inputs}
    return [replace(one, dtype=kinds[one.name]) for one in inputs]


def _steps(free: Sequence[FreeSize], *, is_random: bool) -> Iterator[Sizes]:
    """Yield sizes of one step, the smallest first, and those of a sample last.

    Of a sample the longest sizes become 1, as those of a mask and of tokens are. Of random numbers each size
    is 1, 2 or 0: a mask is as long as a cache and a token together, and a cache may be empty.
    """
    if not is_random:
        longest = max((one.size for one in free), default=0)
        cut = {one: 1 for one in free if one.size == longest > 1}
        yield from ([cut, {}] if cut else [{}])
        return
    if len(free) > _MOST_FREE:
        yield from (dict.fromkeys(free, size) for size in (1, 2, 16))
        return
    choices = sorted(itertools.product((1, 2, 0), repeat=len(free)), key=_rank)
    yield from (dict(zip(free, sizes, strict=True)) for sizes in choices[:_MOST_TRIED])


def _rank(sizes: Sequence[int]) -> tuple[int, int]:
    return sizes.count(0) + sizes.count(2), sizes.count(0)


def _words(sizes: Sizes) -> str:
    return ", ".join(f"{one.name} = {size}" for one, size in sizes.items())


def _free_memory() -> int:
    """Return the bytes of memory that are free, as far as the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return MEMORY
    return int(kilobytes) << 10
