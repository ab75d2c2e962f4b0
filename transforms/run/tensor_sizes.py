"""How many bytes the tensors of a model have for a feed, and how many are alive at once, before it is run.

Sizes follow from the shapes of the feed; where they depend on its numbers, one run of the model finds them.
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
"""Runs the model on a feed and returns the bytes of float32 tensors of these names."""

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class SizesOfRun:
    """Bytes of tensors in a run: of all that were asked for, and the most of any that are alive at once."""

    total: int
    at_once: int


Shapes = tuple[tuple[int, ...], ...]

_SMALL = 1 << 20  # bytes


def shapes_of(feed: Feed) -> Shapes:
    """Return the shapes of a sample, in the order of the names."""
    return tuple(feed[name].shape for name in sorted(feed))


def is_small_feed(feed: Feed) -> bool:
    """Return whether a sample takes up to 1 MiB: memory beyond its tensors may then be spent on speed."""
    return sum(array.nbytes for array in feed.values()) <= _SMALL


class TensorSizes:
    """The sizes of tensors of the main graph that nodes make or that are fed; bodies are left out."""

    def __init__(self, graph: gs.Graph, names: Collection[str], measure: Measure) -> None:
        """Look at a graph that stays as it is; ``names``: the tensors whose sizes are added up.

        ``measure`` is asked for sizes that follow from no shape.
        """
        self._graph, self._names, self._measure = graph, names, measure
        found = walk.tensors(graph).items()
        self._made = {name: tensor for name, tensor in found if isinstance(tensor, gs.Variable)}
        self._known: dict[Shapes, SizesOfRun] = {}

    def of(self, feed: Feed) -> SizesOfRun:
        """Return the bytes for a feed, which depend on nothing but that; raises what a run does."""
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
        found = SizesOfRun(sum(sizes.get(name, 0) for name in self._names), self._most_alive(sizes))
        if not floats:  # else it may be another for the next feed of this shape
            self._known[key] = found
        return found

    def _declared(self) -> Sizes:
        """Return the sizes that every feed has."""
        shapes = ((name, tensor, tensor.shape) for name, tensor in self._made.items())
        return {
            name: math.prod(shape) * _item_bytes(dtypes.element_type(tensor))
            for name, tensor, shape in shapes
            if shape is not None and all(isinstance(size, int) and size >= 0 for size in shape)
        }

    def _most_alive(self, sizes: Mapping[str, int]) -> int:
        """Return the most bytes between the first and the last use of tensors, inputs being there always."""
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
    """Return the bytes of an element; of types that NumPy has not, those of a float."""
    dtype = dtypes.numpy_type(element) if element else None
    return dtype.itemsize if dtype else _FLOAT_BYTES
