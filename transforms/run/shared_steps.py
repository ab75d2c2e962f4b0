"""Steps of a model run by workers: each part of the samples is a task for any process that reads a folder.

The folder holds the nodes of a step as a model, and the tensors that one step leaves to the next.
The parts depend on the number of samples alone, so what is made of them is the same whoever runs them.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx

from transforms.files import cleanup
from transforms.files.atomic_write import replacing
from transforms.files.folder_lock import locked
from transforms.graph.lazy_values import load_values
from transforms.model.detached_weights import fill
from transforms.run.instrumented_model import ShownModel
from transforms.run.run_each import with_fixed_threads
from transforms.run.segmented_model import SegmentedRun, Step
from transforms.run.tasks import KeptWorkers, TaskLog, Workers, run_tasks
from transforms.runtime.session import OpenModel, RunOptions, is_shareable, open_light

Arrays = dict[str, np.ndarray]
Visit = Callable[[Iterable[tuple[int, Mapping[str, np.ndarray]]]], Arrays]
"""Takes number and tensors of one sample of a part after another; pickled for whoever does that."""

_PARTS = 16
_LIGHT, _WEIGHTS, _ABOUT, _LOG = "nodes.onnx", "weights.npz", "about.json", "parts.jsonl"


def parts_of(count: int) -> list[range]:
    """Return the numbers of ``count`` samples in parts of one size, at most 16; the last may be smaller."""
    size = -(-count // _PARTS)
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


@dataclass(frozen=True)
class StepSharing:
    """Which ``workers`` run the steps, and a ``folder`` on disks that all of them share.

    Without a folder tensors are in a temporary one of this machine.
    """

    workers: Workers
    folder: Path | None = None


class FolderStore:
    """Arrays by sample and name in the files of a folder, for any process that reads it."""

    def __init__(self, folder: Path) -> None:
        """Make the folder, if it is not there."""
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def put(self, sample: int, name: str, array: np.ndarray) -> None:
        """Keep an array; ValueError for strings."""
        if array.dtype.hasobject:
            raise ValueError(f"tensor '{name}' holds strings, which workers cannot hand on")
        with replacing(self._path(sample, name)) as temporary, temporary.open("wb") as file:
            np.save(file, array, allow_pickle=False)

    def get(self, sample: int, name: str) -> np.ndarray:
        """Return an array that was kept."""
        return np.asarray(np.load(self._path(sample, name), allow_pickle=False))

    def drop(self, sample: int, name: str) -> None:
        """Drop an array, if it is there."""
        self._path(sample, name).unlink(missing_ok=True)

    def type(self, sample: int, name: str) -> np.dtype:
        """Return the type of an array that was kept."""
        return np.dtype(np.load(self._path(sample, name), mmap_mode="r", allow_pickle=False).dtype)

    def _path(self, sample: int, name: str) -> Path:
        return self.folder / f"{sample}-{hashlib.sha256(name.encode()).hexdigest()[:16]}.npy"


@dataclass(frozen=True)
class PartTask:
    """Samples from ``first`` to before ``end`` for a step in a folder, and what is made of its tensors."""

    folder: str
    first: int
    end: int
    visit: Visit


class SharedSteps:
    """Runs steps by workers, one step after another."""

    def __init__(self, workers: Workers, folder: Path, samples: int) -> None:
        """Take a folder of this run alone."""
        self._workers, self.folder, self._parts = workers, folder, parts_of(samples)
        self._steps = 0

    def store(self, name: str) -> FolderStore:
        """Return the store of a model, or of what else is kept."""
        return FolderStore(self.folder / name)

    def run(
        self,
        model: SegmentedRun,
        store: FolderStore,
        names: list[str],
        visit: Visit,
        *,
        last: bool = False,
    ) -> Iterator[Arrays]:
        """Yield what ``visit`` makes of tensors of these names, part by part, after running what they need.

        ``last``: as of :meth:`SegmentedRun.advance`. Raises ValueError if workers die again and again.
        """
        step = model.begin(names, last=last)
        folder = self.folder / f"step-{self._steps}"
        self._steps += 1
        folder.mkdir()
        _write(folder, step, model.show(step) if step.nodes else None, model.options, store)
        tasks = {
            f"samples {part.start} to {part.stop - 1}": PartTask(str(folder), part.start, part.stop, visit)
            for part in self._parts
        }
        try:
            done = run_tasks(run_part, tasks, self._workers, TaskLog(folder / _LOG))
        finally:
            _open.cache_clear()
        kept = {name: store.type(0, name) for name in step.needed & step.made}
        model.end(step, kept, int(max(size for (size,) in done.values())))
        for part in self._parts:
            with np.load(folder / _result(part.start), allow_pickle=False) as file:
                yield {name: file[name] for name in file.files}
        shutil.rmtree(folder)


@contextmanager
def open_steps(sharing: StepSharing, samples: int) -> Iterator[SharedSteps]:
    """Hold workers and a new folder for the steps of a run; tensors in it are removed at the end."""
    with ExitStack() as opened:
        if sharing.folder is None:
            folder = opened.enter_context(cleanup.temporary_folder())
        else:
            folder = opened.enter_context(_folder_in(sharing.folder))
        yield SharedSteps(opened.enter_context(KeptWorkers(sharing.workers)), folder, samples)


@contextmanager
def _folder_in(parent: Path) -> Iterator[Path]:
    """Yield a new folder; those that a killed process has left beside it are removed."""
    parent.mkdir(parents=True, exist_ok=True)
    with locked(parent, 0) as alone:
        for left in parent.glob("steps-*") if alone else ():
            shutil.rmtree(left, ignore_errors=True)
        folder = parent.resolve() / f"steps-{secrets.token_hex(8)}"
        with cleanup.noted(folder):
            folder.mkdir()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def run_part(task: PartTask) -> tuple[float, ...]:
    """Run the samples of a part, and write what is made of them; returns the most bytes that one takes."""
    opened, most = _open(task.folder), 0

    def _samples() -> Iterator[tuple[int, Arrays]]:
        nonlocal most
        for sample in range(task.first, task.end):
            found = opened.run(opened.step.feed(sample, opened.store))
            asked, size = opened.step.keep(sample, found, opened.store)
            most = max(most, size)
            yield sample, asked

    made = task.visit(_samples())
    with replacing(Path(task.folder) / _result(task.first)) as temporary, temporary.open("wb") as file:
        np.savez(file, **made)  # type: ignore[arg-type]
    return (float(most),)


def pass_on(samples: Iterable[tuple[int, Mapping[str, np.ndarray]]]) -> Arrays:
    """Run samples for what the step leaves to later ones alone."""
    for _ in samples:
        pass
    return {}


@dataclass(frozen=True)
class _OpenStep:
    step: Step
    store: FolderStore
    model: OpenModel | None
    places: Mapping[str, str]

    def run(self, feed: Arrays) -> Arrays:
        if self.model is None:
            return {}
        made = self.model.run(feed, list(self.places.values()))
        return {name: made[place] for name, place in self.places.items()}


def _write(
    folder: Path, step: Step, model: ShownModel[str] | None, run: RunOptions | None, store: FolderStore
) -> None:
    """Write what tasks need; kinds of weights that NumPy's files do not have go into the model."""
    about = {
        "names": step.names,
        "inputs": list(step.inputs),
        "needed": sorted(step.needed & step.made),
        "run": asdict(with_fixed_threads(run)),
        "store": str(store.folder),
    }
    if model is not None:
        arrays = {name: load_values(values) for name, values in model.weights.items()}
        fill(model.light, {name: array for name, array in arrays.items() if not is_shareable(array)})
        apart = {name: array for name, array in arrays.items() if is_shareable(array)}
        about |= {"places": dict(model.places), "weights": list(apart)}
        np.savez(folder / _WEIGHTS, *apart.values())
        (folder / _LIGHT).write_bytes(model.light.SerializeToString())
    (folder / _ABOUT).write_text(json.dumps(about), encoding="utf-8")


@lru_cache(maxsize=1)
def _open(name: str) -> _OpenStep:
    """Return the step in a folder; no two have the same."""
    folder = Path(name)
    about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
    inputs = dict.fromkeys(about["inputs"], np.dtype(np.float32))  # types matter to its writer alone
    step = Step(tuple(about["names"]), [], inputs, frozenset(), frozenset(about["needed"]), ())
    store, places = FolderStore(Path(about["store"])), about.get("places", {})
    if not places:
        return _OpenStep(step, store, None, places)
    with np.load(folder / _WEIGHTS, allow_pickle=False) as file:
        weights = {name: file[f"arr_{i}"] for i, name in enumerate(about["weights"])}
    light = onnx.load_model_from_string((folder / _LIGHT).read_bytes())
    return _OpenStep(step, store, open_light(light, weights, RunOptions(**about["run"])), places)


def _result(first: int) -> str:
    return f"part-{first}.npz"
