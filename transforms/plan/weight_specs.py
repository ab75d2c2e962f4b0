"""Choose the integer grid of a stored weight for one of its uses."""

from __future__ import annotations

import onnx_graphsurgeon as gs

import ops
from transforms import features
from transforms.plan.graph_facts import GraphFacts
from transforms.plan.quant_spec import UNSIGNED, WEIGHT, QuantSpec, scale_axis, scale_block_axis
from transforms.plan.scheme_targets import FormatTable, Targets
from transforms.scheme.scheme import AUTO, Scheme


class WeightSpecs:
    """The grids of weights by a scheme, its formats of nodes and the facts of a graph."""

    def __init__(self, scheme: Scheme, targets: Targets, formats: FormatTable, facts: GraphFacts) -> None:
        """Choose nothing yet."""
        self._scheme, self._targets, self._formats, self._facts = scheme, targets, formats, facts

    def of(self, fmt: ops.Format, weight: gs.Constant, node: gs.Node, index: int) -> QuantSpec:
        """Return the integer grid of a weight: in blocks, per channel, or as fixed."""
        fixed_grid, formats, fixed = None, self._formats[node], self._targets.fixed
        if form := features.weights_of(node):
            return form.grid(fmt, weight, self._scheme.block_size, formats.weight_method)
        if fixed:
            fixed_grid = fixed.of([weight.name], fmt, WEIGHT, scale_axis(node, index, weight, True))
        size = 0 if fixed_grid is not None else self._scheme.block_size
        axis = scale_block_axis(node, index, weight, size)
        if axis is not None:
            is_named = id(node) in self._formats.naming_weights or id(weight) in self._targets.tensors
            fmt = fmt if is_named else self._format_of_blocks(fmt, weight)
            return QuantSpec(fmt, axis, fmt.is_signed, size, formats.weight_method)
        per_channel = formats.per_channel if fixed_grid is None else bool(fixed_grid.scale.ndim)
        axis = scale_axis(node, index, weight, per_channel)
        return QuantSpec(fmt, axis, fmt.is_signed, method=formats.weight_method)

    def _format_of_blocks(self, fmt: ops.Format, weight: gs.Constant) -> ops.Format:
        """Return the format of a weight in blocks: unsigned if it is to have zero points."""
        wanted = self._scheme.weight_symmetric
        if wanted is True or fmt.name not in UNSIGNED:
            return fmt
        is_left = wanted == AUTO and id(weight) not in self._facts.lopsided
        return fmt if is_left else ops.get_format(UNSIGNED[fmt.name])
