"""Sums over rows of a layer, added in blocks, in the order of the samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ops.array_types import AnyArray, Float64Array
from transforms.finetune.diagonal_gram import DiagonalStats
from transforms.finetune.gram import GramStats, RowBlock
from transforms.finetune.layer_targets import Limits, relax
from transforms.finetune.options import LayerwiseOptions
from transforms.finetune.row_stats import LEAST_INPUTS, RowStats
from transforms.finetune.sample_rows import SampledRows
from transforms.finetune.shared_stats import LayerStats
from transforms.finetune.stored_input import LayerInput, layer_input
from transforms.layers.linear_layer import LinearLayer
from transforms.layers.matched_layer import MatchedLayer
from transforms.runtime.devices import array_module


@dataclass(frozen=True)
class RowUser:
    """What the rows of a user of a weight depend on.

    With ``limits``, at which errors are cut off: the float ``weight`` [G, N, K] and ``bias`` [G, N].
    ``is_diagonal``: only the diagonal of the Gram matrix is summed up; the weight is there for that, too.
    """

    layer: LinearLayer
    source: LayerInput
    device: str
    limits: Limits | None = None
    weight: AnyArray | None = None
    bias: Float64Array | None = None
    is_diagonal: bool = False

    @classmethod
    def of(cls, user: MatchedLayer, limits: Limits | None, options: LayerwiseOptions) -> RowUser:
        """Return that of a layer."""
        layer, source, device = user.layer, layer_input(user.source), options.device
        is_diagonal = options.most_inputs is not None and layer.size[2] * layer.size[3] > options.most_inputs
        if limits is None and not is_diagonal:
            return cls(layer, source, device)
        weight = np.ascontiguousarray(user.float_weight.reshape(*user.float_weight.shape[:2], -1))
        return cls(layer, source, device, limits, weight, user.float_bias, is_diagonal)

    def no_sums(self) -> LayerStats:
        """Return the sums over no rows; many inputs have their rows themselves at first."""
        if self.is_diagonal and self.weight is not None:
            return DiagonalStats.of_weight(self.weight)
        groups, outputs, positions, channels = self.layer.size
        inputs, module = positions * channels, array_module(self.device)
        if inputs > LEAST_INPUTS and module is np:
            return RowStats.zeros(groups, outputs, inputs)
        return GramStats.zeros(groups, outputs, inputs, module)

    def rows(self, inputs: AnyArray, chosen: SampledRows) -> AnyArray:
        """Return the chosen rows of a stored input."""
        return self.layer.rows(inputs, chosen.shape, chosen.picked, self.source.zero_point)

    def add(self, sums: LayerStats, stored: AnyArray, made: AnyArray, weights: Float64Array | None) -> None:
        """Add rows of a stored input, and of the targets, to sums."""
        rows = self.source.read(stored)
        if self.limits is not None and self.weight is not None and self.bias is not None:
            near = rows @ self.weight.swapaxes(1, 2)
            made = relax(made, near + self.bias[:, None], self.limits)
        sums.add(rows, made, weights)


class RowSums:
    """The sums of a user over rows of one sample after another."""

    def __init__(self, user: RowUser) -> None:
        """Start without rows."""
        self.user, self._total = user, user.no_sums()
        self._block = RowBlock(self._add)

    def add(self, inputs: AnyArray, made: AnyArray, chosen: SampledRows) -> None:
        """Add rows of the next sample."""
        self._block.add(self.user.rows(inputs, chosen), made, chosen.weights)

    def total(self) -> LayerStats:
        """Return the sums over all rows, as NumPy's arrays."""
        self._block.flush()
        return self._total.on_host()

    def _add(self, stored: AnyArray, made: AnyArray, weights: Float64Array | None) -> None:
        self.user.add(self._total, stored, made, weights)
        self._total = self._total.settled()
