"""A layer as linear algebra: every dot product is y = W x for rows x of its inputs, in one or more groups.

The numbers of a group of W are [N, S, C]: N outputs, S positions of a kernel (1 without one), C channels of
the sum. Rows have the same order, K = S * C numbers, with zeros where a kernel extends beyond the input.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import AnyArray
from transforms.graph.dot_products import is_depthwise_transposed
from transforms.layers import im2col

Rows = NDArray[np.integer]


class UnsupportedLayer(ValueError):
    """An unsupported layer; the message is the reason, phrased to follow the layer's name."""


@dataclass
class LinearLayer(ABC):
    """One layer: ``attrs`` of its node, ``shape`` of its weight and the operand index of the weight."""

    op: str
    attrs: dict[str, Any]
    shape: tuple[int, ...]
    index: int

    @property
    @abstractmethod
    def size(self) -> tuple[int, int, int, int]:
        """Groups, outputs of a group, positions of the kernel, channels of the sum."""

    @property
    @abstractmethod
    def output_axis(self) -> int:
        """The axis of the weight along which outputs lie; -1 for a vector, which has one output."""

    @property
    def sum_axis(self) -> int:
        """The axis of the weight along which the layer sums."""
        if self.op in ("Conv", "ConvTranspose"):
            return 1 - self.output_axis
        rank = len(self.shape)
        return 0 if rank == 1 else 2 * rank - 3 - self.output_axis

    @property
    def gain(self) -> float:
        """The factor of the product: alpha of a Gemm. It is applied to the rows."""
        return float(self.attrs.get("alpha", 1.0)) if self.op == "Gemm" else 1.0

    @property
    def bias_gain(self) -> float:
        """The factor of the bias: beta of a Gemm."""
        return float(self.attrs.get("beta", 1.0)) if self.op == "Gemm" else 1.0

    @abstractmethod
    def pack(self, weight: AnyArray) -> AnyArray:
        """Return a weight as [G, N, S, C]."""

    @abstractmethod
    def unpack(self, packed: AnyArray) -> AnyArray:
        """Return the weight of a packed [G, N, S, C] array, the inverse of ``pack``."""

    @abstractmethod
    def count(self, made: Sequence[int]) -> int:
        """Return the number of rows of an output with a shape."""

    @abstractmethod
    def rows(
        self, inputs: AnyArray, made: Sequence[int], picked: Rows | slice = slice(None), outside: float = 0
    ) -> AnyArray:
        """Return rows of an input as [G, R, K], all or the picked ones, for an output with a shape.

        ``outside`` is the value that a kernel reads outside the input.
        """

    @abstractmethod
    def outputs(self, made: AnyArray, picked: Rows | slice = slice(None)) -> AnyArray:
        """Return the outputs of these rows as [G, R, N]."""

    def weight_slope(self, rows: AnyArray, outputs: AnyArray) -> AnyArray:
        """Return the sum over R of ``rows`` [G, R, K] times ``outputs`` [G, R, N], in the weight's shape."""
        groups, numbers, positions, channels = self.size
        packed = outputs.transpose(0, 2, 1) @ rows
        return self.unpack(packed.reshape(groups, numbers, positions, channels))

    @abstractmethod
    def channel_shape(self, rank: int) -> tuple[int, ...]:
        """Return the shape in which one number for each output broadcasts to an output with a rank."""

    def channels(self, axis: int | None) -> bool:
        """Return whether a scale along an axis of the weight (None: a single one) is a scale per output.

        Outputs of several groups may share one: see ``spread``.
        """
        return axis is None or axis % len(self.shape) == self.output_axis

    def spread(self, scale: AnyArray) -> AnyArray:
        """Return scales along the axis of outputs as one for each output, [G * N]; a scalar unchanged.

        The matrices of a stack share scales, and so do groups of a ConvTranspose.
        """
        return np.tile(scale, self.size[0]) if self.shares_scales and scale.ndim else scale

    @property
    def shares_scales(self) -> bool:
        """Whether outputs of all groups share a scale along the axis of outputs."""
        return self.size[0] > 1 and self.shape[self.output_axis] == self.size[1]


@dataclass
class _Convolution(LinearLayer):
    """Conv and ConvTranspose of one to three dimensions, or more."""

    _tables: dict[tuple[tuple[int, ...], ...], im2col.Im2colTables] = field(default_factory=dict, repr=False)

    @cached_property
    def size(self) -> tuple[int, int, int, int]:
        groups, positions = int(self.attrs.get("group", 1)), math.prod(self.shape[2:])
        first, second = self.shape[0] // groups, self.shape[1]
        return (groups, first, positions, second) if self.op == "Conv" else (groups, second, positions, first)

    @property
    def output_axis(self) -> int:
        is_own = is_depthwise_transposed(self.op, self.size[0], self.shape)
        return 1 if self.op == "ConvTranspose" and not is_own else 0

    def pack(self, weight: AnyArray) -> AnyArray:
        groups, outputs, positions, channels = self.size
        if self.op == "ConvTranspose":
            return weight.reshape(groups, channels, outputs, positions).transpose(0, 2, 3, 1)
        return weight.reshape(groups, outputs, channels, positions).transpose(0, 1, 3, 2)

    def unpack(self, packed: AnyArray) -> AnyArray:
        order = (0, 3, 1, 2) if self.op == "ConvTranspose" else (0, 1, 3, 2)
        return np.ascontiguousarray(packed.transpose(order)).reshape(self.shape)

    def count(self, made: Sequence[int]) -> int:
        return made[0] * math.prod(made[2:])

    def rows(
        self, inputs: AnyArray, made: Sequence[int], picked: Rows | slice = slice(None), outside: float = 0
    ) -> AnyArray:
        groups, _, positions, channels = self.size
        found = self._taps(tuple(made[2:]), inputs.shape[2:]).take(_by_channel(inputs), picked, outside)
        packed = found.reshape(groups, channels, positions, -1).transpose(0, 2, 1, 3)
        return packed.reshape(groups, positions * channels, -1).transpose(0, 2, 1)

    def outputs(self, made: AnyArray, picked: Rows | slice = slice(None)) -> AnyArray:
        groups, outputs, _, _ = self.size
        return im2col.columns(_by_channel(made), picked).reshape(groups, outputs, -1).transpose(0, 2, 1)

    def channel_shape(self, rank: int) -> tuple[int, ...]:
        return 1, -1, *[1] * (rank - 2)

    def _taps(self, made: tuple[int, ...], read: tuple[int, ...]) -> im2col.Im2colTables:
        if (made, read) not in self._tables:
            self._tables[made, read] = im2col.Im2colTables.of(self.op, self.attrs, self.shape[2:], made, read)
        return self._tables[made, read]


class _Product(LinearLayer):
    """Gemm and MatMul with a constant matrix on either side, MatMul also with a stack of matrices.

    Each matrix of a stack is a group, together with the rows it is multiplied by.
    """

    @cached_property
    def size(self) -> tuple[int, int, int, int]:
        groups, outputs, summed = self._matrices(np.empty(self.shape)).shape
        return groups, outputs, 1, summed

    @property
    def output_axis(self) -> int:
        rank = len(self.shape)
        return -1 if rank == 1 else rank - (2 if self._has_rows_of_outputs() else 1)

    def pack(self, weight: AnyArray) -> AnyArray:
        return self._matrices(weight)[:, :, None, :]

    def unpack(self, packed: AnyArray) -> AnyArray:
        matrices = packed[:, :, 0, :]
        own = matrices if self._has_rows_of_outputs() else np.moveaxis(matrices, 1, 2)
        return np.ascontiguousarray(own).reshape(self.shape)

    def count(self, made: Sequence[int]) -> int:
        return math.prod(made) // math.prod(self.size[:2])

    def rows(
        self, inputs: AnyArray, made: Sequence[int], picked: Rows | slice = slice(None), outside: float = 0
    ) -> AnyArray:
        if self._reads_columns() and inputs.ndim > 1:
            inputs = np.moveaxis(inputs, -2, -1)
        if self.size[0] > 1:
            inputs = inputs[None] if inputs.ndim == 1 else inputs
            wide = np.broadcast_to(inputs, (*self._lead(made), *inputs.shape[-2:]))
            return self._by_matrix(wide)[:, picked]
        found = inputs.reshape(-1, self.size[3])[picked]
        return found[None] * np.float32(self.gain) if self.gain != 1 else found[None]

    def outputs(self, made: AnyArray, picked: Rows | slice = slice(None)) -> AnyArray:
        if self._makes_columns(made.ndim):
            made = np.moveaxis(made, -2, -1)
        if self.size[0] > 1:
            return self._by_matrix(made.reshape(*self._lead(made.shape), -1, self.size[1]))[:, picked]
        return made.reshape(-1, self.size[1])[picked][None]

    def weight_slope(self, rows: AnyArray, outputs: AnyArray) -> AnyArray:
        if self._has_rows_of_outputs():
            return super().weight_slope(rows, outputs)  # otherwise in the memory layout of the weight
        return (rows.transpose(0, 2, 1) @ outputs).reshape(self.shape)

    def channel_shape(self, rank: int) -> tuple[int, ...]:
        if not rank:
            return ()  # product of two vectors
        own = (-1, 1) if self._makes_columns(rank) else (-1,)
        if self.size[0] == 1:
            return own
        rows = (1, -1) if rank >= len(self.shape) and self.index == 1 else own
        return *self.shape[:-2], *rows

    def _makes_columns(self, rank: int) -> bool:
        return self.index == 0 and 1 < len(self.shape) <= rank

    def _matrices(self, weight: AnyArray) -> AnyArray:
        """Return the weight as [G, N, K]."""
        matrices = weight.reshape(-1, *weight.shape[-2:]) if weight.ndim > 1 else weight[None, None]
        return matrices if self._has_rows_of_outputs() else np.moveaxis(matrices, 1, 2)

    def _lead(self, made: Sequence[int]) -> tuple[int, ...]:
        """Return the axes of an output before its matrix axes, or vector axis if the data are a vector."""
        return tuple(made[: -1 if len(made) < len(self.shape) else -2])

    def _by_matrix(self, wide: AnyArray) -> AnyArray:
        """Return [..., R, L] as [G, R, L], with the axes of the weight's stack first."""
        stack = (*(1 for _ in range(wide.ndim - len(self.shape))), *self.shape[:-2])
        first = [axis for axis, size in enumerate(stack) if size > 1]
        others = [axis for axis, size in enumerate(stack) if size == 1]
        order = [*first, *others, wide.ndim - 2, wide.ndim - 1]
        return wide.transpose(order).reshape(self.size[0], -1, wide.shape[-1])

    def _has_rows_of_outputs(self) -> bool:
        return (self.index == 0) != self._is_transposed(self.index) or len(self.shape) == 1

    def _reads_columns(self) -> bool:
        """Return whether the rows are columns of the input in memory."""
        other = 1 - self.index
        return (other == 1) != self._is_transposed(other)

    def _is_transposed(self, index: int) -> bool:
        return self.op == "Gemm" and bool(self.attrs.get("transB" if index else "transA", 0))


def _by_channel(tensor: AnyArray) -> AnyArray:
    """Return [B, C, ...] as [C, B * ...], for a single image without a copy."""
    return tensor.swapaxes(0, 1).reshape(tensor.shape[1], -1)


def layer_of(node: gs.Node, shape: tuple[int, ...], index: int) -> LinearLayer:
    """Return the layer of a dot product with a weight of a shape as its operand ``index``.

    Raises UnsupportedLayer for an empty weight, and for a convolution with constant data.
    """
    if node.op in ("Conv", "ConvTranspose"):
        if index != 1:
            raise UnsupportedLayer("its data are a constant, not its weight")
        return _Convolution(node.op, dict(node.attrs), shape, index)
    if not shape or 0 in shape:
        raise UnsupportedLayer(f"its weight {list(shape)} is a scalar or empty")
    return _Product(node.op, dict(node.attrs), shape, index)
