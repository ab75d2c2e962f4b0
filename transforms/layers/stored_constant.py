"""Constants as a quantized model stores them: read their values, and replace them.

Between a stored constant and its consumer there may be a node that dequantizes or widens it, or several that
round float numbers to a grid in every run. Numbers of a block format are stored as floats; their format can
only be detected from the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

import ops
from ops.array_types import Float32Array, QParams
from ops.formats import Format
from ops.integer_blocks import scale_shape
from ops.integers import as_float_type
from ops.reference import finite_blocks, join_blocks
from transforms.graph import dot_products, dtypes, walk
from transforms.graph.block_format import block_format_of
from transforms.graph.constants import Constants, exportable, load
from transforms.graph.grids import Grid, grid_of
from transforms.graph.qdq import BLOCKS, DEQUANTIZE, PAIRS, QUANTIZE
from transforms.layers.linear_layer import UnsupportedLayer
from transforms.scheme.sources import recorded_scheme

ROUNDING = PAIRS | {"Cast", *BLOCKS}
SHARED = "other nodes read it, too"
_FLOAT_ROWS = {dtypes.BFLOAT16: "bfloat16", dtypes.FLOAT16: "float16"}


@dataclass
class StoredConstant:
    """A constant and the ``dequant_nodes`` through which a node reads it, in order.

    ``format`` is None for plain float32. Integers have a ``grid``; block formats a ``float_axis``.
    """

    source: gs.Constant
    dequant_nodes: list[gs.Node]
    format: Format | None
    grid: Grid | None = None
    float_axis: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the constant."""
        return tuple(self.source.shape)

    @property
    def tensors(self) -> list[gs.Tensor]:
        """The constant and the outputs of its nodes; the last one is read."""
        return [self.source, *(node.outputs[0] for node in self.dequant_nodes)]

    @property
    def is_integer(self) -> bool:
        """Whether the numbers are integers with a scale."""
        return self.grid is not None

    @property
    def parameters(self) -> QParams | None:
        """Scale and zero point of integers."""
        return None if self.grid is None else (self.grid.scale, self.grid.zero_point)

    def grid_with(self, parameters: QParams | None) -> Grid | None:
        """Return the grid of integers with other scales and zero points, None if there are none."""
        if self.grid is None or parameters is None:
            return None
        return replace(self.grid, scale=parameters[0], zero_point=parameters[1])

    @property
    def scale(self) -> Float32Array | None:
        """The scale, or scales, of integers."""
        return None if self.grid is None else self.grid.scale

    @property
    def axis(self) -> int | None:
        """The axis along which integers have several scales."""
        return None if self.grid is None else self.grid.axis

    @property
    def block(self) -> int:
        """The number of integers along the axis with the same scale, 0 without blocks."""
        return 0 if self.grid is None else self.grid.block_size

    @property
    def is_narrow(self) -> bool:
        """Whether int8 weights avoid -128, which not every runtime accepts."""
        stored = load(self.source)
        return stored.dtype == np.int8 and stored.size > 0 and int(stored.min()) > np.iinfo(np.int8).min

    def values(self) -> Float32Array:
        """Return the numbers that the constant represents."""
        stored = load(self.source)
        if self.grid is None:
            return self._round(stored.astype(np.float32))
        return self.grid.dequantize(self.grid.quantize(stored) if stored.dtype == np.float32 else stored)

    def write(self, values: Float32Array, names: walk.Names, grid: Grid | None = None) -> None:
        """Store other numbers, rounded to the present grid or to a new one of integers.

        A scale that other nodes also read is replaced by a copy.
        """
        if grid is not None:
            self._write_grid(grid, names)
        self.source.values = exportable(self._encode(np.asarray(values, np.float32)))

    def _encode(self, values: Float32Array) -> NDArray[np.generic]:
        first = self.dequant_nodes[0].op if self.dequant_nodes else ""
        if first in (*BLOCKS, *QUANTIZE):
            return values
        if self.grid is not None:
            return self.grid.quantize(values)
        if self.format is None or self.format.block > 1 or len(self.dequant_nodes) > 1:
            return values
        return as_float_type(values, self.format)

    def _round(self, values: Float32Array) -> Float32Array:
        """Return float numbers as the nodes round them, unchanged without nodes."""
        if self.format is None or not self.dequant_nodes:
            return values
        axis = -1 if self.float_axis is None else self.float_axis
        return np.asarray(ops.quantize_dequantize(values, self.format, axis), np.float32)

    def _write_grid(self, grid: Grid, names: walk.Names) -> None:
        self.grid = grid
        for index, values in ((1, grid.scale), (2, grid.zero_point)):
            if len(self.dequant_nodes[0].inputs) <= index:
                if values.any():
                    self._add_zero_point(values, names)
                continue
            old = self.dequant_nodes[0].inputs[index]
            alone = all(
                any(node is dequant_node for dequant_node in self.dequant_nodes) for node in old.outputs
            )
            new = old if alone else gs.Constant(names.derive(old.name, "tuned"), old.values)
            new.values = exportable(values)
            for node in self.dequant_nodes:
                node.inputs[index] = new
        if grid.axis is not None:
            for node in self.dequant_nodes:
                node.attrs["axis"] = grid.axis

    def _add_zero_point(self, values: NDArray[np.generic], names: walk.Names) -> None:
        new = gs.Constant(names.derive(self.source.name, "zero_point"), exportable(values))
        for node in self.dequant_nodes:
            node.inputs.append(new)


def trace_constant(
    graph: gs.Graph, node: gs.Node, index: int, candidates: Sequence[Format], axis: int
) -> StoredConstant:
    """Return the stored constant that a node reads as input ``index``; ``axis``: of blocks, if any.

    ``candidates`` are the block formats to try for plain numbers, the coarsest first. Other nodes may read
    the constant. Raises UnsupportedLayer unless it is a constant, not an output of the model, stored in a
    known way.
    """
    constants, nodes, tensor = Constants(graph), list[gs.Node](), node.inputs[index]
    while not isinstance(tensor, gs.Constant):
        producer = walk.producer(tensor)
        if producer is None or producer.op not in ROUNDING:
            raise UnsupportedLayer("it is computed")
        nodes.insert(0, producer)
        tensor = producer.inputs[0]
    if constants.shape(tensor) is None:
        raise UnsupportedLayer("callers may replace it, since it is an input as well")
    stored = _describe(tensor, nodes, candidates, axis, constants)
    if any(walk.is_output(passed, graph) for passed in stored.tensors):
        raise UnsupportedLayer("it is an output of the model, too")
    return stored


def _describe(
    source: gs.Constant, nodes: list[gs.Node], candidates: Sequence[Format], axis: int, constants: Constants
) -> StoredConstant:
    ops_of = [node.op for node in nodes]
    element = dtypes.element_type(source)
    if not nodes:
        if element != dtypes.FLOAT:
            raise UnsupportedLayer("it is not float32 where it is read")
        return StoredConstant(source, nodes, detect(load(source), candidates, axis))
    if any(op in BLOCKS for op in ops_of):
        if len(nodes) > 1:
            raise UnsupportedLayer("it is rounded more than once")
        float_axis = int(nodes[0].attrs.get("axis", 1)) if len(source.shape) > 1 else 0
        return StoredConstant(source, nodes, block_format_of(nodes[0]), float_axis=float_axis)
    if ops_of in (["Cast"], ["Cast", "Cast"]):
        name = _FLOAT_ROWS.get(element or 0) or _FLOAT_ROWS.get(int(nodes[0].attrs["to"]))
        if name is None:
            raise UnsupportedLayer("it is cast from an unsupported type")
        return StoredConstant(source, nodes, ops.FORMATS[name])
    if len(nodes) > 2 or "Cast" in ops_of or (len(nodes) == 2 and ops_of[1] not in DEQUANTIZE):
        raise UnsupportedLayer("it is rounded more than once")
    return _linear(source, nodes, constants)


def _linear(source: gs.Constant, nodes: list[gs.Node], constants: Constants) -> StoredConstant:
    last, shape = nodes[-1], tuple(source.shape)
    if not all(isinstance(tensor, gs.Constant) for tensor in last.inputs[1:]):
        raise UnsupportedLayer("its scale is computed")
    grid = grid_of(last, constants)
    if grid is not None:
        if not grid.block_size and grid.scale.ndim <= 1:
            return StoredConstant(source, nodes, grid.format, grid)
        if _has_blocks(grid, shape):
            grid = replace(grid, axis=(grid.axis or 0) % len(shape))
            return StoredConstant(source, nodes, grid.format, grid)
    scale, zeros = (
        load(last.inputs[1]),
        [load(zero_input) for zero_input in last.inputs[2:3] if not zero_input.is_empty()],
    )
    kind = (zeros[0] if zeros else load(source)).dtype
    fmt = ops.FORMATS.get(str(kind))
    if not zeros or fmt is None or fmt.is_integer or scale.dtype != np.float32:
        raise UnsupportedLayer(f"it is stored as {kind} with a scale of {scale.dtype}{list(scale.shape)}")
    if (scale != 1).any() or zeros[0].astype(np.float32).any():
        raise UnsupportedLayer(f"it is stored as {fmt.name} with a scale")
    return StoredConstant(source, nodes, fmt)


def _has_blocks(grid: Grid, shape: tuple[int, ...]) -> bool:
    """Return whether a grid has a scale for each block of a constant."""
    is_along = grid.block_size > 0 and grid.axis is not None and -len(shape) <= grid.axis < len(shape)
    return is_along and grid.scale.shape == scale_shape(shape, grid.axis or 0, grid.block_size)


def detect(values: NDArray[np.generic], candidates: Sequence[Format], axis: int) -> Format | None:
    """Return the first format whose grid includes all the numbers, or None."""
    if values.dtype != np.float32 or not values.ndim or not values.size:
        return None
    axis = axis % values.ndim if -values.ndim <= axis < values.ndim else -1
    numbers = np.asarray(values, np.float32)
    return next((fmt for fmt in candidates if _holds(fmt, numbers, axis)), None)


def _holds(fmt: Format, values: NDArray[np.float32], axis: int) -> bool:
    """Return whether numbers are on a block format's grid.

    They are if the format leaves them unchanged, with one exception: MXINT8's lowest number, -2 * 2^E, would
    raise its block to the exponent E + 1. So half of it is tested, which does not affect the others.
    """
    if np.array_equal(ops.quantize_dequantize(values, fmt, axis), values):
        return True
    if fmt.attributes.get("element_dtype") != "int8":
        return False
    is_lowest = (np.frexp(values)[0] == -0.5) & (values == -_largest_of_blocks(values, fmt.block, axis))
    halved = np.where(is_lowest, values / 2, values)
    return bool(np.array_equal(ops.quantize_dequantize(halved, fmt, axis), halved))


def _largest_of_blocks(values: NDArray[np.float32], block: int, axis: int) -> NDArray[np.float32]:
    """Return for each number the largest magnitude in its block."""
    sizes = np.abs(finite_blocks(values, axis, block)[0])
    return join_blocks(np.broadcast_to(sizes.max(-1, keepdims=True), sizes.shape), values, axis)


def candidate_formats(graph: gs.Graph, known: Sequence[Format] = ()) -> list[Format]:
    """Return the block formats that weights of a model may have, likely ones first.

    The order is: ``known`` formats, those of the model's scheme, those of its nodes, those of the table; the
    coarsest of each first, since finer grids often include the same numbers.
    """
    scheme = recorded_scheme(graph)
    used = [fmt for node in walk.nodes(graph) if (fmt := block_format_of(node))]
    ranks = [known, scheme.named_formats if scheme else (), used, ops.FORMATS.values()]
    candidates = [fmt for rank in ranks for fmt in sorted(rank, key=lambda fmt: fmt.bits) if fmt.block > 1]
    return list({fmt.name: fmt for fmt in candidates}.values())


def weight_place(graph: gs.Graph, node: gs.Node, candidates: Sequence[Format]) -> tuple[int, StoredConstant]:
    """Return the index of a dot product's stored weight, and the weight; the second operand if both are.

    Other nodes may read the same tensor, but not those before it. Raises UnsupportedLayer with the reason if
    neither operand is such a weight.
    """
    reasons = []
    for index in (1, 0):
        rank = None if node.inputs[index].shape is None else len(node.inputs[index].shape)
        try:
            stored = trace_constant(graph, node, index, candidates, dot_products.sum_axis(node, index, rank))
            if any(len(walk.uses(tensor)) > 1 for tensor in stored.tensors[:-1]):
                raise UnsupportedLayer(SHARED)
            return index, stored
        except UnsupportedLayer as error:
            reasons.append(str(error))
    both = "both operands are computed" if set(reasons) == {"it is computed"} else f"its weight: {reasons[0]}"
    raise UnsupportedLayer(both)
