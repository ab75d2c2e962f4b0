"""The grids of a quantized model as its nodes say them: types, scales and zero points of each pair."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph import dot_products, dtypes, walk
from transforms.graph.constants import Constants, load
from transforms.graph.selection import label_of

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
EXTENDED = {"ExtendedQuantizeLinear": QUANTIZE, "ExtendedDequantizeLinear": DEQUANTIZE}


@dataclass(frozen=True)
class StoredGrid:
    """One node that quantizes or dequantizes, with what is constant of its grid.

    ``format``: name of the element type. ``stored``: the constant that it dequantizes, None for values.
    ``role``: activation, weight or bias.
    """

    node: gs.Node
    format: str
    role: str
    scale: NDArray[np.generic] | None
    zero_point: NDArray[np.generic] | None
    stored: NDArray[np.generic] | None

    @property
    def label(self) -> str:
        """The name of the node."""
        return label_of(self.node)


def grids(graph: gs.Graph) -> Iterator[StoredGrid]:
    """Yield every grid of a model, bodies included."""
    constants = Constants(graph)
    for node in walk.nodes(graph):
        kind = EXTENDED.get(node.op, node.op)
        if kind not in (QUANTIZE, DEQUANTIZE):
            continue
        narrow = node.outputs[0] if kind == QUANTIZE else node.inputs[0]
        found = [constants.values(tensor) for tensor in node.inputs[1:3]]
        scale, zero_point = (*found, None, None)[:2]
        source = node.inputs[0]
        stored = load(source) if isinstance(source, gs.Constant) and kind == DEQUANTIZE else None
        yield StoredGrid(
            node, element_name(narrow, zero_point), _role(node, stored), scale, zero_point, stored
        )


def element_name(tensor: gs.Tensor, zero_point: NDArray[np.generic] | None) -> str:
    """Return the name of the element type of a quantized tensor."""
    if zero_point is not None:
        return str(zero_point.dtype)
    element = dtypes.element_type(tensor)
    if element == dtypes.BFLOAT16:
        return "bfloat16"
    return "uint8" if tensor.dtype is None or element is None else _type_name(element)


def _type_name(element: int) -> str:
    return onnx.TensorProto.DataType.Name(element).lower()


def _role(node: gs.Node, stored: NDArray[np.generic] | None) -> str:
    if stored is None:
        return "activation"
    for reader, index in walk.uses(node.outputs[0]):
        if dot_products.is_dot_product(reader):
            return "weight" if dot_products.is_operand(reader, index) else "bias"
    return "bias" if stored.dtype == np.int32 else "activation"
