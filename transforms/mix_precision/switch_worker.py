"""Measuring a model with one switch on: a task for any process that can read a folder.

The folder holds the model, the samples, and what the float model makes of them. A process opens the model
once for all its tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs

from transforms import model_io
from transforms.files.atomic_write import replacing
from transforms.run.run_model import open_model
from transforms.runtime.session import OpenModel, RunOptions
from transforms.search.output_metrics import METRICS, Outputs
from transforms.search.user_metric import UserMetric, load_metric

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
        _save(_sample(folder, "feed", i), feed)
        _save(_sample(folder, "expected", i), outputs)
    with replacing(folder / _ABOUT) as temporary:
        temporary.write_text(json.dumps(about), encoding="utf-8")


def measure(task: SwitchTask) -> tuple[float, float]:
    """Return the metric of the model over all samples, and how far it is from the model without any switch.

    That is an error, see :mod:`transforms.search.output_metrics`; of a function of the user's it is what it
    returns less than without any switch.
    """
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
        self._metrics: dict[str, tuple[UserMetric, float]] = {}

    @staticmethod
    @lru_cache(maxsize=1)
    def open(folder: str, written: int) -> _Bench:
        """Return the model that was written to a folder then; it stays open until another is asked for."""
        return _Bench(Path(folder))

    def measure(self, switch: int, metric: str) -> tuple[float, float]:
        """Return the metric with a switch on, and the error of switching."""
        made = [self._run(i, switch) for i in range(self._about["count"])]
        if metric in METRICS:
            of = METRICS[metric]
            return of.score(zip(self._expected, made, strict=True)), of.error(
                of.score(zip(self._plain, made, strict=True))
            )
        function, plain = self._user_metric(metric)
        value = function(made)
        return value, max(0.0, plain - value)

    @cached_property
    def _expected(self) -> list[Outputs]:
        names = self._about["outputs"]
        return [self._read("expected", i, names) for i in range(self._about["count"])]

    @cached_property
    def _plain(self) -> list[Outputs]:
        return [self._run(i, NO_SWITCH) for i in range(self._about["count"])]

    def _user_metric(self, place: str) -> tuple[UserMetric, float]:
        """Return the function of a file, and what it says without any switch.

        The file is read once for each model: it may change between two.
        """
        if place not in self._metrics:
            function = load_metric(place)
            self._metrics[place] = function, function(self._plain)
        return self._metrics[place]

    def _run(self, number: int, switch: int) -> Outputs:
        feed = self._read("feed", number, self._about["inputs"])
        flags = {name: np.array(i == switch) for i, name in enumerate(self._about["switches"])}
        return self._model.run({**feed, **flags}, self._about["outputs"])

    def _read(self, kind: str, number: int, names: Sequence[str]) -> dict[str, np.ndarray]:
        with np.load(_sample(self._folder, kind, number)) as file:
            return {name: file[f"arr_{i}"] for i, name in enumerate(names)}


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays whole or not at all: tasks of another run may read the same folder."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, *arrays.values())


def _sample(folder: Path, kind: str, number: int) -> Path:
    return folder / f"{kind}{number:06d}.npz"
