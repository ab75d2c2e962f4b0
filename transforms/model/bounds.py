"""Check a file for what would take ONNX Runtime unexpected memory or time, or gives wrong results."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx
from google.protobuf.message import DecodeError

from transforms import features
from transforms.files.external_file import is_inside
from transforms.files.named_file import named
from transforms.graph.dtypes import numpy_type
from transforms.graph.lazy_values import Weight
from transforms.graph.proto_graphs import each_graph, sizes_of
from transforms.model import constant_size, detached_weights, graph_proto
from transforms.model.constant_size import count_constants
from transforms.model.read_model import ModelError, parse, read, tensors

_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))

PROTOBUF_LIMIT = (1 << 31) - (1 << 20)
"""Bytes above which a model cannot be one protobuf message, with a margin for everything but weights."""


_MOST_STEPS = 64
"""Largest ratio of a weight's bytes in all steps that decode it to its stored bytes: 6 bits become some 16
arrays of four bytes."""


class Bounds(NamedTuple):
    """Results of checking a file: bytes of its initializers in runs, optimizers that a session must disable.

    ``reread``: whether a session needs the model as returned by :func:`reread`: because of weights decoded
    by our functions, which were not counted, sparse tensors in functions, or links to data in the
    model's folder, which some versions of the runtime refuse.
    """

    stored: int = 0
    unsafe: Sequence[str] = ()
    reread: bool = False


def refuse_bomb(path: Path) -> Bounds:
    """Raise ModelError, naming the file, if local functions, sparse tensors or constants expand too much.

    Other errors of a file are left to the runtime; OSError if it cannot be opened.
    """
    with named(path, ModelError):
        try:
            model = parse(path)
        except DecodeError:
            return Bounds()
        unsafe = unsafe_optimizers(model.graph)
        claimed = sum(map(_claimed, model.graph.initializer))
        is_packed = bool(features.coded_in(function.domain for function in model.functions))
        has_sparse = any(detached_weights.sparse_in_functions(model))
        if is_packed or has_sparse or _has_data_elsewhere(model, path):
            return Bounds(claimed, unsafe, reread=True)
        _refuse_constants(model, detached_weights.hollow(model))
    return Bounds(claimed, unsafe)


def _has_data_elsewhere(model: onnx.ModelProto, path: Path) -> bool:
    """Return whether data of a model are only accessible through a link in its folder, or missing."""
    entries = (entry for tensor in tensors(model) for entry in tensor.external_data)
    locations = {entry.value for entry in entries if entry.key == "location"}
    files = [path.parent / location for location in locations]
    return any(not file.is_file() or not is_inside(file, path) for file in files)


def _refuse_constants(model: onnx.ModelProto, weights: Collection[str]) -> None:
    """Raise ModelError for a model without its large weights, which is changed, if they expand too much."""
    light = graph_proto.inline(model)
    try:
        plain = onnx.shape_inference.infer_shapes(light)
    except onnx.shape_inference.InferenceError:
        return
    count_constants(plain, weights)


def reread(path: Path) -> tuple[onnx.ModelProto, dict[str, Weight]]:
    """Return a model in a file without data of large weights, and these weights, packed ones decoded.

    Sparse tensors become dense. Raises ModelError for what it cannot read, or what expands too much, OSError
    if it cannot be opened.
    """
    file = read(path)
    with named(path, ModelError):
        light, weights = detached_weights.split(file.model, file.mapped)
        _unpack(light, weights)
        detached_weights.as_initializers(light, weights)
    return light, weights


def _unpack(light: onnx.ModelProto, weights: dict[str, Weight]) -> None:
    """Decode the packed weights of a light model, in place; ModelError if they expand too much."""
    for coded in features.coded_in(function.domain for function in light.functions):
        coded.decode(light, weights)
    copy = onnx.ModelProto()
    copy.CopyFrom(light)
    _refuse_constants(copy, weights)


def refuse_unreadable(light: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
    """Raise ModelError for a light model whose file would be refused on reading.

    Only a model with many weights is counted: others cannot have large constants that come from weights.
    """
    stored = light.ByteSize() + sum(weight.nbytes for weight in weights.values())
    if stored <= constant_size.ALL // _MOST_STEPS:
        return
    copy = onnx.ModelProto()
    copy.CopyFrom(detached_weights.as_inputs(light, weights))
    try:
        _unpack(copy, dict(weights))
    except ModelError as error:
        raise ModelError(f"no tool could read what would be written: {error}") from error


def bytes_in_runs(dtype: np.dtype, size: int) -> int:
    """Return the bytes of a weight with ``size`` elements in an open model.

    The runtime computes 16-bit floats in float32, and would convert weights in advance.
    """
    return size * (4 if dtype in _HALVES else dtype.itemsize)


def _claimed(tensor: onnx.TensorProto) -> int:
    """Return the bytes of an initializer in an open model, 0 if its claim is impossible."""
    dtype = numpy_type(tensor.data_type)
    return bytes_in_runs(dtype, max(0, math.prod(tensor.dims))) if dtype else 0


_RESHAPES_WRONGLY = "MatMulAddFusion"
"""Puts a Reshape to a shape with 0 around a Gemm, although 0 there means the size of another axis."""

_ABORTS = "QDQPropagationTransformer"
"""Crashes if a body reads outputs of moves of dequantized numbers
(:mod:`transforms.requantize_captured`)."""

_TRANSPOSES_ONE = ("TransposeOptimizer", "TransposeOptimizer_CPUExecutionProvider")
"""Move a Transpose after the QuantizeLinear that reads it, and drop it where another node reads it in float:
a Where then has inputs in two layouts."""


def unsafe_optimizers(graph: onnx.GraphProto) -> list[str]:
    """Return the names of the optimizers that a session on a model must disable.

    Sizes are the declared and inferred ones: a size that is 0 only at run time does no harm.
    """
    graphs = list(each_graph(graph))
    unsafe = [_RESHAPES_WRONGLY] if any(0 in shape for inner in graphs for shape in _shapes(inner)) else []
    has_integers = any(node.op_type == "DequantizeLinear" for inner in graphs for node in inner.node)
    unsafe += [_ABORTS] if has_integers and len(graphs) > 1 else []
    return [*unsafe, *(_TRANSPOSES_ONE if has_integers and any(map(_forks_transposed, graphs)) else ())]


def _forks_transposed(graph: onnx.GraphProto) -> bool:
    """Return whether a QuantizeLinear and another node read the output of a Transpose."""
    transposed = {node.output[0] for node in graph.node if node.op_type == "Transpose"}
    quantized = {node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"} & transposed
    other_nodes = (node for node in graph.node if node.op_type != "QuantizeLinear")
    return bool(quantized) and any(name in quantized for node in other_nodes for name in node.input)


def _shapes(graph: onnx.GraphProto) -> Iterator[list[int | None]]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield sizes_of(value.type.tensor_type) or []
    yield from (list(tensor.dims) for tensor in graph.initializer)
