"""Concats of tensors with very different ranges: on a shared scale, small numbers would round to nothing.

Detectors concatenate boxes in pixels and logits of scores, and split them again: on the scale of the boxes a
score has only a few steps. The result of such a Concat stays float, and its inputs keep their own scales.

A layer that multiplies the whole result by weights is different: its sums have errors of all channels, and
errors of small channels do not exceed those of large ones. Such a Concat stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.dot_products import is_dot_product, is_operand
from transforms.graph.rewire import onnx_op
from transforms.plan.integer_moves import is_move, is_operand_moved
from transforms.plan.integer_sites import SLICES
from transforms.plan.quant_spec import ACTIVATION, QuantSite
from transforms.plan.quantization_plan import Extremes, QuantizationPlan, range_of

APART = 50
"""Ratio of a range of 255 steps to one of 5. The squared error of rounding is a twelfth of a squared step:
for numbers spread evenly over those 5 steps it is 14 dB below the power, for others less."""

_STEPS = 255 / APART

JOINED = "parts whose ranges are far apart"
"""The reason why these stay float."""

_CUTS = SLICES | {"Gather", "GatherND", "GatherElements"}

_PLAIN = frozenset({"Add", "Sub", "Mul", "Div"})

_EACH_ALONE = frozenset(
    {"Relu", "LeakyRelu", "PRelu", "Clip", "AveragePool", "GlobalAveragePool", "Resize", "Concat"}
)
"""Operators that do not scale one channel against another."""


def joined_far_apart(plan: QuantizationPlan, extremes: Extremes) -> list[str]:
    """Return the names of activations that share the scale of a Concat despite very different ranges.

    ``extremes``: the lowest and the highest number of each tensor in all samples.
    """
    sites = {
        id(quantization.tensor): quantization
        for quantization in plan.quantizations
        if quantization.role == ACTIVATION
    }
    names: dict[str, None] = {}
    for node in plan.graph.nodes:
        joined = _Joined(plan, node) if onnx_op(node) == "Concat" else None
        if joined is None or not joined.is_taken_apart:
            continue
        some = [sites[id(tensor)] for tensor in joined.tensors if id(tensor) in sites]
        if any(_is_too_coarse(plan, node, site, extremes) for site in some):
            names |= dict.fromkeys(str(site.tensor.name) for site in some)
    return [name for name in names if name not in plan.scheme.tensors]


class _Joined:
    """The tensors with the scale of a Concat, or in proportion to it.

    ``is_taken_apart``: whether a reader takes a part of it, or computes with single numbers.
    """

    def __init__(self, plan: QuantizationPlan, concat: gs.Node) -> None:
        self.tensors: list[gs.Tensor] = [concat.outputs[0]]
        self.is_taken_apart = False
        seen = set[int]()
        for tensor in self.tensors:  # grows during the loop
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            self.is_taken_apart |= walk.is_output(tensor, plan.graph)
            for node, index in walk.uses(tensor):
                self._follow(plan, node, index)

    def _follow(self, plan: QuantizationPlan, node: gs.Node, index: int) -> None:
        if is_move(node) and index == 0:
            is_cut = onnx_op(node) in _CUTS
            self.is_taken_apart |= is_cut
            self.tensors += [
                output for output in node.outputs if not is_cut or self._shares(plan, output, node)
            ]
        elif onnx_op(node) in _EACH_ALONE or _takes_number(node):
            self.tensors += node.outputs[:1]
        elif onnx_op(node) in _PLAIN and _constants(node) and not is_operand_moved(node.outputs[0]):
            self.is_taken_apart = True  # scaled per channel; later layers may read all channels alike
            self.tensors += node.outputs[:1]
        elif not (is_dot_product(node) and is_operand(node, index)):
            self.is_taken_apart = True

    def _shares(self, plan: QuantizationPlan, part: gs.Tensor, cut: gs.Node) -> bool:
        source = plan.specs.integers.source
        return source(part) is source(cut.inputs[0])


def _takes_number(node: gs.Node) -> bool:
    """Return whether a node multiplies by or adds a single number."""
    return onnx_op(node) in _PLAIN and any(constant.values.size == 1 for constant in _constants(node))


def _constants(node: gs.Node) -> list[gs.Constant]:
    return [tensor for tensor in node.inputs if isinstance(tensor, gs.Constant)]


def _is_too_coarse(plan: QuantizationPlan, concat: gs.Node, site: QuantSite, extremes: Extremes) -> bool:
    """Return whether a joined part has only a few steps of the shared scale, for this bit width."""
    step = site.steps[-1]
    if not step.format.is_integer or not step.needs_range or plan.grid(site, step):
        return False
    widths = list(_widths(plan, concat, extremes, symmetric=step.symmetric))
    if len(widths) < 2:
        return False
    return min(widths) * (2**step.format.bits - 1) < _STEPS * max(widths)


def _widths(
    plan: QuantizationPlan, concat: gs.Node, extremes: Extremes, *, symmetric: bool
) -> Iterator[float]:
    """Yield the widths of the ranges that a Concat joins, without empty and unmeasured ones."""
    for tensor in concat.inputs:
        source = tensor if isinstance(tensor, gs.Constant) else plan.specs.integers.source(tensor)
        low, high = range_of([source], extremes) or (0.0, 0.0)
        if width := 2 * max(-low, high) if symmetric else high - low:
            yield width
