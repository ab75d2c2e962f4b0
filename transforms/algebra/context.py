"""The tensor in which others are expressed, and the relation of their shapes to its shape."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import onnx
import onnx_graphsurgeon as gs

from transforms.algebra.polynomial import Polynomial
from transforms.graph import shapes
from transforms.graph.shapes import Shape

ALIGNED = "aligned"  # as many dimensions as x, each of size 1 or of x's size
REDUCED = "reduced"  # a statistic of x without its reduced axes
CONSTANT = "constant"

FLOAT_BITS: dict[int, int] = {
    onnx.TensorProto.FLOAT16: 16,
    onnx.TensorProto.BFLOAT16: 16,
    onnx.TensorProto.FLOAT: 32,
    onnx.TensorProto.DOUBLE: 64,
}
_TOLERANCES: dict[int, float] = {onnx.TensorProto.FLOAT16: 2.0**-10, onnx.TensorProto.BFLOAT16: 2.0**-7}


@dataclass(frozen=True)
class Value:
    """The polynomial of a tensor, and the relation of its shape to x's; ``rank`` is that of a constant."""

    polynomial: Polynomial
    layout: str
    rank: int = 0


@dataclass(frozen=True)
class Context:
    """The tensor x in which others are expressed, and the axes of its statistics.

    ``axes`` count from the end (-1 is the last) and ascend, ``sizes`` are their sizes, or None if unknown.
    ``element_type`` is ONNX's number of x's type.
    """

    root: gs.Tensor
    element_type: int
    shape: Shape | None
    axes: tuple[int, ...] = ()
    sizes: tuple[int | None, ...] = ()

    @property
    def rank(self) -> int | None:
        """The number of dimensions of x, or None if unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def count(self) -> int | None:
        """The number of elements that a statistic is taken over, or None if unknown."""
        sizes = [size for size in self.sizes if size is not None]
        return prod(sizes) if len(sizes) == len(self.axes) else None

    @property
    def tolerance(self) -> float:
        """The relative rounding of a constant in x's type, at least 1e-6."""
        return _TOLERANCES.get(self.element_type, 1e-6)


def make_context(root: gs.Tensor, element_type: int, axes: tuple[int, ...] = ()) -> Context:
    """Return the context of a tensor and of axes that count from the end."""
    sizes = tuple(shapes.size(root, axis) for axis in axes)
    return Context(root, element_type, shapes.shape_of(root), axes, sizes)


def is_float(element_type: int | None) -> bool:
    """Return whether the type is one that this algebra covers: float16, bfloat16, float or double."""
    return element_type in FLOAT_BITS
