"""A dot product with scales for its channels, and the constants that are scaled with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph.lazy_values import Weight, become_constant, derived

_OUTPUTS = 1 << 13
"""Outputs of a layer whose weights are looked at together."""

Exponents = NDArray[np.int64]
Ranges = NDArray[np.float64]


def weight_view(op: str, attrs: Mapping[str, Any], values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the weight of a dot product as a view ``[groups, outputs of a group, inputs of a group, taps]``.

    The matrices of a MatMul's weight of more than two axes are its taps.
    """
    if op in ("Conv", "ConvTranspose"):
        view = values.reshape(int(attrs.get("group", 1)), -1, values.shape[1], math.prod(values.shape[2:]))
        return view if op == "Conv" else view.swapaxes(1, 2)
    matrices = values.reshape(-1, *values.shape[-2:])
    return matrices.transpose(1, 2, 0)[None] if attrs.get("transB", 0) else matrices.T[None]


class ScaledLayer:
    """A dot product whose second operand is a constant weight of its own.

    ``out_shift`` and ``in_shift`` hold exponents of two, one per channel of the whole layer: results are
    divided by the one, and inputs are expected to be divided by the other. The weight changes only in
    :meth:`apply`.
    """

    def __init__(self, node: gs.Node) -> None:
        """Take the node as it is now; the weight is measured when ranges are asked for."""
        self.weight: gs.Constant = node.inputs[1]
        self._op, self._attrs = node.op, dict(node.attrs)
        groups, outputs, inputs, _ = self._view(np.empty(self.weight.shape, np.bool_)).shape
        self._groups = groups
        self.out_shift: Exponents = np.zeros(groups * outputs, np.int64)
        self.in_shift: Exponents = np.zeros(groups * inputs, np.int64)

    def out_ranges(self) -> Ranges:
        """Return the largest magnitude of the weights of each output channel, with the shifts."""
        shifted = np.ldexp(self._magnitudes, self._by_input(self.in_shift))
        return np.ldexp(shifted.max(axis=2, initial=0).reshape(-1), -self.out_shift)

    def in_ranges(self) -> Ranges:
        """Return the largest magnitude of the weights of each input channel, with the shifts."""
        if not self.out_shift.any():  # a head has too many outputs for a table of them
            view = self._view(self.weight.values)
            parts = (view[:, first : first + _OUTPUTS] for first in range(0, view.shape[1], _OUTPUTS))
            largest = [np.abs(part).max(axis=(1, 3), initial=0).reshape(-1) for part in parts]
            return np.ldexp(np.max(largest, axis=0, initial=0).astype(np.float64), self.in_shift)
        shifted = np.ldexp(self._magnitudes, -self._by_output(self.out_shift))
        return np.ldexp(shifted.max(axis=1, initial=0).reshape(-1), self.in_shift)

    def apply(self) -> None:
        """Scale the weight by the shifts."""
        shift = self._by_input(self.in_shift) - self._by_output(self.out_shift)
        if shift.any():
            source: Weight = self.weight._values
            op, attrs = self._op, self._attrs  # without what was measured, which would live as long

            def _scaled(values: NDArray[np.float32]) -> NDArray[np.float32]:
                values = np.array(values)
                view = weight_view(op, attrs, values)
                np.ldexp(view, shift[..., None], out=view)
                return values

            become_constant(self.weight, derived(source, _scaled, np.float32))

    @cached_property
    def _magnitudes(self) -> Ranges:
        return np.abs(self._view(self.weight.values)).max(axis=3, initial=0).astype(np.float64)

    def _view(self, values: NDArray[Any]) -> NDArray[Any]:
        return weight_view(self._op, self._attrs, values)

    def _by_input(self, shift: Exponents) -> Exponents:
        return shift.reshape(self._groups, 1, -1)

    def _by_output(self, shift: Exponents) -> Exponents:
        return shift.reshape(self._groups, -1, 1)


@dataclass(frozen=True)
class Companion:
    """A constant that is added to a scaled tensor, or bounds it, and has to be scaled with it.

    ``axis`` is that of the channels, counted from the end.
    """

    tensor: gs.Constant
    axis: int
    is_offset: bool

    def fits(self, channels: int) -> bool:
        """Return whether there is a number for each channel, or one for all."""
        return self._aligned().shape[self.axis] in (1, channels)

    def magnitudes(self) -> Ranges:
        """Return the largest magnitude for each channel, or one for all."""
        values = np.moveaxis(np.abs(self._aligned()), self.axis, 0)
        return values.reshape(len(values), -1).max(axis=1, initial=0).astype(np.float64)

    def apply(self, shift: Exponents) -> None:
        """Divide by two to the power of the shift of each channel."""
        if shift.any():
            self.tensor.values = np.ldexp(self._aligned(), -shift.reshape(-1, *(1,) * (-self.axis - 1)))

    def _aligned(self) -> NDArray[np.float32]:
        values = self.tensor.values
        return values.reshape((1,) * (-self.axis - values.ndim) + values.shape)
