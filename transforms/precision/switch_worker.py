"""Measuring a layer of a model in each format: a task for any process that can read a folder.

The folder holds the model, the samples, and what the float model makes of them. A process opens the model
once for all its tasks.
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
    """The folder, the number of the layer, and a metric or FILE.py:FUNCTION."""

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
    """Write what tasks need: a model with switches, and samples, with the outputs of the float model.

    ``switches``: of each layer those of its formats, the ones of the baseline first. ``view``: how outputs
    are compared.
    """
    about = {
        "switches": [list(one) for one in switches],
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
    """Return, of each format of a layer, the metric over all samples and how far that is from the baseline's.

    That is an error, see :mod:`transforms.search.output_metrics`; of a function of the user's it is what it
    returns less than for the formats of the baseline.
    """
    written = (Path(task.folder) / _ABOUT).stat().st_mtime_ns  # workers may outlive what they have open
    return _Bench.open(task.folder, written).measure(task.layer, task.metric)


def forget() -> None:
    """Close the model that this process keeps open."""
    _Bench.open.cache_clear()


class _Bench:
    """A model that is open."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._about = folder, json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        run = RunOptions(self._about["provider"], self._about["threads"], simulate=True)
        self._model: OpenModel = open_model(folder / _MODEL, run)
        self._view = OutputView(frozenset(self._about["logits"]), frozenset(self._about["caches"]))
        self._metrics: dict[str, LoadedMetric] = {}

    @staticmethod
    @lru_cache(maxsize=1)
    def open(folder: str, written: int) -> _Bench:
        """Return the model that was written to a folder then; it stays open until another is asked for."""
        return _Bench(Path(folder))

    def measure(self, layer: int, metric: str) -> tuple[float, ...]:
        """Return the metric of each format of a layer, and the error of moving to it from the baseline's."""
        plain, *moved = (self._outputs(switch) for switch in self._about["switches"][layer])
        if metric not in METRICS:
            function = self._user_metric(metric)
            first, *values = (function(self._samples(made)) for made in (plain, *moved))
            return tuple(chain(*((value, max(0.0, first - value)) for value in values)))
        of = METRICS[metric]
        before = [self._view.of(one) for one in plain]
        found: list[float] = []
        for made in ([self._view.of(one) for one in outputs] for outputs in moved):
            found.append(of.score(zip(self._expected, made, strict=True)))
            found.append(of.error(of.score(zip(before, made, strict=True))))
        return tuple(found)

    def _samples(self, outputs: Sequence[Outputs]) -> SampleSet:
        count = self._about["count"]
        expected, feeds = ([self._read(kind, i) for i in range(count)] for kind in ("expected", "feed"))
        return SampleSet(outputs, expected, feeds, range(count))

    @cached_property
    def _expected(self) -> list[Outputs]:
        return [self._view.of(self._read("expected", i)) for i in range(self._about["count"])]

    def _user_metric(self, place: str) -> LoadedMetric:
        """Return the function of a file, which is read once for each model: it may change between two."""
        if place not in self._metrics:
            self._metrics[place] = load_metric(place)
        return self._metrics[place]

    def _outputs(self, switch: str) -> list[Outputs]:
        """Return what the model makes of all samples with a switch on."""
        flags = {name: np.array(name == switch) for one in self._about["switches"] for name in one}
        feeds = (self._read("feed", i) for i in range(self._about["count"]))
        return [self._model.run({**feed, **flags}, self._about["outputs"]) for feed in feeds]

    def _read(self, kind: str, number: int) -> dict[str, np.ndarray]:
        return read_arrays(_sample(self._folder, kind, number))


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays whole or not at all: tasks of another run may read the same folder."""
    with replacing(path) as temporary:
        write_arrays(temporary, arrays)


def _sample(folder: Path, kind: str, number: int) -> Path:
    return folder / f"{kind}{number:06d}.npz"
