"""The integer grid of one tensor: scale and zero point, as given by nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import ArrayLike, NDArray

from ops.array_types import AnyArray, Float32Array
from ops.formats import FORMATS, Format
from ops.integer_blocks import dequantize_blocks, quantize_blocks, scale_shape
from ops.integers import dequantize, quantize
from ops.legal_names import refuse_unknown
from transforms.graph import dtypes, walk
from transforms.graph.constants import Constants
from transforms.graph.qdq import DEQUANTIZE, PAIRS, QUANTIZE

_INTEGERS = {name: fmt for name, fmt in FORMATS.items() if fmt.is_integer}


@dataclass(frozen=True, eq=False)
class Grid:
    """Integers of ``dtype`` and the floats they represent: ``(integer - zero_point) * scale``.

    ``dtype`` is an integer format of ``ops.FORMATS``, such as "int8" or "uint4". ``scale`` and
    ``zero_point`` are scalars; with ``axis`` they have one number for each index of that axis, with
    ``block_size`` also one for each block of that many elements along it, in the shape of
    :func:`ops.integer_blocks.scale_shape`.

    Raises ValueError for another dtype, a scale that is not finite, a zero point outside the integers, and
    inconsistent shapes.
    """

    dtype: str
    scale: Float32Array
    zero_point: AnyArray = field(default_factory=lambda: np.zeros((), np.int64))
    axis: int | None = None
    block_size: int = 0

    def __init__(
        self,
        dtype: str,
        scale: ArrayLike,
        zero_point: ArrayLike = 0,
        *,
        axis: int | None = None,
        block_size: int = 0,
    ) -> None:
        """Take a grid as numbers or arrays; one zero point serves all scales."""
        refuse_unknown(dtype, _INTEGERS, "dtype")
        scales, fmt = np.asarray(scale, np.float32), FORMATS[dtype]
        if not np.isfinite(scales).all():
            raise ValueError(f"a scale of {dtype} is not finite")
        if scales.ndim and axis is None:
            raise ValueError(f"{scales.size} scales need the axis along which they lie")
        zeros = np.asarray(zero_point).astype(np.int64)
        if np.any(zeros < fmt.lowest) or np.any(zeros > fmt.highest):
            raise ValueError(
                f"zero point {zeros.ravel()[0]} is beyond {dtype}, {fmt.lowest:g} to {fmt.highest:g}"
            )
        if zeros.ndim and zeros.shape != scales.shape:
            raise ValueError(
                f"zero points of shape {list(zeros.shape)}, scales of shape {list(scales.shape)}"
            )
        values = {"dtype": dtype, "scale": scales, "axis": axis, "block_size": block_size}
        values["zero_point"] = np.broadcast_to(zeros, scales.shape).astype(fmt.dtype)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        """Return whether the other is a grid with the same numbers."""
        if not isinstance(other, Grid):
            return NotImplemented
        layouts = [(one.dtype, one._along, one.block_size) for one in (self, other)]
        pairs = (self.scale, other.scale), (self.zero_point, other.zero_point)
        return layouts[0] == layouts[1] and all(np.array_equal(*pair) for pair in pairs)

    __hash__ = None  # type: ignore[assignment]

    @property
    def format(self) -> Format:
        """The row of ``ops.FORMATS``."""
        return FORMATS[self.dtype]

    @property
    def _along(self) -> int | None:
        return self.axis if self.scale.ndim else None

    def ends(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the lowest and the highest number for each scale."""
        integers = np.array([[self.format.lowest], [self.format.highest]])
        steps = integers - np.atleast_1d(self.zero_point.astype(np.int64))
        low, high = np.atleast_1d(self.scale).astype(np.float64) * steps
        return low, high

    @property
    def bounds(self) -> tuple[Float32Array, Float32Array] | None:
        """The least and the largest number of a grid with one scale, else None."""
        if self.scale.ndim:
            return None
        ends = (int(self.format.lowest), int(self.format.highest))
        low, high = sorted((end - int(self.zero_point)) * self.scale for end in ends)
        return np.asarray(low, np.float32), np.asarray(high, np.float32)

    def quantize(self, values: NDArray[np.floating]) -> AnyArray:
        """Return the integers of floats, as QuantizeLinear does."""
        if self.block_size and self.axis is not None:
            parameters = self.scale, self.zero_point
            return quantize_blocks(values, parameters, self.format, self.axis, self.block_size)
        return quantize(values, self.scale, self.zero_point, self.format, self._along)

    def dequantize(self, integers: AnyArray) -> Float32Array:
        """Return the floats of integers, as DequantizeLinear does."""
        if self.block_size and self.axis is not None:
            return dequantize_blocks(integers, (self.scale, self.zero_point), self.axis, self.block_size)
        return dequantize(integers, self.scale, self.zero_point, self._along)

    def check_shape(self, name: str, shape: tuple[object, ...] | None) -> None:
        """Raise ValueError, naming the tensor, if scales do not fit a shape, as far as it is known."""
        if self.axis is None or not self.scale.ndim or shape is None:
            return
        if not -len(shape) <= self.axis < len(shape):
            raise ValueError(f"axis {self.axis} is out of range for tensor '{name}' of rank {len(shape)}")
        size = shape[self.axis]
        needed: tuple[object, ...] = (size,)
        if self.block_size:
            fixed = tuple(dimension if isinstance(dimension, int) else 0 for dimension in shape)
            needed = scale_shape(fixed, self.axis, self.block_size)
        if isinstance(size, int) and self.scale.shape != needed:
            raise ValueError(
                f"tensor '{name}' needs scales of shape {list(needed)}, not {list(self.scale.shape)}"
            )


def grid_of(node: gs.Node, constants: Constants, *, of_halves: bool = False) -> Grid | None:
    """Return the grid of a node that quantizes or dequantizes.

    None for another node, for low-precision floats, and if scale or zero point are computed or invalid; also
    for a node between integers and 16-bit floats, unless ``of_halves``.
    """
    if node.op not in PAIRS or len(node.inputs) < 2:
        return None
    scale = constants.values(node.inputs[1])
    has_zero = len(node.inputs) > 2 and not node.inputs[2].is_empty()
    zero_point = constants.values(node.inputs[2]) if has_zero else np.zeros((), _element(node, constants))
    if scale is None or zero_point is None or not (of_halves or scale.dtype == np.float32):
        return None
    dtype, block = zero_point.dtype.name, int(node.attrs.get("block_size", 0))
    if dtype not in _INTEGERS:
        return None
    if scale.ndim and scale.size == 1 and not block:
        scale, zero_point = scale.reshape(()), zero_point.reshape(-1)[0]
    axis = int(node.attrs.get("axis", 1)) if scale.ndim else None
    try:
        return Grid(dtype, scale, zero_point, axis=axis, block_size=block)
    except ValueError:
        return None


def _element(node: gs.Node, constants: Constants) -> np.dtype[np.generic]:
    """Return the integer type of a node without a zero point: uint8 unless the node specifies another."""
    tensor = node.outputs[0] if node.op in QUANTIZE else node.inputs[0]
    said = node.attrs.get("output_dtype", 0) if node.op in QUANTIZE else constants.element_type(tensor)
    element = said or dtypes.element_type(tensor)
    return (dtypes.numpy_type(element) if element else None) or np.dtype(np.uint8)


def read_grids(graph: gs.Graph) -> dict[str, Grid]:
    """Return the integer grids of a quantized model by the names of their tensors.

    For a computed tensor this is the name of the float tensor that is quantized, or of the graph output that
    it becomes; for a stored one that of the constant with the integers;
    :func:`transforms.insert_qdq.insert_qdq` takes the same names. Bodies are included. Block formats,
    low-precision floats, computed grids, and integers that no node here computes are left out; of a tensor
    on several grids the first is returned.
    """
    constants, outputs, grids = Constants(graph), walk.outputs(graph), dict[str, Grid]()
    for node in walk.nodes(graph):
        if node.op in QUANTIZE or (node.op in DEQUANTIZE and constants.shape(node.inputs[0]) is not None):
            grid = grid_of(node, constants)
            if grid is not None:
                grids.setdefault(_name(node, outputs), grid)
    return grids


def _name(node: gs.Node, outputs: set[int]) -> str:
    """Return the name of the tensor that a node quantizes, or whose stored integers it dequantizes."""
    readers = [reader for tensor in node.outputs for reader in tensor.outputs] if node.op in QUANTIZE else []
    results = (tensor for reader in readers if reader.op in DEQUANTIZE for tensor in reader.outputs)
    return str(next((tensor.name for tensor in results if id(tensor) in outputs), node.inputs[0].name))
