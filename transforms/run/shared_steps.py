"""Steps of a model run by workers: each part of the samples is a task for any process that reads a folder.

The folder holds the nodes of a step as a model, and the tensors that one step leaves to the next.
The parts depend on the number of samples alone, so what is made of them is the same whoever runs them.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx

from transforms.files import cleanup
from transforms.files.folder_lock import locked
from transforms.graph.lazy_values import load_values
from transforms.model.detached_weights import fill
from transforms.run.folder_store import FolderStore, parts_of, read_arrays, write_arrays
from transforms.run.instrumented_model import ShownModel
from transforms.run.run_each import with_fixed_threads
from transforms.run.segmented_model import SegmentedRun, Step
from transforms.run.tasks import KeptWorkers, TaskLog, Workers, run_tasks
from transforms.runtime.session import OpenModel, RunOptions, open_light
from transforms.runtime.shared_arrays import is_shareable

Arrays = dict[str, np.ndarray]
Visit = Callable[[Iterable[tuple[int, Mapping[str, np.ndarray]]]], Arrays]
"""Takes number and tensors of one sample of a part after another; pickled for whoever does that."""

_LIGHT, _WEIGHTS, _ABOUT = "nodes.onnx", "weights", "about.json"


@dataclass(frozen=True)
class StepSharing:
    """Which ``workers`` run the steps, and a ``folder`` on disks that all of them share.

    Without a folder tensors are in a temporary one of this machine.
    """

    workers: Workers
    folder: Path | None = None


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
        self._workers, self._folder, self._parts = workers, folder, parts_of(samples)
        self._steps = 0

    def store(self, name: str) -> FolderStore:
        """Return the store of a model, or of what else is kept."""
        return FolderStore(self._folder / name, len(self._parts[0]))

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
        store.commit()
        folder = self._folder / f"step-{self._steps}"
        self._steps += 1
        folder.mkdir()
        _write(folder, step, model.show(step) if step.nodes else None, model.options, store)
        tasks = {
            f"samples {part.start} to {part.stop - 1}": PartTask(str(folder), part.start, part.stop, visit)
            for part in self._parts
        }
        try:
            done = run_tasks(run_part, tasks, self._workers, TaskLog(None))
        finally:
            _open.cache_clear()
        kept = {name: model.type_of(name, store.get(0, name)) for name in step.needed & step.made}
        store.commit()
        model.end(step, kept, int(max(size for (size,) in done.values())))
        for part in self._parts:
            made = folder / _result(part.start)
            yield read_arrays(made) if made.exists() else {}
        shutil.rmtree(folder)


@contextmanager
def kept_open(sharing: StepSharing | None) -> Iterator[StepSharing | None]:
    """Yield the same with workers that stay open until the end of the block."""
    if sharing is None:
        yield None
        return
    with KeptWorkers(sharing.workers) as workers:
        yield replace(sharing, workers=workers)


@contextmanager
def open_steps(sharing: StepSharing, samples: int) -> Iterator[SharedSteps]:
    """Hold workers and a new folder for the steps of a run; tensors in it are removed at the end."""
    with ExitStack() as opened:
        if sharing.folder is None:
            folder = opened.enter_context(cleanup.temporary_folder())
        else:
            folder = opened.enter_context(_folder_in(sharing.folder))
        yield SharedSteps(opened.enter_context(KeptWorkers(sharing.workers)), folder, samples)


def remove_left(parent: Path) -> None:
    """Remove what killed processes have left in a folder of :class:`StepSharing`, unless another uses it."""
    with locked(parent, 0) as alone:
        for left in parent.glob("steps-*") if alone else ():
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _folder_in(parent: Path) -> Iterator[Path]:
    """Yield a new folder."""
    parent.mkdir(parents=True, exist_ok=True)
    remove_left(parent)
    with locked(parent, 0):
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
    store = FolderStore(opened.tensors, opened.size)

    def _samples() -> Iterator[tuple[int, Arrays]]:
        nonlocal most
        for sample in range(task.first, task.end):
            found = opened.run(opened.step.feed(sample, store))
            asked, size = opened.step.keep(sample, found, store)
            most = max(most, size)
            yield sample, asked

    made = task.visit(_samples())
    if made:
        write_arrays(Path(task.folder) / _result(task.first), made)
    store.commit()
    return (float(most),)


def pass_on(samples: Iterable[tuple[int, Mapping[str, np.ndarray]]]) -> Arrays:
    """Run samples for what the step leaves to later ones alone."""
    for _ in samples:
        pass
    return {}


@dataclass(frozen=True)
class _OpenStep:
    step: Step
    tensors: Path
    size: int
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
        "run": asdict(replace(with_fixed_threads(run), spin=False)),  # other workers need the cores
        "tensors": str(store.folder),
        "size": store.size,
    }
    if model is not None:
        arrays = {name: load_values(values) for name, values in model.weights.items()}
        apart = {name: array for name, array in arrays.items() if _is_writable(array)}
        fill(model.light, {name: array for name, array in arrays.items() if name not in apart})
        about |= {"places": dict(model.places)}
        write_arrays(folder / _WEIGHTS, apart)
        (folder / _LIGHT).write_bytes(model.light.SerializeToString())
    (folder / _ABOUT).write_text(json.dumps(about), encoding="utf-8")


def _is_writable(array: np.ndarray) -> bool:
    """Return whether NumPy's files keep the type of an array that the runtime can read: not bfloat16."""
    return is_shareable(array) and array.dtype.kind != "V"


@lru_cache(maxsize=1)
def _open(name: str) -> _OpenStep:
    """Return the step in a folder; no two have the same."""
    folder = Path(name)
    about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
    inputs = dict.fromkeys(about["inputs"], np.dtype(np.float32))  # types matter to its writer alone
    step = Step(tuple(about["names"]), [], inputs, frozenset(), frozenset(about["needed"]), ())
    tensors, size, places = Path(about["tensors"]), int(about["size"]), about.get("places", {})
    if not places:
        return _OpenStep(step, tensors, size, None, places)
    weights = {name: np.array(array) for name, array in read_arrays(folder / _WEIGHTS).items()}
    light = onnx.load_model_from_string((folder / _LIGHT).read_bytes())
    model = open_light(light, weights, RunOptions(**about["run"]), sequences=True)
    return _OpenStep(step, tensors, size, model, places)


def _result(first: int) -> str:
    return f"part-{first}"
