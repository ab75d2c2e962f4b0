"""Compute the size of the constants that folding would create, without creating them.

ONNX Runtime computes every node with constant inputs when a model is opened. Sizes come from shape
inference; if a size depends on values that inference does not follow, the few small nodes before it are run.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Collection, Iterable

import numpy as np
import onnx

from transforms.graph.dtypes import numpy_type
from transforms.graph.proto_graphs import bodies, fixed_sizes
from transforms.graph.schemas import RANDOM
from transforms.model.model_error import ModelError
from transforms.model.quiet_settings import compute

LARGEST = 1 << 29
"""Bytes of one constant: a mask of 8192 x 16384 in float32 is still accepted."""

ALL = 1 << 32
"""Bytes of all constants of a model, with intermediates, which the runtime keeps until all are computed."""

GROWTH = 8
"""Ratio to its inputs up to which a constant may have any size: weights of one byte become float64."""

_SMALL = 1 << 20
"""Bytes up to which values are computed to determine a size: shapes and scalars need few."""

_OPEN = onnx.TypeProto.Tensor()
_BEYOND = 1 << 62  # more elements than any array has

_GROWING = {
    **{"Range": (0, 1, 2), "ConstantOfShape": (0,), "Expand": (1,), "Tile": (1,), "OneHot": (1,)},
    **{"Pad": (1,), "Resize": (2, 3), "Upsample": (1,)},
}
"""Operators whose output size is given by values, and the inputs with these values."""

_RESHAPING = {"Reshape": (1,), "Slice": (1, 2, 3, 4), "Squeeze": (1,), "Unsqueeze": (1,)}


def count_constants(model: onnx.ModelProto, weights: Collection[str] = ()) -> int:
    """Return the total elements of vectors of known length that nodes read, each counted per read.

    Raises ModelError, naming the node, if folding the constants of a model would take too much memory. The
    model has no local functions, and its shapes come from inference that follows no values: with long
    vectors that would take memory itself. ``weights`` are the inputs that stand for initializers without
    data.
    """
    counted = _Constants(model)
    counted.limit = max(ALL, GROWTH * counted.add_initializers(model.graph, weights))
    counted.walk(model.graph)
    return counted.vectors


class _Constants:
    """The constants found so far, in this graph and enclosing ones, and their total size."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.limit, self.vectors = ALL, 0
        self._model, self._bytes = model, 0
        self._makers: ChainMap[str, onnx.TensorProto | onnx.NodeProto | None] = ChainMap()
        """What makes each constant; None for one whose values are not there."""
        self._places: dict[int, int] = {}  # of nodes, in the model's order
        self._types: ChainMap[str, onnx.TypeProto.Tensor] = ChainMap()

    def add_initializers(self, graph: onnx.GraphProto, weights: Collection[str] = ()) -> int:
        """Register the initializers of a graph as constants; return their bytes."""
        self._makers.update(dict.fromkeys(weights))
        for value in (*graph.value_info, *graph.output, *graph.input):
            self._types[value.name] = value.type.tensor_type
        for tensor in graph.initializer:
            self._makers[tensor.name] = tensor
            self._types[tensor.name] = _type(tensor.data_type, tensor.dims)
        for sparse in graph.sparse_initializer:
            self._makers[sparse.values.name] = None
            self._types[sparse.values.name] = _type(sparse.values.data_type, sparse.dims)
        names = {*weights, *(tensor.name for tensor in graph.initializer)}
        return sum(_num_bytes(self._types.get(name)) or 0 for name in names)

    def walk(self, graph: onnx.GraphProto) -> None:
        """Count the constants computed by the nodes of a graph and of their bodies."""
        for node in graph.node:
            self._places[id(node)] = len(self._places)
            self.vectors += sum(map(self._vector_elements, node.input))
            inner = bodies(node)
            for body in inner:
                outer = self._makers, self._types
                self._makers, self._types = self._makers.new_child(), self._types.new_child()
                self.add_initializers(body)
                self.walk(body)
                self._makers, self._types = outer
            if not inner:
                self._add(node)

    def _vector_elements(self, name: str) -> int:
        for types in self._types.maps:  # the same as its get(), in a fifth of the time
            if name in types:
                sizes = types[name].shape.dim
                return max(sizes[0].dim_value, 0) if len(sizes) == 1 else 0
        return 0

    def _add(self, node: onnx.NodeProto) -> None:
        inputs = [name for name in node.input if name]
        if (
            node.op_type in ("Shape", "Size")
            and (dims := fixed_sizes(self._types.get(node.input[0], _OPEN))) is not None
        ):
            self._makers[node.output[0]] = _shape_value(node, dims)
        elif not inputs and node.op_type != "Constant":
            return
        elif all(name in self._makers for name in inputs) and node.op_type not in RANDOM:
            taken = sum(_num_bytes(self._types.get(name)) or 0 for name in inputs)
            for name in filter(None, node.output):
                self._count(node, name, taken)
                self._makers[name] = node

    def _count(self, node: onnx.NodeProto, name: str, taken: int) -> None:
        described = f"node '{node.name or node.output[0]}' ({node.op_type})"
        size = _num_bytes(self._types.get(name))
        if size is None:
            self._types[name] = self._resolve(node, name)
            size = _num_bytes(self._types[name])
        if size is None and node.op_type in _GROWING:
            raise ModelError(f"{described} makes a constant whose size cannot be told beforehand")
        size = size or 0  # of its inputs, which were counted
        if size > max(LARGEST, GROWTH * taken) and node.op_type != "Constant":
            raise ModelError(
                f"{described} makes a constant of {size:,} bytes, at most {LARGEST:,} are computed"
            )
        self._bytes += size
        if self._bytes > self.limit:
            raise ModelError(
                f"{described}: constants up to here come to {self._bytes:,} bytes, at most {self.limit:,} "
                "are computed"
            )

    def _resolve(self, node: onnx.NodeProto, name: str) -> onnx.TypeProto.Tensor:
        """Return the type of a constant that inference left open, from the values that determine its size."""
        places = {**_GROWING, **_RESHAPING}.get(node.op_type, ())
        asked = [node.input[place] for place in places if place < len(node.input) and node.input[place]]
        arrays = self._values(asked)
        if node.op_type == "Range":
            return _range_type([arrays.get(input_name, np.empty(0)) for input_name in asked])
        tensors = [onnx.numpy_helper.from_array(array, input_name) for input_name, array in arrays.items()]
        rest = [
            input_name for input_name in node.input if input_name in self._types and input_name not in arrays
        ]
        inputs = [onnx.ValueInfoProto(name=n, type=onnx.TypeProto(tensor_type=self._types[n])) for n in rest]
        alone = self._part([node], tensors, [name], inputs)
        try:
            return onnx.shape_inference.infer_shapes(alone).graph.output[0].type.tensor_type
        except onnx.shape_inference.InferenceError:
            return onnx.TypeProto.Tensor()

    def _values(self, names: list[str]) -> dict[str, np.ndarray]:
        """Return the values of constants computed from small ones; empty if one of them is not."""
        nodes: dict[int, onnx.NodeProto] = {}
        stored: dict[str, onnx.TensorProto] = {}
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            maker = self._makers.get(name)
            if maker is None or (_num_bytes(self._types.get(name)) or 0) > _SMALL:
                return {}
            if isinstance(maker, onnx.TensorProto):
                stored[name] = onnx.TensorProto()
                stored[name].CopyFrom(maker)
                stored[name].name = name
            elif id(maker) not in nodes:
                nodes[id(maker)] = maker
                waiting += [source for source in maker.input if source]
        stored_arrays = {name: onnx.numpy_helper.to_array(stored[name]) for name in names if name in stored}
        rest = [name for name in names if name not in stored]
        if not rest:
            return stored_arrays
        ordered = sorted(nodes.values(), key=lambda node: self._places[id(node)])
        try:
            computed = compute(self._part(ordered, list(stored.values()), rest), rest)
        except Exception:  # the runtime's exceptions share no narrower class; the model may be invalid anyway
            return stored_arrays
        for name, array in computed.items():
            self._makers[name] = onnx.numpy_helper.from_array(array, name)
        return stored_arrays | computed

    def _part(
        self,
        nodes: list[onnx.NodeProto],
        tensors: list[onnx.TensorProto],
        outputs: list[str],
        inputs: Iterable[onnx.ValueInfoProto] = (),
    ) -> onnx.ModelProto:
        ends = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = onnx.helper.make_graph(nodes, "constants", list(inputs), ends, tensors)
        like = self._model
        return onnx.ModelProto(graph=graph, opset_import=like.opset_import, ir_version=like.ir_version)


def _range_type(arrays: list[np.ndarray]) -> onnx.TypeProto.Tensor:
    """Return the type of a Range, also for arrays of one element, which the runtime accepts as scalars."""
    if any(array.size != 1 for array in arrays) or not arrays[2].any():
        return onnx.TypeProto.Tensor()
    start, stop, step = (float(array.reshape(-1)[0]) for array in arrays)
    count = (stop - start) / step
    size = math.ceil(max(count, 0)) if abs(count) < _BEYOND else _BEYOND
    return _type(onnx.helper.np_dtype_to_tensor_dtype(arrays[0].dtype), [size])


def _shape_value(node: onnx.NodeProto, dims: list[int]) -> onnx.TensorProto:
    ends = {a.name: a.i for a in node.attribute}
    kept = dims[ends.get("start") : ends.get("end")]
    values = np.array(kept if node.op_type == "Shape" else math.prod(dims), np.int64)
    return onnx.numpy_helper.from_array(values, node.output[0])


def _type(data_type: int, dims: Iterable[int]) -> onnx.TypeProto.Tensor:
    return onnx.helper.make_tensor_type_proto(data_type, list(dims)).tensor_type


def _num_bytes(kind: onnx.TypeProto.Tensor | None) -> int | None:
    dims = fixed_sizes(kind) if kind else None
    if dims is None or kind is None:
        return None
    dtype = numpy_type(kind.elem_type)
    return math.prod(dims) * (dtype.itemsize if dtype else 8)  # an unknown type: the largest element
