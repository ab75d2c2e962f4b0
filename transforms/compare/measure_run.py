"""Time and memory of a model, measured in a process of its own so that nothing else is counted."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transforms.run.processes import open_processes
from transforms.run.run_model import open_model
from transforms.run.samples import ImageOptions, Samples
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

    def samples(self, inputs: Sequence[ModelInput]) -> Samples:
        """Return the samples for the inputs of a model; raises what :class:`Samples` does."""
        return Samples(self.folder, inputs, self.images, self.limit)


@dataclass(frozen=True)
class Measurement:
    """Seconds to open the model, median seconds per sample, bytes of peak memory (None: not known)."""

    load_seconds: float
    run_seconds: float
    peak_bytes: int | None


def measure_run(model: Path, data: Data) -> Measurement:
    """Open the model and run the samples in a fresh process; peak memory is what that adds to the imports.

    Raises ValueError or OSError as ``open_model`` and ``Samples`` do.
    """
    with open_processes(1) as executor:
        return executor.submit(_measure, model, data).result()


def _measure(model: Path, data: Data) -> Measurement:
    before = _peak_memory()
    start = time.perf_counter()
    opened = open_model(model, data.options)
    load_seconds = time.perf_counter() - start
    times = []
    for i, (_, feed) in enumerate(data.samples(opened.inputs)):
        if i == 0:
            opened.run(feed)  # the first run also allocates
        start = time.perf_counter()
        opened.run(feed)
        times.append(time.perf_counter() - start)
    after = _peak_memory()
    grown = None if before is None or after is None else after - before
    return Measurement(load_seconds, statistics.median(times), grown)


def _peak_memory() -> int | None:
    """The largest memory this process has had in use; Linux keeps count."""
    if not _STATUS.exists():
        return None
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
