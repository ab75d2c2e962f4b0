"""Measure time and memory of two models."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from transforms.run.beside_float import BesideFloat, KernelTime, time_beside_float
from transforms.run.fitted import Fitting
from transforms.run.image_options import ImageOptions
from transforms.run.run_model import open_model
from transforms.run.samples import Samples
from transforms.run.turns import Timing
from transforms.run.workers import open_processes
from transforms.runtime.inputs import ModelInput
from transforms.runtime.session import RunOptions

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Data:
    """The samples to compare on, and how to run them."""

    folder: Path
    images: ImageOptions
    options: RunOptions
    limit: int | None = None
    fitting: Fitting = field(default_factory=Fitting, compare=False)

    def samples(self, inputs: Sequence[ModelInput]) -> Samples:
        """Return the samples for the inputs of a model; raises what :class:`Samples` does."""
        return Samples(self.folder, inputs, self.images, self.limit, self.fitting)


@dataclass(frozen=True)
class Measurement:
    """Seconds to open the model, seconds of an inference, bytes of peak memory (None: unknown).

    Opening is measured in wall-clock time; inference in processor time, see
    :func:`transforms.run.turns.clock_for`.
    """

    load_seconds: float
    run: Timing
    peak_bytes: int | None


@dataclass(frozen=True)
class Costs:
    """The costs of a float model and another; ``ratio``: the other's time divided by the float model's.

    ``lost``: the kernels that take the additional time.
    """

    before: Measurement
    made: Measurement
    ratio: Timing
    lost: tuple[KernelTime, ...] = ()


def measure_both(first: Path, second: Path, data: Data) -> Costs:
    """Return the costs of two models on the same samples, with the same threads.

    Memory and the time to open are measured in a fresh process for each model. Inferences of the first
    sample are timed here, as after a conversion: :func:`transforms.run.beside_float.time_beside_float`.
    Raises ValueError or OSError as ``open_model`` and ``Samples`` do.
    """
    costs = []
    for model in (first, second):
        with open_processes(1) as executor:
            costs.append(executor.submit(_open_and_run, model, data).result())
    timed = _timed(first, second, data)
    before, after = (
        Measurement(load, run, peak)
        for (load, peak), run in zip(costs, (timed.before, timed.made), strict=True)
    )
    return Costs(before, after, timed.ratio, timed.lost)


def _timed(first: Path, second: Path, data: Data) -> BesideFloat:
    openers = partial(open_model, second), partial(open_model, first)
    inputs = (open_(replace(data.options, optimize=False)).inputs for open_ in openers)
    made, before = (next(iter(data.samples(read)))[1] for read in inputs)
    return time_beside_float(openers, (made, before), data.options)


def _open_and_run(model: Path, data: Data) -> tuple[float, int | None]:
    """Return the seconds to open a model, and the bytes added by that and a run of each sample."""
    before = _peak_memory()
    start = time.perf_counter()
    opened = open_model(model, data.options)
    load_seconds = time.perf_counter() - start
    for _, feed in data.samples(opened.inputs):
        opened.run(feed)
    after = _peak_memory()
    return load_seconds, None if before is None or after is None else after - before


def _peak_memory() -> int | None:
    """Return the peak memory of this process, as counted by Linux."""
    if not _STATUS.exists():
        return None
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
