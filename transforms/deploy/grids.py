"""The grids of a quantized model as its nodes say them: types, scales and zero points, and block formats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.formats import format_of
from transforms import features
from transforms.graph import dot_products, dtypes, walk
from transforms.graph.constants import Constants, load
from transforms.graph.grids import Grid, grid_of
from transforms.graph.qdq import BLOCKS, DEQUANTIZE, PAIRS, QUANTIZE
from transforms.graph.selection import label_of
from transforms.scheme.targets import MOVED


@dataclass(frozen=True)
class StoredGrid:
    """One node that quantizes, dequantizes or rounds to blocks, with what is constant of its grid.

    ``format``: name of the element type, or of the block format. ``grid``: of integers whose scale and zero
    point are stored. ``stored``: the constant that it dequantizes, None for values. ``role``: activation,
    weight or bias. ``is_computed``: scale or zero point are computed by the model.
    """

    node: gs.Node
    format: str
    role: str
    grid: Grid | None
    stored: NDArray[np.generic] | None
    is_computed: bool = False

    @property
    def label(self) -> str:
        """The name of the node."""
        return label_of(self.node)


def grids(graph: gs.Graph) -> Iterator[StoredGrid]:
    """Yield every grid of a model, bodies included."""
    constants = Constants(graph)
    for node in walk.nodes(graph):
        if node.op in PAIRS:
            yield _pair(node, constants)
        elif node.op in BLOCKS:
            fmt = format_of(node.op, node.attrs)
            role = _role(node, constants)
            yield StoredGrid(node, fmt.name if fmt else node.op, role, None, None)


def _pair(node: gs.Node, constants: Constants) -> StoredGrid:
    """Return the grid of a node of a pair."""
    narrow = node.outputs[0] if node.op in QUANTIZE else node.inputs[0]
    given = [tensor for tensor in node.inputs[1:3] if not tensor.is_empty()]
    found = [constants.values(tensor) for tensor in given]
    source, zero_point = node.inputs[0], found[1] if len(found) > 1 else None
    stored = load(source) if isinstance(source, gs.Constant) and node.op in DEQUANTIZE else None
    name, role = element_name(narrow, zero_point), _role(node, constants)
    grid = grid_of(node, constants, of_halves=True)
    return StoredGrid(node, name, role, grid, stored, any(one is None for one in found))


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


def _role(node: gs.Node, constants: Constants) -> str:
    """Return what a grid is for: constants, stored or rounded in every run, by their consumers."""
    source = node.inputs[0]
    maker = walk.producer(source)
    if maker is not None and maker.op in QUANTIZE:
        source = maker.inputs[0]
    if constants.shape(source) is None:
        return "activation"
    for consumer, index in _consumers(node.outputs[0]):
        form = features.weights_of(consumer)
        if form is not None and index in form.inputs:
            return "weight"
        if dot_products.is_dot_product(consumer):
            return "weight" if dot_products.is_operand(consumer, index) else "bias"
    return "bias" if dtypes.element_type(source) == onnx.TensorProto.INT32 else "activation"


def _consumers(tensor: gs.Tensor) -> Iterator[tuple[gs.Node, int]]:
    """Yield what reads a tensor, beyond nodes that dequantize or move it."""
    pending = walk.uses(tensor)[::-1]
    while pending:
        consumer, index = pending.pop()
        yield consumer, index
        if not index and (consumer.op in DEQUANTIZE or consumer.op in MOVED):
            pending += walk.uses(consumer.outputs[0])[::-1]
