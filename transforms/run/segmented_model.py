"""Run a model in steps: up to one tensor, then up to the next, each node once for every sample.

Between steps the tensors that are still needed are kept, in memory up to a limit and in files beyond it.
Nodes that have not run may change meanwhile, such as the weights of layers.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.files import cleanup
from transforms.graph import dtypes, walk
from transforms.graph.lazy_values import load_values
from transforms.graph.typed import Graph, info_of
from transforms.run.instrumented_model import InstrumentedModel, show_tensors
from transforms.run.kept_arrays import ActivationStore, Value, bytes_of
from transforms.run.run_each import run_each, with_resting_threads
from transforms.run.workers import Workers
from transforms.runtime.session import OpenModel, RunOptions, open_light

_UNSTORABLE = {dtypes.BFLOAT16, int(onnx.TensorProto.INT4), int(onnx.TensorProto.UINT4)}
"""Element types without a NumPy type."""

_STEP = "step.pickle"


@dataclass(frozen=True)
class _Step:
    """Nodes that run together: the types of their ``inputs``, and the outputs to fetch."""

    nodes: list[gs.Node]
    inputs: Mapping[str, np.dtype]
    made: list[str]


class SegmentedRun:
    """A model that advances step by step through all samples."""

    def __init__(
        self,
        graph: gs.Graph,
        feeds: Sequence[Feed],
        wanted: Collection[str],
        store: ActivationStore,
        options: RunOptions | None = None,
        workers: Workers | None = None,
    ) -> None:
        """Start before the first node; ``wanted`` are all tensors that will be requested.

        ``workers`` run the steps, one sample per task, if given; otherwise this process does.

        ``largest_step`` is the most bytes of tensors that one sample takes into a step and out of it: they
        are in memory, whatever the store's limit.
        """
        self.largest_step = 0
        self._graph, self._store, self._options, self._workers = graph, store, options, workers
        self._feeds, self._count = feeds, len(feeds)
        self._done: set[int] = set()
        self._wanted = list(wanted)
        self._kept: set[str] = set()
        self._types: dict[str, np.dtype] = {}
        made = (tensor for node in graph.nodes for tensor in node.outputs)
        self._sequences = {t.name: e for t in made if (e := dtypes.sequence_element(t)) is not None}
        self._start()

    def restart(self) -> None:
        """Go back before the first node, because constants of nodes that ran have changed."""
        for name in [*self._kept]:
            self._drop(name)
        self._done.clear()
        self._start()

    def advance(self, names: Sequence[str], *, last: bool = False) -> Iterator[dict[str, np.ndarray]]:
        """Yield, sample by sample, the tensors of these names, after running what they need.

        The iterator must be exhausted. ``wanted`` names are dropped by :meth:`forget`, or at once if this is
        the ``last`` time that they are requested.
        """
        if last:
            for name in names:
                if name in self._wanted:
                    self._wanted.remove(name)
        ahead = self._ahead(set(names) - self._kept)
        self._done |= {id(node) for node in ahead}
        needed = self._needed()
        read = {name for node in ahead for name in _reads(node)}
        inputs = {name: self._types[name] for name in sorted(read & self._kept)}
        stale = [name for name in {*inputs, *names} & self._kept if name not in needed]
        shown = {tensor.name for node in ahead for tensor in node.outputs} & (needed | set(names))
        get = self._store.get
        feeds = ({name: get(i, name) for name in inputs} for i in range(self._count))
        for i, computed in enumerate(self._run(_Step(ahead, inputs, sorted(shown)), feeds)):
            held = [*computed.values(), *(get(i, name) for name in inputs if name not in computed)]
            self.largest_step = max(self.largest_step, sum(map(bytes_of, held)))
            asked = {name: computed[name] if name in computed else get(i, name) for name in names}
            for name in needed & computed.keys():
                self._store.put(i, name, computed[name])
                self._types[name] = self._type_of(name, computed[name])
            for name in stale:
                self._store.drop(i, name)
            yield asked
        self._kept = (self._kept | shown) & needed

    def _type_of(self, name: str, value: Value) -> np.dtype:
        """Return the dtype of an array, or of the arrays of a sequence, which may be empty."""
        if not isinstance(value, list):
            return value.dtype
        element = self._sequences.get(name)
        assert element is not None, f"a sequence of unknown type, '{name}', is not kept"
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element))

    def _part(self, step: _Step) -> Graph:
        return Graph(
            nodes=step.nodes,
            opset=self._graph.opset,
            import_domains=self._graph.import_domains,
            ir_version=self._graph.ir_version,
            info=info_of(self._graph),
        )

    def _run(self, step: _Step, feeds: Iterator[Feed]) -> Iterator[dict[str, Any]]:
        """Yield the outputs of a step's nodes for each feed."""
        if not step.nodes:
            yield from ({} for _ in feeds)
            return
        options, part = with_resting_threads(self._options), self._part(step)
        shown_names, sequences = step.made, self._sequences
        if self._workers is None:
            model = InstrumentedModel(part, shown_names, options, inputs=step.inputs, sequences=sequences)
            yield from run_each(model.run, feeds, self._options)
            return
        shown = show_tensors(part, shown_names, step.inputs, sequences=sequences)
        with cleanup.temporary_folder() as folder:
            weights = {name: load_values(values) for name, values in shown.weights.items()}
            content = shown.light.SerializeToString(), weights, shown.places, options
            (folder / _STEP).write_bytes(pickle.dumps(content))
            try:
                yield from self._workers.map(run_step, (StepTask(str(folder), feed) for feed in feeds))
            finally:
                _open_step.cache_clear()

    def forget(self, name: str) -> None:
        """Mark a tensor as no longer wanted, if it was."""
        if name in self._wanted:
            self._wanted.remove(name)
        if name in self._wanted or name not in self._kept:
            return
        if all(name not in _reads(node) for node in self._waiting):
            self._drop(name)

    def _drop(self, name: str) -> None:
        self._kept.discard(name)
        for i in range(self._count):
            self._store.drop(i, name)

    @property
    def _waiting(self) -> list[gs.Node]:
        """The nodes that have not run; some may have been added meanwhile."""
        return [node for node in self._graph.nodes if id(node) not in self._done]

    def _needed(self) -> set[str]:
        """Return the names that are wanted, or read by nodes that have not run."""
        return {name for node in self._waiting for name in _reads(node)} | set(self._wanted)

    def _start(self) -> None:
        needed = self._needed()
        for i, feed in enumerate(self._feeds):
            for name in needed & feed.keys():
                self._types[name] = feed[name].dtype
                self._kept.add(name)
                self._store.put(i, name, feed[name])

    def _ahead(self, names: set[str]) -> list[gs.Node]:
        """Return the waiting nodes that the tensors need, and those that read values no array can hold."""
        waiting, chosen, unstorable = self._waiting, set[int](), set[str]()
        _choose(names, waiting, chosen)
        for node in waiting:
            if unstorable and id(node) not in chosen and unstorable & _reads(node):
                chosen.add(id(node))
                _choose(_reads(node), waiting, chosen)
            if id(node) in chosen:
                unstorable |= {t.name for t in node.outputs if _is_unstorable(t)}
        return [node for node in waiting if id(node) in chosen]


@dataclass(frozen=True)
class StepTask:
    """The inputs of a step for one sample, and the folder with its nodes."""

    folder: str
    feed: Feed


def run_step(task: StepTask) -> dict[str, Any]:
    """Return the outputs of a step."""
    model, places = _open_step(task.folder)
    made = model.run(task.feed, list(places.values()))
    return {name: made[place] for name, place in places.items()}


@lru_cache(maxsize=1)
def _open_step(folder: str) -> tuple[OpenModel, dict[str, str]]:
    """Open the nodes in a folder; return also the places of outputs. Names of folders are unique."""
    light, weights, places, options = pickle.loads((Path(folder) / _STEP).read_bytes())
    return open_light(onnx.load_model_from_string(light), weights, options, sequences=True), places


def _is_unstorable(tensor: gs.Tensor) -> bool:
    """Return whether no array can hold a tensor: an optional, or an element type unknown to NumPy."""
    if isinstance(tensor, gs.Variable) and tensor.type != "tensor_type":
        return dtypes.sequence_element(tensor) in (None, *_UNSTORABLE)
    return dtypes.element_type(tensor) in _UNSTORABLE


def _choose(names: set[str], nodes: list[gs.Node], chosen: set[int]) -> None:
    """Add the ids of the nodes that compute the tensors, and of those that these need."""
    needed = set(names)
    for node in reversed(nodes):
        if any(tensor.name in needed for tensor in node.outputs):
            chosen.add(id(node))
            needed |= _reads(node)


def _reads(node: gs.Node) -> set[str]:
    """Return the names of tensors that a node reads, also in its bodies, or passes on; no constants."""
    read = {t.name for t in node.inputs if isinstance(t, gs.Variable) and t.name}
    for body in walk.bodies(node):
        inside = (t for inner in walk.graphs(body) for t in inner.outputs)
        read |= {t.name for t in (*walk.reads(node), *inside) if isinstance(t, gs.Variable) and t.name}
    return read
