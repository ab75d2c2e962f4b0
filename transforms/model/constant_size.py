"""The size of the constants that folding would make, computed without making them.

ONNX Runtime computes every node whose inputs are constant when a model is opened. Sizes come from shape
inference; where a size hangs on values that inference does not follow, the few small nodes before it are
run.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import count

import numpy as np
import onnx

from transforms.model.read_model import ModelError

LARGEST = 1 << 29
"""Bytes of one constant: a mask of 8192 x 16384 in float32 still passes."""

ALL = 1 << 32
"""Bytes of all constants of a model, intermediate ones included."""

GROWTH = 8
"""A constant that is this many times what it is made from passes at any size: weights of one byte become
float64."""

_SMALL = 1 << 20
"""Bytes up to which values are computed to know a size: shapes and scalars need a few."""

_BEYOND = 1 << 62  # elements that no array has

_RANDOM = frozenset({"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli"})
_SIZED_BY_VALUE = frozenset(
    {"Range", "ConstantOfShape", "Expand", "Tile", "OneHot", "Pad", "Resize", "Upsample"}
)
_SHAPED_BY_VALUE = _SIZED_BY_VALUE | {"Reshape", "Slice", "Squeeze", "Unsqueeze"}

_Source = onnx.TensorProto | onnx.NodeProto | None
"""What makes a constant; None for one whose values are not at hand."""


def count_constants(model: onnx.ModelProto, weights: Collection[str] = ()) -> int:
    """Return how many elements the vectors of known length have that nodes read, each time that one is read.

    Raises ModelError, naming the node, when folding the constants of a model would take too much memory. The
    model has no local functions, and shapes from an inference that follows no values: what that does with
    long vectors takes memory of its own. ``weights`` are the inputs that are initializers without their data.
    """
    counted = _Count(model)
    counted.limit = max(ALL, GROWTH * counted.add_initializers(model.graph, weights))
    counted.walk(model.graph)
    return counted.vectors


class _Count:
    """The constants seen so far, in this graph and those around it, and what they come to."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.limit = ALL
        self.vectors = 0
        self._model = model
        self._sources: ChainMap[str, _Source] = ChainMap()
        self._types: ChainMap[str, onnx.TypeProto.Tensor] = ChainMap()
        self._places: dict[int, int] = {}  # of nodes in the order of the model
        self._place = count()
        self._bytes = 0

    def add_initializers(self, graph: onnx.GraphProto, weights: Collection[str] = ()) -> int:
        """Take the initializers of a graph as constants; return their bytes."""
        self._sources.update(dict.fromkeys(weights))
        for value in (*graph.value_info, *graph.output, *graph.input):
            self._types[value.name] = value.type.tensor_type
        for tensor in graph.initializer:
            self._sources[tensor.name] = tensor
            self._types[tensor.name] = _type(tensor.data_type, tensor.dims)
        for sparse in graph.sparse_initializer:
            self._sources[sparse.values.name] = None
            self._types[sparse.values.name] = _type(sparse.values.data_type, sparse.dims)
        names = {*weights, *(tensor.name for tensor in graph.initializer)}
        return sum(_num_bytes(self._type_of(name)) or 0 for name in names)

    def walk(self, graph: onnx.GraphProto) -> None:
        """Count the constants that the nodes of a graph make, and the nodes of their bodies."""
        for node in graph.node:
            self._places[id(node)] = next(self._place)
            self.vectors += sum(map(self._vector_elements, node.input))
            bodies = [a.g for a in node.attribute if a.HasField("g")]
            for body in bodies:
                self._walk_inside(body)
            if not bodies:
                self._add(node)

    def _vector_elements(self, name: str) -> int:
        kind = self._type_of(name)
        if kind is None or len(kind.shape.dim) != 1:
            return 0
        return max(kind.shape.dim[0].dim_value, 0)

    def _type_of(self, name: str) -> onnx.TypeProto.Tensor | None:
        for types in self._types.maps:  # as its get() would, in a fifth of the time
            if name in types:
                return types[name]
        return None

    def _walk_inside(self, body: onnx.GraphProto) -> None:
        sources, types = self._sources, self._types
        self._sources, self._types = sources.new_child(), types.new_child()
        self.add_initializers(body)
        self.walk(body)
        self._sources, self._types = sources, types

    def _add(self, node: onnx.NodeProto) -> None:
        inputs = [name for name in node.input if name]
        if not inputs and node.op_type != "Constant":
            return
        if node.op_type in ("Shape", "Size") and (dims := _dims(self._types.get(node.input[0]))) is not None:
            self._sources[node.output[0]] = _shape_value(node, dims)
        elif all(name in self._sources for name in inputs) and node.op_type not in _RANDOM:
            self._count(node, sum(_num_bytes(self._types.get(name)) or 0 for name in inputs))
            self._sources.update((name, node) for name in node.output if name)

    def _count(self, node: onnx.NodeProto, taken: int) -> None:
        what = f"node '{node.name or node.output[0]}' ({node.op_type})"
        for name in filter(None, node.output):
            size = _num_bytes(self._types.get(name))
            if size is None:
                size = self._resolve(node, name, what)
            if size > max(LARGEST, GROWTH * taken) and node.op_type != "Constant":
                raise ModelError(
                    f"{what} makes a constant of {size:,} bytes, at most {LARGEST:,} are computed"
                )
            self._bytes += size
            if self._bytes > self.limit:
                raise ModelError(
                    f"{what}: constants up to here come to {self._bytes:,} bytes, at most {self.limit:,} are "
                    "computed"
                )

    def _resolve(self, node: onnx.NodeProto, name: str, what: str) -> int:
        """Return the bytes of a constant whose size inference did not find; 0 if it cannot matter."""
        inputs = [n for n in node.input if n]
        ready = {n: s for n in inputs if isinstance(s := self._sources.get(n), onnx.TensorProto)}
        known = self._infer(node, name, ready)
        if _num_bytes(known) is None and node.op_type in _SHAPED_BY_VALUE:
            arrays = self._values(inputs)
            ready = {n: onnx.numpy_helper.from_array(array, n) for n, array in arrays.items()}
            known = _range_type(node, arrays) if node.op_type == "Range" else self._infer(node, name, ready)
        size = _num_bytes(known)
        if size is None and node.op_type in _SIZED_BY_VALUE:
            raise ModelError(f"{what} makes a constant whose size cannot be told beforehand")
        self._types[name] = known
        return size or 0

    def _infer(
        self, node: onnx.NodeProto, name: str, ready: dict[str, onnx.TensorProto]
    ) -> onnx.TypeProto.Tensor:
        """Return the type that inference gives an output of one node on the constants that are ready."""
        rest = {n: self._types[n] for n in node.input if n and n not in ready and n in self._types}
        inputs = [onnx.ValueInfoProto(name=n, type=onnx.TypeProto(tensor_type=t)) for n, t in rest.items()]
        alone = _model([node], list(ready.values()), [name], self._model, inputs)
        try:
            return onnx.shape_inference.infer_shapes(alone).graph.output[0].type.tensor_type
        except onnx.shape_inference.InferenceError:
            return onnx.TypeProto.Tensor()

    def _values(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the values of those of some constants that are small, and made of small ones.

        All at once, or one by one if the runtime cannot compute one of them, as bfloat16 without a kernel.
        """
        try:
            found = self._computed(names)
        except Exception:  # the runtime's share no narrower class; the model may be wrong anyway
            found = {}
            for name in names:
                with suppress(Exception):
                    found |= self._computed([name])
        for name, array in found.items():
            self._sources[name] = onnx.numpy_helper.from_array(array, name)
        return found

    def _computed(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        nodes: dict[int, onnx.NodeProto] = {}
        tensors: dict[str, onnx.TensorProto] = {}
        small = [name for name in names if self._collect(name, nodes, tensors)]
        ordered = sorted(nodes.values(), key=lambda node: self._places[id(node)])
        return _run(ordered, tensors, small, self._model)

    def _collect(
        self, name: str, nodes: dict[int, onnx.NodeProto], tensors: dict[str, onnx.TensorProto]
    ) -> bool:
        """Add what a constant is made of, nodes by their id; return False, adding nothing, if it is large."""
        found: dict[int, onnx.NodeProto] = {}
        stored: dict[str, onnx.TensorProto] = {}
        waiting = [name]
        while waiting:
            name = waiting.pop()
            source = self._sources.get(name)
            if source is None or (_num_bytes(self._types.get(name)) or 0) > _SMALL:
                return False
            if isinstance(source, onnx.TensorProto):
                stored[name] = source
            elif id(source) not in found:
                found[id(source)] = source
                waiting += [n for n in source.input if n]
        nodes |= found
        tensors |= stored
        return True


def _run(
    nodes: list[onnx.NodeProto],
    tensors: dict[str, onnx.TensorProto],
    names: list[str],
    model: onnx.ModelProto,
) -> dict[str, np.ndarray]:
    """Compute constants from constants, each of them small."""
    from transforms.model.quiet_settings import compute

    found = {name: onnx.numpy_helper.to_array(tensors[name]) for name in names if name in tensors}
    rest = [name for name in dict.fromkeys(names) if name not in tensors]
    if not rest:
        return found
    small = _model(nodes, [_renamed(tensor, name) for name, tensor in tensors.items()], rest, model)
    return found | compute(small, rest)


def _model(
    nodes: list[onnx.NodeProto],
    tensors: list[onnx.TensorProto],
    outputs: Iterable[str],
    like: onnx.ModelProto,
    inputs: Iterable[onnx.ValueInfoProto] = (),
) -> onnx.ModelProto:
    ends = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = onnx.helper.make_graph(nodes, "constants", list(inputs), ends, tensors)
    return onnx.ModelProto(graph=graph, opset_import=like.opset_import, ir_version=like.ir_version)


def _renamed(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    if tensor.name == name:
        return tensor
    other = onnx.TensorProto()
    other.CopyFrom(tensor)
    other.name = name
    return other


def _range_type(node: onnx.NodeProto, arrays: dict[str, np.ndarray]) -> onnx.TypeProto.Tensor:
    """Return the type of a Range, also of arrays of one element, which the runtime takes for scalars."""
    values = [arrays.get(name, np.empty(0)).reshape(-1) for name in node.input[:3]]
    if any(value.size != 1 for value in values) or not values[2].any():
        return onnx.TypeProto.Tensor()
    start, stop, step = (float(value[0]) for value in values)
    count = (stop - start) / step
    size = math.ceil(max(count, 0)) if abs(count) < _BEYOND else _BEYOND
    return _type(onnx.helper.np_dtype_to_tensor_dtype(values[0].dtype), [size])


def _shape_value(node: onnx.NodeProto, dims: list[int]) -> onnx.TensorProto:
    ends = {a.name: a.i for a in node.attribute}
    kept = dims[ends.get("start") : ends.get("end")]
    values = np.array(kept if node.op_type == "Shape" else math.prod(dims), np.int64)
    return onnx.numpy_helper.from_array(values, node.output[0])


def _type(data_type: int, dims: Iterable[int]) -> onnx.TypeProto.Tensor:
    return onnx.helper.make_tensor_type_proto(data_type, list(dims)).tensor_type


def _dims(kind: onnx.TypeProto.Tensor | None) -> list[int] | None:
    """Return the sizes of a tensor; None unless all are known."""
    if kind is None or not kind.HasField("shape"):
        return None
    sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim]
    return None if min(sizes, default=0) < 0 else sizes


def _num_bytes(kind: onnx.TypeProto.Tensor | None) -> int | None:
    dims = _dims(kind)
    if dims is None or kind is None:
        return None
    try:
        return math.prod(dims) * onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
    except (KeyError, TypeError):
        return math.prod(dims) * 8  # an unknown type: not smaller than any other
