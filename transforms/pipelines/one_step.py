"""Run a large model for the first time: one step with inputs of size 1, such as a token, to save memory.

Sessions of the float model and of the quantized one are open one after the other. The latter is not compared
with a session without optimization, so that faults of kernels are not found, and no other sizes are tried.
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
"""Most bytes that a session may take, if the machine has them."""

_IN_SESSION, _UNPACKED = 2, 7
"""Memory of a session as a multiple of the bytes of the weights: with a copy packed for the kernels, and for
weights that are decoded when the model is opened, at its peak."""

_MOST_FREE = 6
_MOST_TRIED = 300
_SECONDS = 10.0
"""Most free dimensions whose sizes are all combined, most combinations, and processor seconds for them."""


def is_large(exported: Exported, stored: int) -> bool:
    """Return whether a model is run for one step only; ``stored``: bytes of the float model."""
    return stored > MOST_WEIGHTS or bool(too_large(*exported))


def why_not_opened(exported: Exported, stored: int) -> str:
    """Return why a large model is not run at all, empty if its session fits into memory."""
    light, weights = exported
    held = max(stored, sum(weight.nbytes for weight in weights.values()))
    decodes = any(node.domain == DOMAIN for node in light.graph.node)
    needed = held * (_UNPACKED if decodes else _IN_SESSION)
    most, where = min((MEMORY, f"{MEMORY:,}"), (_free_memory(), f"the {_free_memory():,} that are free"))
    return f"a session may take {needed:,} bytes, more than {where}" if needed > most else ""


def run_one_step(
    source: Source, samples: Samples | None, inputs: Sequence[ModelInput], quantized: Made, run: RunOptions
) -> FloatRun:
    """Run the float model on the first sample, cut to one step if the model takes that, or on random numbers.

    Raises as the last run does, ValueError for a sample that cannot be cut and whose tensors are too large.
    """
    model = source.open(replace(run, optimize=False, prepack=False))
    words = RANDOM
    if samples is None:
        random = np.random.default_rng(0)
        feed: Feed = {tensor.name: random_array(tensor, random) for tensor in _typed(model, inputs)}
    else:
        name, feed = next(iter(samples(model.inputs)))
        words = f"sample '{name}'"
    # the first sizes on which the model runs, and no output is empty
    end, failure = time.process_time() + _SECONDS, Exception("no sizes of its inputs were found")
    for sizes in _steps(free_sizes_in(quantized.graph.inputs, feed), is_random=samples is None):
        trial = resized(feed, sizes) if sizes else feed
        if not sizes and quantized.bytes_of(trial) > MOST_AT_ONCE:
            raise ValueError(f"tensors of {words} take more than {MOST_AT_ONCE:,} bytes at once")
        try:
            outputs = run_in_time(model, trial)
        except Exception as error:  # of the runtime, which shares no narrower class
            failure = error
        else:
            if all(value.size for value in outputs.values() if isinstance(value, np.ndarray)):
                return FloatRun(words, trial, outputs, _words(sizes))
        if time.process_time() > end:
            break
    raise failure


def _typed(model: OpenModel, inputs: Sequence[ModelInput]) -> list[ModelInput]:
    dtypes = {tensor.name: tensor.dtype for tensor in model.inputs}
    return [replace(tensor, dtype=dtypes[tensor.name]) for tensor in inputs]


def _steps(free: Sequence[FreeSize], *, is_random: bool) -> Iterator[Sizes]:
    """Yield sizes of one step, the smallest first, and for a sample its own sizes last.

    In a sample the largest free sizes become 1: they are those of tokens and mask. For random numbers each
    size is 1, 2 or 0: a mask is as long as a cache and a token together, and a cache may be empty.
    """
    if not is_random:
        longest = max((dimension.size for dimension in free), default=0)
        cut = {dimension: 1 for dimension in free if dimension.size == longest > 1}
        yield from ([cut, {}] if cut else [{}])
        return
    if len(free) > _MOST_FREE:
        yield from (dict.fromkeys(free, length) for length in (1, 2, 16))
        return
    choices = sorted(itertools.product((1, 2, 0), repeat=len(free)), key=_rank)
    yield from (dict(zip(free, sizes, strict=True)) for sizes in choices[:_MOST_TRIED])


def _rank(sizes: Sequence[int]) -> tuple[int, int]:
    return sizes.count(0) + sizes.count(2), sizes.count(0)


def _words(sizes: Sizes) -> str:
    return ", ".join(f"{free.name} = {size}" for free, size in sizes.items())


def _free_memory() -> int:
    """Return the bytes of available memory, ``MEMORY`` if the system does not report them."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return MEMORY
    return int(kilobytes) << 10
