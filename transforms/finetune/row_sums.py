"""The rows of a layer: its inputs as the quantized model stores them, summed in the order of the samples.

Quantized inputs are stored as integers between layers: steps of a model that end and begin with integers run
in the integer kernels of the whole model, and take a quarter of the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import AnyArray, Float64Array
from transforms.finetune.gram import GramStats, RowBlock
from transforms.finetune.layer_stats import HELD_ROWS, LEAST_INPUTS, LayerStats, RowStats
from transforms.finetune.layer_targets import relax
from transforms.finetune.sample_rows import SampledRows
from transforms.graph import walk
from transforms.graph.constants import load
from transforms.graph.value_limits import Limits
from transforms.layers.linear_layer import LinearLayer
from transforms.layers.matched_layer import MatchedLayer
from transforms.runtime.devices import array_module
from transforms.scheme.fitted_weights import has_few_bits

_STORABLE = {np.dtype(kind) for kind in (np.int8, np.uint8, np.int16, np.uint16)}

_LARGE = 1 << 26
"""Multiplications of the weights with a Gram matrix from which on sums in float64 take long."""


@dataclass(frozen=True)
class LayerInput:
    """The ``name`` of a tensor q; the layer reads (q - zero_point) * scale.

    Without a ``scale`` it reads q unchanged.
    """

    name: str
    scale: np.float32 | None = None
    zero_point: int = 0

    def read(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return the input of the layer, bit for bit the output of DequantizeLinear."""
        if self.scale is None:
            return stored
        centred = stored if self.zero_point == 0 else stored.astype(np.int32) - self.zero_point
        return centred.astype(np.float32) * self.scale


def layer_input(source: gs.Tensor) -> LayerInput:
    """Return the stored form of a layer's input: integers with one scale, or the tensor unchanged."""
    node = walk.producer(source)
    if node is None or node.op != "DequantizeLinear":
        return LayerInput(str(source.name))
    stored, *parameters = node.inputs
    if not isinstance(stored, gs.Variable) or not all(
        isinstance(parameter, gs.Constant) for parameter in parameters
    ):
        return LayerInput(str(source.name))
    scale, zero = load(parameters[0]), load(parameters[1]) if len(parameters) > 1 else None
    if zero is None or zero.dtype not in _STORABLE or {scale.size, zero.size} != {1}:
        return LayerInput(str(source.name))
    if scale.dtype != np.float32:
        return LayerInput(str(source.name))
    return LayerInput(str(stored.name), np.float32(scale.item()), int(zero.item()))


@dataclass(frozen=True)
class RowUser:
    """What determines the rows of a user of a weight.

    With ``limits``, at which errors are clipped: the float ``weight`` [G, N, K] and ``bias`` [G, N].
    ``kind``: the type of products of rows, float32 in large layers with weights of few bits.
    """

    layer: LinearLayer
    source: LayerInput
    device: str
    limits: Limits | None
    weight: AnyArray
    bias: Float64Array
    kind: type[np.floating]

    @classmethod
    def of(cls, user: MatchedLayer, limits: Limits | None, device: str) -> RowUser:
        """Return the user for a layer."""
        weight = user.float_weight.reshape(*user.float_weight.shape[:2], -1)
        products = weight.size * weight.shape[2]
        is_coarse = has_few_bits(user.weight.format) and products >= _LARGE
        kind = np.float32 if is_coarse else np.float64
        return cls(user.layer, layer_input(user.source), device, limits, weight, user.float_bias, kind)

    def no_sums(self, *, is_held: bool) -> LayerStats:
        """Return empty sums; held-out rows, and those with many inputs, are stored as rows at first."""
        groups, outputs, positions, channels = self.layer.size
        inputs, module = positions * channels, array_module(self.device)
        if module is not np or not (is_held or inputs > LEAST_INPUTS):
            return GramStats.zeros(groups, outputs, inputs, module, self.kind)
        return RowStats.zeros(groups, outputs, inputs, HELD_ROWS * inputs if is_held else inputs)

    def rows(self, inputs: AnyArray, chosen: SampledRows) -> AnyArray:
        """Return the chosen rows of a stored input."""
        return self.layer.rows(inputs, chosen.shape, chosen.picked, self.source.zero_point)

    def add(self, sums: LayerStats, stored: AnyArray, made: AnyArray) -> None:
        """Add rows of a stored input and of the targets to sums."""
        rows = self.source.read(stored)
        if self.limits is not None:
            near = rows @ self.weight.swapaxes(1, 2)
            made = relax(made, near + self.bias[:, None], self.limits)
        sums.add(rows, made)


class RowSums:
    """The sums of a user over rows of successive samples."""

    def __init__(self, user: RowUser, *, is_held: bool) -> None:
        """Start without rows; ``is_held``: the samples are held out."""
        self.user, self._total, self._block = user, user.no_sums(is_held=is_held), RowBlock()

    def add(self, inputs: AnyArray, made: AnyArray, chosen: SampledRows) -> None:
        """Add rows of the next sample."""
        if self._block.add(self.user.rows(inputs, chosen), made):
            self._settle()

    def total(self) -> LayerStats:
        """Return the sums over all rows so far, as NumPy arrays."""
        self._settle()
        return self._total.on_host()

    def _settle(self) -> None:
        for stored, made in self._block.take():
            self.user.add(self._total, stored, made)
            self._total = self._total.settled()
