"""Time and memory of two models, measured in processes of their own so that nothing else is counted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.array_types import Feed
from transforms.run.image_inputs import ImageOptions
from transforms.run.run_model import open_model
from transforms.run.samples import Samples
from transforms.run.turns import Seconds, Timing, clock_for, ratio, take_turns, timed_options
from transforms.run.workers import open_processes
from transforms.runtime.inputs import ModelInput
from transforms.runtime.session import RunOptions

_STATUS = Path("/proc/self/status")

_RUNS, _SECONDS, _FEWEST = 50, 1.0, 3
"""Inferences of each model from which on no sample is run again, seconds of the processor after which none
is, and the fewest inferences."""


@dataclass(frozen=True)
class Data:
    """The samples to compare on, and how to run them."""

    folder: Path
    images: ImageOptions
    options: RunOptions
    limit: int | None = None

    def samples(self, inputs: Sequence[ModelInput]) -> Samples:
        """Return the samples for the inputs of a model; raises what :class:`Samples` does."""
        return Samples(self.folder, inputs, self.images, self.limit)


@dataclass(frozen=True)
class Measurement:
    """Seconds to open the model, seconds of an inference, bytes of peak memory (None: not known).

    Those to open are on the wall; those of an inference are of the processor, see
    :func:`transforms.run.turns.clock_for`.
    """

    load_seconds: float
    run: Timing
    peak_bytes: int | None


@dataclass(frozen=True)
class Costs:
    """What a float model and another cost; ``ratio``: of the times of the other to those of the first."""

    before: Measurement
    made: Measurement
    ratio: Timing


def measure_both(first: Path, second: Path, data: Data) -> Costs:
    """Return what two models cost on the same samples, with the same threads, in fresh processes.

    Memory and the time to open are those of a process for each model. Inferences are timed in one process in
    which both are open and warm: they take turns on each sample, until there are enough runs, or enough time
    has gone. Raises ValueError or OSError as ``open_model`` and ``Samples`` do.
    """
    costs = []
    for model in (first, second):
        with open_processes(1) as executor:
            costs.append(executor.submit(_open_and_run, model, data).result())
    with open_processes(1) as executor:
        taken = executor.submit(_take_turns, first, second, data).result()
    one, two = (
        Measurement(load, Timing.of(run), peak) for (load, peak), run in zip(costs, taken, strict=True)
    )
    return Costs(one, two, ratio(taken[1], taken[0]))


def _open_and_run(model: Path, data: Data) -> tuple[float, int | None]:
    """Return the seconds to open a model, and the bytes that this and a run of each sample add."""
    before = _peak_memory()
    start = time.perf_counter()
    opened = open_model(model, data.options)
    load_seconds = time.perf_counter() - start
    for _, feed in data.samples(opened.inputs):
        opened.run(feed)
    after = _peak_memory()
    return load_seconds, None if before is None or after is None else after - before


def _take_turns(first: Path, second: Path, data: Data) -> Sequence[Seconds]:
    options = timed_options(data.options)
    models = [open_model(path, options) for path in (first, second)]

    def _pass() -> Iterator[Sequence[Feed]]:
        samples = zip(*(data.samples(model.inputs) for model in models), strict=True)
        return ([feed for _, feed in pair] for pair in samples)

    return take_turns(models, _pass, _RUNS, _SECONDS, clock=clock_for(options), fewest=_FEWEST)


def _peak_memory() -> int | None:
    """The largest memory this process has had in use; Linux keeps count."""
    if not _STATUS.exists():
        return None
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
