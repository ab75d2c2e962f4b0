"""Measuring a model with one switch on: a task for any process that can read a folder.

The folder holds the model, the samples, and what the float model makes of them. A process opens the model
once for all its tasks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs

from transforms import model_io
from transforms.output_metrics import METRICS, Outputs
from transforms.run_model import OpenModel, RunOptions, open_model
from transforms.user_metric import UserMetric, load_metric

NO_SWITCH = -1
_MODEL, _ABOUT = "switched.onnx", "about.json"


@dataclass(frozen=True)
class SwitchTask:
    """The folder, the number of the switch that is on, or NO_SWITCH, and a metric or FILE.py:FUNCTION."""

    folder: str
    switch: int
    metric: str


def write_folder(
    folder: Path,
    graph: gs.Graph,
    switches: Sequence[str],
    feeds: Sequence[Mapping[str, np.ndarray]],
    expected: Sequence[Outputs],
    run: RunOptions,
) -> None:
    """Write what tasks need: a model with switches, feeds and the outputs of the float model that count."""
    about = {
        "switches": list(switches),
        "inputs": list(feeds[0]),
        "outputs": list(expected[0]),
        "provider": run.provider,
        "threads": run.threads,
        "count": len(feeds),
    }
    model_io.save(graph, folder / _MODEL, external_data=True)
    for i, (feed, outputs) in enumerate(zip(feeds, expected, strict=True)):
        np.savez(_sample(folder, "feed", i), *feed.values())
        np.savez(_sample(folder, "expected", i), *outputs.values())
    (folder / _ABOUT).write_text(json.dumps(about), encoding="utf-8")


def measure(task: SwitchTask) -> float:
    """Return the metric of the model over all samples."""
    written = (Path(task.folder) / _ABOUT).stat().st_mtime_ns  # workers may outlive what they have open
    return _Bench.open(task.folder, written).measure(task.switch, task.metric)


def forget() -> None:
    """Close the model that this process keeps open."""
    _Bench.open.cache_clear()


class _Bench:
    """A model that is open."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._about = folder, json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        run = RunOptions(self._about["provider"], self._about["threads"], simulate=True)
        self._model: OpenModel = open_model(folder / _MODEL, run)

    @staticmethod
    @lru_cache(maxsize=1)
    def open(folder: str, written: int) -> _Bench:
        """Return the model that was written to a folder then; it stays open until another is asked for."""
        return _Bench(Path(folder))

    def measure(self, switch: int, metric: str) -> float:
        """Return the metric with a switch on."""
        if metric in METRICS:
            return METRICS[metric].score(self._pairs(switch))
        return _user_metric(metric)([dict(found) for _, found in self._pairs(switch)])

    def _pairs(self, switch: int) -> Iterator[tuple[Outputs, Outputs]]:
        flags = {name: np.array(i == switch) for i, name in enumerate(self._about["switches"])}
        names = self._about["outputs"]
        for i in range(self._about["count"]):
            feed = self._read("feed", i, self._about["inputs"])
            yield self._read("expected", i, names), self._model.run({**feed, **flags}, names)

    def _read(self, kind: str, number: int, names: Sequence[str]) -> dict[str, np.ndarray]:
        with np.load(_sample(self._folder, kind, number)) as file:
            return {name: file[f"arr_{i}"] for i, name in enumerate(names)}


@lru_cache(maxsize=1)
def _user_metric(place: str) -> UserMetric:
    return load_metric(place)


def _sample(folder: Path, kind: str, number: int) -> Path:
    return folder / f"{kind}{number:06d}.npz"
