"""What ONNX Runtime would read into more memory, or longer, than a file lets expect, or get wrong."""

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
"""Bytes above which a model cannot be one protobuf message, with room for what surrounds the weights."""


_MOST_STEPS = 64
"""Times of its stored bytes that a weight takes in all steps that make it, at most: 6 bits become some 16
arrays of four bytes."""


class Bounds(NamedTuple):
    """What a file comes to: bytes of its initializers in runs, optimizers that a session is to leave out.

    ``reread``: whether a session needs the model as :func:`reread` returns it: for weights that functions
    made here decode, which nothing has counted, sparse tensors in functions, or data to which links in the
    model's folder lead, which some versions of the runtime refuse.
    """

    stored: int = 0
    unsafe: Sequence[str] = ()
    reread: bool = False


def refuse_bomb(path: Path) -> Bounds:
    """Raise ModelError, naming the file, for what local functions, sparse tensors or constants come to.

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
    """Return whether data of a model lie where only a link in its folder leads to, or nowhere."""
    entries = (entry for tensor in tensors(model) for entry in tensor.external_data)
    locations = {entry.value for entry in entries if entry.key == "location"}
    files = [path.parent / location for location in locations]
    return any(not file.is_file() or not is_inside(file, path) for file in files)


def _refuse_constants(model: onnx.ModelProto, weights: Collection[str]) -> None:
    """Raise ModelError for a model, which is changed, without its large weights that come to too much."""
    light = graph_proto.inline(model)
    try:
        plain = onnx.shape_inference.infer_shapes(light)
    except onnx.shape_inference.InferenceError:
        return
    count_constants(plain, weights)


def reread(path: Path) -> tuple[onnx.ModelProto, dict[str, Weight]]:
    """Return a model in a file without data of large weights, and those, packed ones as they are decoded.

    Sparse tensors are dense. Raises ModelError for what it cannot read, or what comes to too much, OSError if
    it cannot be opened.
    """
    file = read(path)
    with named(path, ModelError):
        light, weights = detached_weights.split(file.model, file.mapped)
        _unpack(light, weights)
        detached_weights.as_initializers(light, weights)
    return light, weights


def _unpack(light: onnx.ModelProto, weights: dict[str, Weight]) -> None:
    """Decode the packed weights of a light model, in place; ModelError for what it then comes to."""
    for coded in features.coded_in(function.domain for function in light.functions):
        coded.decode(light, weights)
    copy = onnx.ModelProto()
    copy.CopyFrom(light)
    _refuse_constants(copy, weights)


def refuse_unreadable(light: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
    """Raise ModelError for a light model whose file would be refused when it is read.

    Only one with many weights is counted: what is made of a model has no other large constants than that.
    """
    stored = light.ByteSize() + sum(one.nbytes for one in weights.values())
    if stored <= constant_size.ALL // _MOST_STEPS:
        return
    copy = onnx.ModelProto()
    copy.CopyFrom(detached_weights.as_inputs(light, weights))
    try:
        _unpack(copy, dict(weights))
    except ModelError as error:
        raise ModelError(f"no tool could read what would be written: {error}") from error


def bytes_in_runs(dtype: np.dtype, size: int) -> int:
    """Return the bytes that so many numbers of a weight take when a model is open.

    The runtime computes in float32 with floats of 16 bits, and would make those of weights beforehand.
    """
    return size * (4 if dtype in _HALVES else dtype.itemsize)


def _claimed(tensor: onnx.TensorProto) -> int:
    """Return what an initializer takes when its model is open, 0 if it claims what none can."""
    dtype = numpy_type(tensor.data_type)
    return bytes_in_runs(dtype, max(0, math.prod(tensor.dims))) if dtype else 0


_RESHAPES_WRONGLY = "MatMulAddFusion"
"""Puts a Reshape to a shape with 0 around a Gemm, in which 0 stands for the size of another axis."""

_ABORTS = "QDQPropagationTransformer"
"""Ends the process where a body reads what nodes make of dequantized numbers that they move
(:mod:`transforms.requantize_captured`)."""

_TRANSPOSES_ONE = ("TransposeOptimizer", "TransposeOptimizer_CPUExecutionProvider")
"""Move a Transpose behind the QuantizeLinear that reads it, and leave it out there, where another node reads
it in float: a Where then has numbers of two layouts."""


def unsafe_optimizers(graph: onnx.GraphProto) -> list[str]:
    """Return the optimizers, by their names, that a session on a model is to leave out.

    Sizes are the declared and inferred ones: a size that is 0 only when the model runs does no harm.
    """
    graphs = list(each_graph(graph))
    found = [_RESHAPES_WRONGLY] if any(0 in shape for inner in graphs for shape in _shapes(inner)) else []
    has_integers = any(node.op_type == "DequantizeLinear" for inner in graphs for node in inner.node)
    found += [_ABORTS] if has_integers and len(graphs) > 1 else []
    return [*found, *(_TRANSPOSES_ONE if has_integers and any(map(_forks_transposed, graphs)) else ())]


def _forks_transposed(graph: onnx.GraphProto) -> bool:
    """Return whether a QuantizeLinear and another node read what a Transpose makes."""
    made = {node.output[0] for node in graph.node if node.op_type == "Transpose"}
    quantized = {node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"} & made
    others = (node for node in graph.node if node.op_type != "QuantizeLinear")
    return bool(quantized) and any(name in quantized for node in others for name in node.input)


def _shapes(graph: onnx.GraphProto) -> Iterator[list[int | None]]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield sizes_of(value.type.tensor_type) or []
    yield from (list(tensor.dims) for tensor in graph.initializer)
