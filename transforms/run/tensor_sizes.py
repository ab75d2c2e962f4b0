"""Size in bytes of a model's tensors for a feed, and of those alive at once, before it is run.

Sizes are inferred from the shapes of the feed; those that depend on its values take one run of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.graph import dtypes, walk
from transforms.graph.proto_graphs import fixed_sizes
from transforms.model.graph_proto import inferred_shapes

Sizes = dict[str, int]
Measure = Callable[[Collection[str], Feed], Mapping[str, int]]
"""Runs the model on a feed and returns the size in bytes of the float32 tensors of these names."""

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class SizesOfRun:
    """Bytes of tensors in a run: in total, and at most of those alive at once."""

    total: int
    at_once: int


Shapes = tuple[tuple[int, ...], ...]

_SMALL = 1 << 20  # bytes


def shapes_of(feed: Feed) -> Shapes:
    """Return the shapes of a sample, ordered by name."""
    return tuple(feed[name].shape for name in sorted(feed))


def is_small_feed(feed: Feed) -> bool:
    """Return whether a sample has at most 1 MiB: memory beyond its tensors may then be spent on speed."""
    return sum(array.nbytes for array in feed.values()) <= _SMALL


class TensorSizes:
    """The sizes of a main graph's inputs and computed tensors; bodies are ignored."""

    def __init__(self, graph: gs.Graph, names: Collection[str], measure: Measure) -> None:
        """Take a graph that stays unchanged; ``names``: the tensors whose sizes are summed.

        ``measure`` is called for sizes that cannot be inferred.
        """
        self._graph, self._names, self._measure = graph, names, measure
        found = walk.tensors(graph).items()
        self._made = {name: tensor for name, tensor in found if isinstance(tensor, gs.Variable)}
        self._known: dict[Shapes, SizesOfRun] = {}

    def of(self, feed: Feed) -> SizesOfRun:
        """Return the sizes for a feed, which depend only on it; raises what a run does."""
        key = shapes_of(feed)
        if key in self._known:
            return self._known[key]
        sizes = {name: array.nbytes for name, array in feed.items()} | self._declared()
        missing = self._made.keys() - sizes.keys()
        if missing:
            sizes |= _sizes_of(inferred_shapes(self._graph, feed))
            missing -= sizes.keys()
        floats = [name for name in self._made if name in missing and _is_float(self._made[name])]
        if floats:
            sizes |= self._measure(floats, feed)
        result = SizesOfRun(sum(sizes.get(name, 0) for name in self._names), self._most_alive(sizes))
        if not floats:  # else the next feed of this shape may have other sizes
            self._known[key] = result
        return result

    def _declared(self) -> Sizes:
        """Return the sizes that are the same for every feed."""
        shapes = ((name, tensor, tensor.shape) for name, tensor in self._made.items())
        return {
            name: math.prod(shape) * _item_bytes(dtypes.element_type(tensor))
            for name, tensor, shape in shapes
            if shape is not None and all(isinstance(size, int) and size >= 0 for size in shape)
        }

    def _most_alive(self, sizes: Mapping[str, int]) -> int:
        """Return the most bytes alive at once, from first to last use of tensors; inputs live throughout."""
        last: dict[str, int] = {}
        for number, node in enumerate(self._graph.nodes):
            last |= {tensor.name: number for tensor in (*node.outputs, *walk.reads(node))}
        ending: dict[int, list[str]] = {}
        for name in last.keys() & sizes.keys() - {tensor.name for tensor in self._graph.inputs}:
            ending.setdefault(last[name], []).append(name)
        alive = most = sum(sizes.get(tensor.name, 0) for tensor in self._graph.inputs)
        for number, node in enumerate(self._graph.nodes):
            alive += sum(sizes.get(tensor.name, 0) for tensor in node.outputs)
            most = max(most, alive)
            alive -= sum(sizes[name] for name in ending.get(number, ()))
        return most


def _is_float(tensor: gs.Tensor) -> bool:
    return dtypes.is_type(tensor, dtypes.FLOAT)


def _sizes_of(kinds: Mapping[str, onnx.TypeProto.Tensor]) -> Sizes:
    shapes = {name: fixed_sizes(kind) for name, kind in kinds.items()}
    return {
        name: math.prod(shape) * _item_bytes(kinds[name].elem_type)
        for name, shape in shapes.items()
        if shape is not None
    }


def _item_bytes(element: int | None) -> int:
    """Return the size of an element; types unknown to NumPy count as float32."""
    dtype = dtypes.numpy_type(element) if element else None
    return dtype.itemsize if dtype else _FLOAT_BYTES
