"""Plans written into small models with ranges given by hand, and integer grids in plain NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import ArrayLike, NDArray
from onnx import numpy_helper

import ops
from ops import reference
from tests.helpers import plans
from transforms.graph.dot_products import TensorAxis
from transforms.insert_qdq import insert_qdq, raise_opset
from transforms.model import graph_proto
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme import Scheme, preset

LIMITS = {
    "int4": (-8, 7), "int8": (-128, 127), "int16": (-32768, 32767),
    "uint4": (0, 15), "uint8": (0, 255), "uint16": (0, 65535),
}  # fmt: skip


NET = """(float[2,3,6,6] x) => (float[2,5] y) {
    c = Conv(x, k, b) r = Relu(c) p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (r)
    f = Flatten(p) y = Gemm <transB = 1> (f, w, d) }"""
"""A network with all that integers do: bias, Relu, moves, a weight that is transposed."""

SHAPES: plans.Weights = {"k": (4, 3, 3, 3), "b": (4,), "w": (5, 16), "d": (5,)}
"""The shapes of its weights."""

EXTENDED = ("ExtendedQuantizeLinear", "ExtendedDequantizeLinear")


class Given:
    """Ranges by name of the tensor, as calibration would have measured them."""

    def __init__(
        self,
        ranges: Mapping[str, tuple[float, float]],
        mean_squares: Mapping[TensorAxis, NDArray[np.float64]] | None = None,
    ) -> None:
        """Keep the ranges."""
        self._ranges, self._mean_squares = dict(ranges), dict(mean_squares or {})

    def range(self, name: str, format: ops.Format, *, symmetric: bool) -> tuple[float, float]:
        """Return the range given for a tensor, the same for all formats."""
        if name not in self._ranges:
            raise ValueError(f"tensor '{name}' has no range")
        return self._ranges[name]

    def extremes(self) -> Mapping[str, tuple[float, float]]:
        """Return the ranges."""
        return self._ranges

    def mean_squares(self, channels: Iterable[TensorAxis]) -> dict[TensorAxis, NDArray[np.float64]]:
        """Return those of the mean squares that are there."""
        return {key: self._mean_squares[key] for key in channels if key in self._mean_squares}


def scheme(name: str | Scheme, **changes: Any) -> Scheme:
    """Return a preset with changes, and weights rounded to nearest by their range unless it is asked for."""
    chosen = preset(name) if isinstance(name, str) else name
    return chosen.with_(**{"weight_method": "MinMax", "saturation": "ignore", **changes})


def write(
    text: str,
    weights: plans.Weights,
    chosen: Scheme,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    *,
    opset: int = 18,
) -> onnx.ModelProto:
    """Return a model with the plan for a scheme written into it, accepted by the full checker."""
    return write_graph(plans.graph(text, weights, opset=opset), chosen, ranges)


def write_graph(
    graph: gs.Graph, chosen: Scheme, ranges: Mapping[str, tuple[float, float]] | None = None
) -> onnx.ModelProto:
    """Write the plan for a scheme into a graph and return the model, accepted by the full checker."""
    raise_opset(graph, chosen)
    insert_qdq(QuantizationPlan(graph, chosen), None if ranges is None else Given(ranges))
    model = graph_proto.export_model(graph)
    onnx.checker.check_model(model, full_check=True)
    return model


def on_grid(
    x: NDArray[Any], scale: ArrayLike, format: str = "int8", zero_point: int = 0
) -> NDArray[np.float32]:
    """Return x rounded to an integer grid and back, all in float32; the scale broadcasts to x."""
    step = np.asarray(scale, np.float32)
    q = np.clip(np.rint(np.asarray(x, np.float32) / step) + zero_point, *LIMITS[format])
    return ((q - zero_point) * step).astype(np.float32)


def stored(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """Return the initializers of the outermost graph by name."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def node(model: onnx.ModelProto, output: str) -> onnx.NodeProto:
    """Return the node of the outermost graph that makes a tensor."""
    return next(node for node in model.graph.node if output in node.output)


def source(model: onnx.ModelProto, reader: onnx.NodeProto, index: int) -> onnx.NodeProto:
    """Return the node that makes an input of a node."""
    return node(model, reader.input[index])


def inputs(model: onnx.ModelProto, reader: onnx.NodeProto) -> list[NDArray[Any]]:
    """Return all inputs of a node that holds stored numbers only: values, scale and zero point."""
    known = stored(model)
    return [known[name] for name in reader.input]


def ops_used(model: onnx.ModelProto) -> set[tuple[str, str]]:
    """Return domain and operator of all nodes of the outermost graph."""
    return {(node.domain, node.op_type) for node in model.graph.node}


def opset(model: onnx.ModelProto, domain: str = "") -> int:
    """Return the version of an operator set that a model imports."""
    return next(one.version for one in model.opset_import if one.domain == domain)


def axis(quantize: onnx.NodeProto) -> int | None:
    """Return the attribute axis of a node, None where it has none."""
    return next((attribute.i for attribute in quantize.attribute if attribute.name == "axis"), None)


def random(*shape: int, seed: int = 1) -> NDArray[np.float32]:
    """Return standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def twin(x: NDArray[np.float32], name: str, axis: int) -> NDArray[np.float32]:
    """Return x on the grid of a format by the readable specification."""
    attributes = dict(ops.FORMATS[name].attributes)
    if ops.FORMATS[name].op == "MXQuantizeDequantize":
        return reference.microscaling(x, axis, **attributes)
    if attributes.pop("bfp_method", "to_bfp") == "to_bfp":
        return reference.bfp(x, axis, **attributes)
    attributes.pop("sub_block_size")
    return reference.microexponent(x, axis, shift_bits=attributes.pop("sub_block_shift_bits"), **attributes)
