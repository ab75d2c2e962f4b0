"""Calibration by several workers: each sample is a task for any process that can read a folder.

The folder holds the model, the samples, and what is wanted. A process opens the model once for all its tasks.
Statistics are merged one after the other in the order of the samples, whoever made them and whenever: the
result is the same for any number of workers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms import model_io
from transforms.calibrate.methods import CalibrationOptions
from transforms.calibrate.range_statistics import RangeStats, decode, encode
from transforms.calibrate.sample_statistics import (
    Into,
    Progress,
    SampleStatistics,
    Statistics,
    no_statistics,
)
from transforms.files import cleanup
from transforms.files.atomic_write import replacing
from transforms.graph.typed import source_files
from transforms.model import provenance
from transforms.model.provenance import model_hash
from transforms.run.feeds import Feeds
from transforms.run.tasks import SerialExecutor, TaskLog, Workers, run_tasks
from transforms.runtime.session import RunOptions

_MODEL, _ABOUT, _LOG = "float.onnx", "about.json", "samples.jsonl"


@dataclass(frozen=True)
class SampleTask:
    """A sample by its number, and the folder in which it is."""

    folder: str
    number: int


@dataclass(frozen=True)
class Sharing:
    """Makes the statistics of samples by ``workers``: an EachSample of a calibration.

    ``folder``: where these are kept, for another run on the same model, data and options to go on from; on
    disks that all workers share. Without it they go to a temporary folder of this machine.
    """

    workers: Workers = SerialExecutor
    folder: Path | None = None

    def __call__(
        self,
        graph: gs.Graph,
        wanted: Statistics,
        feeds: Iterable[tuple[str, Feed]],
        options: CalibrationOptions,
        run: RunOptions | None,
        progress: Progress | None,
        into: Into,
    ) -> int:
        """Merge the statistics of each sample, in order, all of which workers have made by then.

        Each run has one thread unless ``run`` says how many: numbers may depend on that, and more would wait
        for the cores that other workers have. Raises ValueError as :meth:`SampleStatistics.of`, and if
        workers die again and again.
        """
        run = run or RunOptions()
        run = replace(run, threads=run.threads or 1)
        with _open_folder(graph, wanted, feeds, options, run, self.folder) as folder:
            names = _write(folder, graph, wanted, feeds, options, run)
            tasks = {f"sample {i}": SampleTask(str(folder), i) for i in range(len(names))}

            def _show(done: int, total: int, _: str) -> None:
                if progress:
                    progress(done, total)

            try:
                run_tasks(measure, tasks, self.workers, TaskLog(folder / _LOG), _show)
            finally:
                _open.cache_clear()
            for i, sample in enumerate(names):
                for name, entry in json.loads((folder / _result(i)).read_text(encoding="utf-8")).items():
                    _merge(decode(entry), into(sample, name), options, f"sample '{sample}', tensor '{name}'")
        return len(names)


def _merge(found: RangeStats, into: Iterable[RangeStats], options: CalibrationOptions, place: str) -> None:
    try:
        for whole in into:
            whole.merge(found, options.averaging_constant)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def measure(task: SampleTask) -> tuple[float, ...]:
    """Write the statistics of a sample next to it; returns the number of tensors."""
    folder = Path(task.folder)
    written = (folder / _ABOUT).stat().st_mtime_ns  # workers may outlive what they have open
    model, about = _open(task.folder, written)
    with np.load(folder / _sample(task.number)) as file:
        feed = {name: file[f"arr_{i}"] for i, name in enumerate(about["inputs"][task.number])}
    found: dict[str, RangeStats] = {}

    def _into(sample: str, name: str) -> list[RangeStats]:
        return [found.setdefault(name, model.nothing_of(name))]

    model.of(about["samples"][task.number], feed, _into, small=about["small"][task.number])
    content = {name: encode(one) for name, one in found.items()}
    with replacing(folder / _result(task.number)) as temporary:
        temporary.write_text(json.dumps(content), encoding="utf-8")
    return (float(len(content)),)


@contextmanager
def _open_folder(
    graph: gs.Graph,
    wanted: Statistics,
    feeds: Iterable[tuple[str, Feed]],
    options: CalibrationOptions,
    run: RunOptions,
    kept: Path | None,
) -> Iterator[Path]:
    """Yield the folder of this model, data and options, which stays; or a temporary one."""
    if kept is None:
        with cleanup.temporary_folder() as folder:
            yield folder
        return
    if not isinstance(feeds, Feeds):
        raise ValueError("statistics can be kept of samples that are read again alone, not of these")
    said = json.dumps([_kinds(wanted), options.averaging_constant, asdict(run)])
    parts = [provenance.software(), model_hash(graph), feeds.hash(), said]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    folder = kept.resolve() / f"calibration-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def _write(
    folder: Path,
    graph: gs.Graph,
    wanted: Statistics,
    feeds: Iterable[tuple[str, Feed]],
    options: CalibrationOptions,
    run: RunOptions,
) -> list[str]:
    """Write what tasks need; return the names of the samples."""
    model_io.save(graph, folder / _MODEL, external_data=True, force=True)
    names, inputs, small = list[str](), list[list[str]](), list[bool]()
    statistics = SampleStatistics(graph, wanted, options, run)
    for i, (name, feed) in enumerate(feeds):
        names.append(name)
        inputs.append(list(feed))
        small.append(statistics.is_small(name, feed))
        with replacing(folder / _sample(i)) as temporary, temporary.open("wb") as file:
            np.savez(file, *feed.values())
    about = {
        "samples": names,
        "inputs": inputs,
        "small": small,
        "wanted": _kinds(wanted),
        "options": asdict(options),
        "run": asdict(run),
        "files": [str(path.resolve()) for path in source_files(graph)],
    }
    with replacing(folder / _ABOUT) as temporary:
        temporary.write_text(json.dumps(about), encoding="utf-8")
    return names


@lru_cache(maxsize=1)
def _open(folder: str, written: int) -> tuple[SampleStatistics, dict[str, Any]]:
    """Return the model that was written to a folder then, and what was written about it."""
    about = json.loads((Path(folder) / _ABOUT).read_text(encoding="utf-8"))
    kinds = about["wanted"].items()
    channels = [(name, axis) for name, (_, axes) in kinds for axis in axes]
    wanted = no_statistics(about["wanted"], channels, histogram=any(histogram for _, (histogram, _) in kinds))
    graph, options = model_io.load(Path(folder) / _MODEL), CalibrationOptions(**about["options"])
    graph.source_files = [Path(path) for path in about["files"]]  # of the float model, not of this one
    return SampleStatistics(graph, wanted, options, RunOptions(**about["run"])), about


def _kinds(wanted: Statistics) -> dict[str, tuple[bool, list[int]]]:
    return {name: (one.histogram is not None, list(one.moments)) for name, one in wanted.items()}


def _sample(number: int) -> str:
    return f"sample-{number}.npz"


def _result(number: int) -> str:
    return f"statistics-{number}.json"
