"""Initializers with numbers for each channel, and the axis along which the channels lie."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph import dtypes
from transforms.graph.dot_products import is_dot_product, sum_axis

Channels = NDArray[np.int64]
Exponents = NDArray[np.int64]
Ranges = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PerChannel:
    """An initializer, input ``index`` of ``node``, with numbers for each channel along ``axis``.

    ``axis`` is counted from the end. ``groups``: of a grouped convolution, if the axis has the channels of
    one group; those of the others follow along the first axis.
    """

    node: gs.Node
    index: int
    axis: int
    groups: int = 1

    @property
    def constant(self) -> gs.Constant:
        """The initializer."""
        return self.node.inputs[self.index]

    @property
    def channels(self) -> int:
        """For how many channels there are numbers, 1 if the same ones count for all."""
        shape = self.constant.shape
        return self.groups * int(shape[self.axis]) if len(shape) >= -self.axis else 1

    @property
    def is_offset(self) -> bool:
        """Whether the numbers are added: a bias, or the addend of an Add."""
        return self.index == 2 or self.node.op == "Add"

    def rows(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a view of what is in the initializer, of one group, with the channels on the first axis."""
        return np.moveaxis(values, self.axis, 0)

    def laid(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return numbers [channels] in a shape that broadcasts to the initializer.

        Several consecutive inputs of a layer after a Flatten are one channel.
        """
        laid = np.repeat(numbers, max(1, self.channels // len(numbers)))
        if self.groups > 1:
            laid = laid.reshape(self.groups, -1).repeat(self.constant.shape[0] // self.groups, axis=0)
        return laid.reshape(*laid.shape, *(1,) * (-self.axis - 1))

    def ranges(self, values: NDArray[Any]) -> Ranges:
        """Return the largest magnitude for each channel of an array with the axes of the initializer."""
        padded = values.reshape((1,) * (-self.axis - values.ndim) + values.shape)
        parts = padded.reshape(self.groups, -1, *padded.shape[1:])
        others = tuple(axis for axis in range(1, parts.ndim) if axis != parts.ndim + self.axis)
        largest = np.maximum(parts.max(others, initial=0), -parts.min(others, initial=0))
        return largest.reshape(-1).astype(np.float64)


def is_stored(tensor: gs.Tensor, ends: Container[int]) -> bool:
    """Return whether a tensor is a float32 initializer, and none of the inputs and outputs of graphs."""
    is_initializer = isinstance(tensor, gs.Constant) and id(tensor) not in ends
    return is_initializer and dtypes.is_type(tensor, dtypes.FLOAT)


def has_weight(node: gs.Node, ends: Container[int] = ()) -> bool:
    """Return whether a node is a dot product with a stored float32 weight of two axes or more, not empty."""
    if not is_dot_product(node) or not is_stored(node.inputs[1], ends):
        return False
    shape = node.inputs[1].shape
    return len(shape) > 1 and 0 not in shape


def inputs_of(node: gs.Node) -> PerChannel:
    """Return where the weight of a dot product has the channels that it sums over."""
    return _of_weight(node, sum_axis(node, 1, len(node.inputs[1].shape)))


def outputs_of(node: gs.Node) -> PerChannel:
    """Return where the weight of a dot product has the channels that it makes."""
    rank = len(node.inputs[1].shape)
    return _of_weight(node, rank - 1 if node.op == "MatMul" else 1 - sum_axis(node, 1, rank))


def _of_weight(node: gs.Node, axis: int) -> PerChannel:
    groups = int(node.attrs.get("group", 1)) if axis == 1 else 1
    return PerChannel(node, 1, axis - len(node.inputs[1].shape), groups)
