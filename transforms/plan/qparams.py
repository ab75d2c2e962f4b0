"""Scales and zero points of all integer grids of a plan."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypedDict

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

import ops
from ops.array_types import QParams
from ops.integer_blocks import block_parameters
from ops.integers import finite_range, range_scale, weight_scale
from ops.pair_sums import paired_scale
from ops.powers_of_two import are_powers, ceil_power
from transforms.graph import dot_products, walk
from transforms.graph.dot_products import TensorAxis
from transforms.graph.grids import Grid
from transforms.graph.lazy_values import Computed, is_weightless
from transforms.plan.qdq_writer import rounded
from transforms.plan.quant_spec import BIAS, WEIGHT, QuantSite, QuantSpec
from transforms.plan.quantization_plan import (
    MSE,
    WEIGHTED,
    Extremes,
    QuantizationPlan,
    each_use,
    importance,
    weighed_inputs,
    weighed_uses,
    weight_method,
)
from transforms.plan.tensor_grids import TensorGrid, check_grid
from transforms.plan.weight_cache import WeightMemory
from transforms.scheme.scheme import POWER_OF_TWO

_FEW = 2
"""Weights whose scales are chosen at a time if their values are computed lazily."""

_LARGEST_BIAS = np.float64(2**31 - 1)
_BIAS_STEPS = 2**15
_LEAST_SCALE = 2.0**-60  # the product of two does not underflow
_MARGIN = 1 + 2.0**-20  # the quotient of a bias and its scale is rounded to float32 before int32

GridKey = tuple[int, QuantSpec]
"""The id of a tensor, and one step of its quantization."""


class _Weighing(TypedDict):
    """What decides a weight's scale besides its numbers."""

    importance: NDArray[np.float64] | None
    power_of_two: bool


class Ranges(Protocol):
    """The results of calibration."""

    def range(self, name: str, format: ops.Format, *, symmetric: bool) -> tuple[float, float]:
        """Return the range of a tensor for a format; ValueError if it was never measured."""

    def mean_squares(self, channels: Iterable[TensorAxis]) -> dict[TensorAxis, NDArray[np.float64]]:
        """Return the mean square of each channel along those axes of tensors for which it was measured."""

    def extremes(self) -> Extremes:
        """Return the lowest and the highest number of each tensor, by name."""

    def means(self, channels: Iterable[TensorAxis]) -> dict[TensorAxis, NDArray[np.float64]]:
        """Return the mean of each channel along those axes of tensors for which it was measured."""


class QParamsTable:
    """The scale and zero point of every integer step of a plan's quantizations."""

    def __init__(
        self, plan: QuantizationPlan, ranges: Ranges | None, memory: WeightMemory | None = None
    ) -> None:
        """Choose all of them; ``ranges`` may be None for a plan that measures nothing.

        The scale of a weight is widened where an int32 bias would overflow. Raises ValueError for a tensor
        without a range.
        """
        if ranges is not None:
            plan.settle(ranges.extremes())
        self._plan, self._ranges, self._memory = plan, ranges, memory or WeightMemory()
        self._powers = plan.scheme.scale == POWER_OF_TWO
        self._mean_squares = {} if ranges is None else ranges.mean_squares(weighed_inputs(plan))
        self._weighed = weighed_uses(plan)
        self._given: set[GridKey] = set()
        self._hulls: dict[tuple[int, QuantSpec], tuple[float, float]] = {}
        self._zeros: dict[GridKey, tuple[NDArray[np.bool_], int]] = {}
        self._wanted: dict[GridKey, tuple[QuantSite, QuantSpec]] = {}
        for quantization in plan.quantizations:
            for step in quantization.steps:
                if step.needs_range and quantization.role != BIAS:
                    self._wanted.setdefault((id(quantization.tensor), step), (quantization, step))
        wanted = self._wanted.items()
        measured = {
            key: candidate
            for key, candidate in wanted
            if candidate[0].role != WEIGHT and not plan.grid(*candidate)
        }
        unmeasured = {key: candidate for key, candidate in wanted if key not in measured}
        lazy = any(is_weightless(tensor._values) for tensor in walk.constants(plan.graph))
        with ThreadPoolExecutor(_FEW if lazy else os.cpu_count()) as pool:  # large weights take long
            parameters = pool.map(lambda candidate: self._choose(*candidate), unmeasured.values())
            self._chosen = dict(zip(unmeasured, parameters, strict=True))
            ranges_of = pool.map(lambda candidate: self._measure(*candidate), measured.values())
            self._chosen |= self._cover(dict(zip(measured, ranges_of, strict=True)))
        self._operands = {
            (id(node), index): (id(quantization.tensor), quantization.steps[-1])
            for node, index, quantization in each_use(plan)
            if quantization.role != BIAS
        }
        for node, _, quantization in each_use(plan):
            if quantization.role == BIAS and quantization.steps[0].needs_range:
                self._refine(node, quantization.tensor)
                self._widen(node, quantization.tensor)

    def of(self, tensor: gs.Tensor, step: QuantSpec) -> QParams | None:
        """Return scale and zero point of a tensor other than a bias, None for a grid without a range."""
        return self._chosen[id(tensor), step] if step.needs_range else None

    def read(self, site: QuantSite, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return float32 numbers as nodes read them, after all steps of a site."""
        for step in site.steps:
            values = rounded(values, step, self.of(site.tensor, step))
        return values

    def grids(self, seen: Extremes) -> Iterator[TensorGrid]:
        """Yield the grid of each tensor that becomes integers, without biases, before the plan is written.

        ``seen`` holds the lowest and highest number of computed tensors.
        """
        for key, (site, step) in self._wanted.items():
            tensor, fmt, (scale, zero_point) = site.tensor, step.format, self._chosen[key]
            ends = seen.get(tensor.name, (None, None))
            if isinstance(tensor, gs.Constant) and np.size(tensor.values):
                ends = float(np.min(tensor.values)), float(np.max(tensor.values))
            grid = Grid(fmt.name, scale, zero_point, axis=step.axis, block_size=step.block)
            yield TensorGrid.of(tensor.name, site.role, grid, *ends)

    def of_bias(self, node: gs.Node) -> QParams:
        """Return scale (x_scale * w_scale, a scalar or one per channel) and zero point of an int32 bias."""
        (x_scale, _), (w_scale, _) = (self._chosen[self._operands[id(node), index]] for index in range(2))
        scale = np.asarray(x_scale * w_scale, np.float32)
        return scale, np.zeros(scale.shape, np.int32)

    def _choose(self, quantization: QuantSite, step: QuantSpec) -> QParams:
        """Return the scale and zero point of a weight, or the given ones."""
        tensor, fmt = quantization.tensor, step.format
        grid = self._plan.grid(quantization, step)
        if grid is not None:
            is_constant = isinstance(tensor, gs.Constant)
            check_grid(grid, np.asarray(tensor.values, np.float32) if is_constant else None, step.axis)
            if self._powers and not are_powers(grid.scale):
                raise ValueError(
                    f"ranges of '{grid.name}': a scale is not a power of two, as the scheme asks"
                )
            self._given.add((id(tensor), step))
            fixed_grid = grid.in_format(fmt)
            return fixed_grid.scale, fixed_grid.zero_point
        scale, zero_point = self._choose_weight(tensor, step)
        if (scale == 1).any() and not step.block:
            ends = finite_range(np.asarray(tensor.values, np.float32), step.axis)
            self._zeros[id(tensor), step] = np.all(np.equal(ends, 0), axis=0), id(tensor)
        return scale, zero_point

    def _measure(self, quantization: QuantSite, step: QuantSpec) -> tuple[float, float]:
        """Return the range of an activation, or of a constant other than a weight."""
        tensor = quantization.tensor
        group = self._plan.group(tensor)
        key = id(group), step
        if key not in self._hulls:
            self._hulls[key] = shared_range(group, self._ranges, step)
        low, high = self._hulls[key]
        if low == high == 0:
            self._zeros[id(tensor), step] = np.ones((), np.bool_), id(group)
        return low, high

    def _cover(self, ranges: Mapping[GridKey, tuple[float, float]]) -> dict[GridKey, QParams]:
        """Return the scales and zero points that cover ranges, computed at once for each kind of grid."""
        kinds: dict[tuple[ops.Format, bool], list[GridKey]] = {}
        for key in ranges:
            kinds.setdefault((key[1].format, key[1].symmetric), []).append(key)
        parameters: dict[GridKey, QParams] = {}
        for (fmt, symmetric), keys in kinds.items():
            low, high = np.array([ranges[key] for key in keys]).T
            scales, zeros = range_scale(low, high, fmt, symmetric=symmetric, power_of_two=self._powers)
            parameters |= {key: (scales[i, ...], zeros[i, ...]) for i, key in enumerate(keys)}
        return parameters

    def _choose_weight(self, tensor: gs.Tensor, step: QuantSpec) -> QParams:
        def _values() -> NDArray[np.float32]:
            return np.asarray(tensor.values, np.float32)

        if not step.symmetric and not step.block:
            low, high = finite_range(_values(), step.axis)
            return range_scale(low, high, step.format, symmetric=False, power_of_two=self._powers)
        method = weight_method(self._plan.scheme, step)
        counts = importance(self._weighed, tensor, self._mean_squares) if method == WEIGHTED else None
        plain = MSE if method == WEIGHTED else method
        if step.block:
            assert step.axis is not None, "the axis of blocks"
            grid = step.format, step.axis, step.block
            scale, zero = block_parameters(
                _values(), *grid, symmetric=step.symmetric, method=plain, importance=counts
            )
            return self._legal(np.abs(scale)) if self._powers else scale, zero
        weighed = None if counts is None else (counts.shape, counts.tobytes())
        source = tensor._values if isinstance(tensor._values, Computed) else _values()

        def _scale() -> NDArray[np.float32]:
            how: _Weighing = {"importance": counts, "power_of_two": self._powers}
            scale = weight_scale(_values(), step.format, step.axis, method=plain, **how)
            for axes in step.pairs:
                scale = paired_scale(_values(), scale, axes, step.axis, **how)
            return scale

        scale = self._memory.recall(source, ("scale", step, plain, weighed, self._powers), _scale)
        middle = 0 if step.format.is_signed else int(step.format.highest + 1) // 2
        return scale, np.full(scale.shape, middle, step.format.dtype)

    def _refine(self, node: gs.Node, bias: gs.Tensor) -> None:
        """Lower the scales of all-zero operands until the bias of the node has enough steps.

        Zeros do not determine a scale; with scale 1 the bias would only have the steps of the other operand.
        """
        values = np.abs(np.asarray(bias.values, np.float64)).reshape(-1)
        for index in range(2):
            key, other = (self._operands[id(node), i] for i in (index, 1 - index))
            zeros, group = self._zeros.get(key, (np.False_, 0))
            if not np.any(zeros):
                continue
            largest = values if zeros.shape else values.max(initial=0)
            enough = self._legal(largest / (_BIAS_STEPS * self._chosen[other][0].astype(np.float64).max()))
            for member in (
                member for member, (_, member_group) in self._zeros.items() if member_group == group
            ):
                scale, zero_point = self._chosen[member]
                lower = zeros & (enough > _LEAST_SCALE) & (enough < scale)
                self._chosen[member] = np.where(lower, enough, scale).astype(np.float32), zero_point

    def _widen(self, node: gs.Node, bias: gs.Tensor) -> None:
        """Widen the scale of a weight until the largest bias of each channel fits into int32."""
        key = self._operands[id(node), dot_products.weight_index(node) or 0]
        other = self._operands[id(node), 0 if key == self._operands[id(node), 1] else 1]
        scale, zero_point = self._chosen[key]
        values = np.abs(np.asarray(bias.values, np.float64)).reshape(-1)
        values = values if scale.shape else values.max(initial=0)
        least = values * _MARGIN / (_LARGEST_BIAS * self._chosen[other][0].astype(np.float64))
        wide = np.maximum(scale, self._legal(least.astype(np.float32)))
        if key in self._given and (wide != scale).any():
            raise ValueError(
                f"ranges: scale {scale.max():g} is too small for the bias '{bias.name}' in int32"
            )
        self._chosen[key] = wide, zero_point

    def _legal(self, scale: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return scales not below these, as powers of two if the scheme requires it; 0 stays."""
        return np.where(scale > 0, ceil_power(scale), scale) if self._powers else scale


def shared_range(group: Iterable[gs.Tensor], ranges: Ranges | None, step: QuantSpec) -> tuple[float, float]:
    """Return the common range of tensors; ValueError for a tensor without one."""
    members = [_range(ranges, member, step) for member in group]
    return min(low for low, _ in members), max(high for _, high in members)


def _range(ranges: Ranges | None, tensor: gs.Tensor, step: QuantSpec) -> tuple[float, float]:
    if isinstance(tensor, gs.Constant):
        low, high = finite_range(np.asarray(tensor.values, np.float32))
        return float(low), float(high)
    if ranges is None:
        raise ValueError(f"tensor '{tensor.name}' needs a range for {step.format.name}: calibrate first")
    return ranges.range(tensor.name, step.format, symmetric=step.symmetric)
