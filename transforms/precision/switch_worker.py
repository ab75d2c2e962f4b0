"""Measure one layer of a model in each format: a task for a worker process that can read a folder.

The folder holds the model, the samples, and the outputs of the float model. A process opens the model once
for all its tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms import model_io
from transforms.files.array_archive import read_arrays, write_arrays
from transforms.files.cleanup import replacing
from transforms.graph.output_view import ALL, OutputView
from transforms.run.run_model import open_model
from transforms.runtime.session import OpenModel, RunOptions
from transforms.search.output_metrics import METRICS, Outputs
from transforms.search.user_metric import LoadedMetric, SampleSet, load_metric

_MODEL, _ABOUT = "switched.onnx", "about.json"


@dataclass(frozen=True)
class SwitchTask:
    """The folder, the index of the layer, and a metric: one of METRICS or FILE.py:FUNCTION."""

    folder: str
    layer: int
    metric: str


def write_folder(
    folder: Path,
    graph: gs.Graph,
    switches: Sequence[Sequence[str]],
    samples: Sequence[tuple[Feed, Outputs]],
    run: RunOptions,
    view: OutputView = ALL,
) -> None:
    """Write the model with switches, and the samples with the outputs of the float model, for the tasks.

    ``switches``: for each layer the switches of its formats, that of the baseline first. ``view``: how
    outputs are compared.
    """
    about = {
        "switches": [list(names) for names in switches],
        "outputs": list(samples[0][1]),
        "provider": run.provider,
        "threads": run.threads,
        "count": len(samples),
        "logits": sorted(view.logits),
        "caches": sorted(view.caches),
    }
    model_io.save(graph, folder / _MODEL, external_data=True)
    for i, (feed, outputs) in enumerate(samples):
        _save(_sample(folder, "feed", i), feed)
        _save(_sample(folder, "expected", i), outputs)
    with replacing(folder / _ABOUT) as temporary:
        temporary.write_text(json.dumps(about), encoding="utf-8")


def measure(task: SwitchTask) -> tuple[float, ...]:
    """Return value and harm of each format of a layer other than the baseline's, one after the other.

    The value is the metric over all samples; the harm is the error of moving from the baseline formats, see
    :mod:`transforms.search.output_metrics`, for a user's function the drop of its value, at least 0.
    """
    written = (Path(task.folder) / _ABOUT).stat().st_mtime_ns  # a worker may outlive the model it has open
    return _Bench.open(task.folder, written).measure(task.layer, task.metric)


def forget() -> None:
    """Close the model that this process keeps open."""
    _Bench.open.cache_clear()


class _Bench:
    """The open model of a folder, with its samples."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._about = folder, json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        run = RunOptions(self._about["provider"], self._about["threads"], simulate=True)
        self._model: OpenModel = open_model(folder / _MODEL, run)
        self._view = OutputView(frozenset(self._about["logits"]), frozenset(self._about["caches"]))
        self._metrics: dict[str, LoadedMetric] = {}

    @staticmethod
    @lru_cache(maxsize=1)
    def open(folder: str, written: int) -> _Bench:
        """Return the model written to a folder at this time; it stays open until another one is opened."""
        return _Bench(Path(folder))

    def measure(self, layer: int, metric: str) -> tuple[float, ...]:
        """Return value and harm of each format of a layer, as the function :func:`measure` does."""
        plain, *moved = (self._outputs(switch) for switch in self._about["switches"][layer])
        if metric not in METRICS:
            function = self._user_metric(metric)
            baseline, *values = (function(self._samples(outputs)) for outputs in (plain, *moved))
            return tuple(chain(*((value, max(0.0, baseline - value)) for value in values)))
        measured = METRICS[metric]
        before = [self._view.of(sample) for sample in plain]
        figures: list[float] = []
        for outputs in ([self._view.of(sample) for sample in samples] for samples in moved):
            figures.append(measured.score(zip(self._expected, outputs, strict=True)))
            figures.append(measured.error(measured.score(zip(before, outputs, strict=True))))
        return tuple(figures)

    def _samples(self, outputs: Sequence[Outputs]) -> SampleSet:
        count = self._about["count"]
        expected, feeds = ([self._read(kind, i) for i in range(count)] for kind in ("expected", "feed"))
        return SampleSet(outputs, expected, feeds, range(count))

    @cached_property
    def _expected(self) -> list[Outputs]:
        return [self._view.of(self._read("expected", i)) for i in range(self._about["count"])]

    def _user_metric(self, place: str) -> LoadedMetric:
        """Return the function of a file, which is read once for each open model: the file may change."""
        if place not in self._metrics:
            self._metrics[place] = load_metric(place)
        return self._metrics[place]

    def _outputs(self, switch: str) -> list[Outputs]:
        """Return the outputs for all samples with one switch on."""
        flags = {name: np.array(name == switch) for names in self._about["switches"] for name in names}
        feeds = (self._read("feed", i) for i in range(self._about["count"]))
        return [self._model.run({**feed, **flags}, self._about["outputs"]) for feed in feeds]

    def _read(self, kind: str, number: int) -> dict[str, np.ndarray]:
        return read_arrays(_sample(self._folder, kind, number))


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays atomically: tasks of another run may read the same folder."""
    with replacing(path) as temporary:
        write_arrays(temporary, arrays)


def _sample(folder: Path, kind: str, number: int) -> Path:
    return folder / f"{kind}{number:06d}.npz"
