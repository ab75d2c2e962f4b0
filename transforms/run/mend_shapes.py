"""Correct declared shapes that no node implies, by comparing them with runs on samples.

Exporters write the shapes of the one example that they traced, such as those of an LSTM's states. Runtimes
follow the nodes and only warn; transforms of the model rely on the shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.graph.proto_graphs import sizes_of
from transforms.graph.typed import info_of
from transforms.model.graph_proto import inferred_shapes
from transforms.run.instrumented_model import InstrumentedModel
from transforms.run.run_each import with_fixed_threads
from transforms.runtime.session import RunOptions

_SAMPLES = 4
"""Samples to run: a wrong size, such as that of a batch, is wrong for nearly all of them."""


def mend_shapes(graph: gs.Graph, feeds: Iterable[Feed], options: RunOptions | None = None) -> int:
    """Clear declared sizes of a float model that runs contradict, in place; return the number of tensors.

    Sizes implied by nodes are not checked, nor tensors in bodies; a model without others is not run. The
    ``notes`` of the model get a line for each. Raises what a run raises.
    """
    claimed = _claimed(graph)
    if not claimed:
        return 0
    model = InstrumentedModel[str](graph, list(claimed), with_fixed_threads(options))
    wrong: dict[str, tuple[int, ...]] = {}
    for feed in islice(feeds, _SAMPLES):
        for name, value in model.run(feed).items():
            if isinstance(value, np.ndarray) and not fits(claimed[name].shape, value.shape):
                wrong.setdefault(name, value.shape)
    info = info_of(graph)
    for name, run_shape in wrong.items():
        declared = list(claimed[name].shape)
        info.notes.append(
            f"The declared shape of '{name}' was wrong: {declared}, a run makes {list(run_shape)}"
        )
        claimed[name].shape = _loosened(declared, run_shape)
        if name in info.outputs:
            info.outputs[name].type.tensor_type.ClearField("shape")
    return len(wrong)


def _claimed(graph: gs.Graph) -> dict[str, gs.Variable]:
    """Return the computed tensors whose declared sizes are not implied by nodes."""
    made = {str(t.name): t for node in graph.nodes for t in node.outputs if t.shape and not t.is_empty()}
    sized = {name: t for name, t in made.items() if t.type == "tensor_type" and _has_sizes(t.shape)}
    if not sized:
        return {}
    found = {name: sizes_of(kind) for name, kind in inferred_shapes(graph, {}).items()}
    return {name: t for name, t in sized.items() if not _follows(t.shape, found.get(name))}


def _has_sizes(shape: Sequence[object]) -> bool:
    return any(isinstance(size, int) for size in shape)


def _follows(shape: Sequence[object], found: Sequence[int | None] | None) -> bool:
    if found is None or len(found) != len(shape):
        return False
    return all(size == known for size, known in zip(shape, found, strict=True) if isinstance(size, int))


def fits(shape: Sequence[object], made: tuple[int, ...]) -> bool:
    """Return whether a tensor with a declared shape may have these sizes in a run."""
    if len(shape) != len(made):
        return False
    return all(size == other for size, other in zip(shape, made, strict=True) if isinstance(size, int))


def _loosened(shape: Sequence[object], made: tuple[int, ...]) -> list[object]:
    """Return a shape without the sizes that a run contradicts."""
    if len(shape) != len(made):
        return [None] * len(made)
    return [None if isinstance(a, int) and a != b else a for a, b in zip(shape, made, strict=True)]
