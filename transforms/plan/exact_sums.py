"""Grids of 8-bit weights with which ONNX Runtime's sums are exact on every processor.

Without VNNI, kernels on x86 add the products of int8 weights in pairs that saturate (:mod:`ops.pair_sums`).
Each weight beside 8-bit activations gets the cheapest remedy:

* uint8, whose products are widened to 16 bits first, where that takes no time: convolutions with few
  channels in a group, which spend their time gathering the input, and products with one row for each sample,
  which spend it reading the weight. Elsewhere it takes 1.1 to 2.5 times int8's time on a processor with VNNI,
  here 1.01 to 1.36 (``python -m tests.benchmarks.bench_sums``);
* int8 with pairs that cannot saturate, by larger scales and by lowering the pairs that still would; their
  number depends on the order of channels (:mod:`transforms.order_channels`).

Depthwise convolutions have kernels that add in 32 bits; ConvTranspose has no integer kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import onnx_graphsurgeon as gs

import ops
from transforms.features.hooks import RunTimeProducts
from transforms.graph import dot_products, walk
from transforms.plan.quant_spec import WEIGHT, QuantSpec
from transforms.plan.tensor_grids import FixedGrids
from transforms.scheme.scheme import POWER_OF_TWO, Scheme
from transforms.scheme.scheme_values import AVOID, IGNORE
from transforms.scheme.targets import ON_CPU

_SATURATES, _BITS = "int8", 8
_WIDENED = "uint8"

_FEW_CHANNELS = 3
"""Channels in a group up to which a convolution gathers its input (im2col) for longer than it multiplies:
kernels that gather nothing take multiples of four."""

OfInput = Callable[[gs.Node, int], tuple[QuantSpec | None, str]]
OfWeight = Callable[[ops.Format, gs.Constant, gs.Node, int], QuantSpec]
AtRunTime = Callable[[gs.Node], RunTimeProducts | None]


class ExactSums:
    """Chooses weight grids with exact sums for the layers of one graph."""

    def __init__(
        self, graph: gs.Graph, scheme: Scheme, fixed: FixedGrids, at_run_time: AtRunTime, of_weight: OfWeight
    ) -> None:
        """Take the scheme, the fixed grids, and the inputs of a prepared graph.

        ``at_run_time``: how a product rounds its input at run time; ``of_weight`` returns the grid of a
        weight regardless of sums.
        """
        self._scheme, self._at_run_time = scheme, at_run_time
        self._is_wanted = scheme.saturation != IGNORE and scheme.target in ("", ON_CPU)
        self._may_widen = scheme.scale != POWER_OF_TWO  # their kernels shift, and take no zero points
        self._fixed, self._of_weight = fixed, of_weight
        first_sizes = (tensor.shape[0] for tensor in graph.inputs if tensor.shape)
        self._batch = {size for size in first_sizes if isinstance(size, str)}

    def of(self, fmt: ops.Format, node: gs.Node, index: int, of_input: OfInput) -> QuantSpec:
        """Return the grid of a weight of a format, which a product reads as its input ``index``.

        ``of_input`` returns the grid of an input of a node, and its role.
        """
        weight = node.inputs[index]
        spec = self._of_weight(fmt, weight, node, index)
        if not self._is_wanted or index != 1 or spec.format.name != _SATURATES or spec.block or spec.form:
            return spec
        pairs = _sums(spec, weight)
        if products := self._at_run_time(node):
            return replace(spec, pairs=pairs) if products.multiplies(node, self._scheme) else spec
        if not _has_few_bits(of_input(node, 0)[0]):
            return spec
        fixed_grid, widened = None, ops.get_format(_WIDENED)
        if self._fixed:
            fixed_grid = self._fixed.of([weight.name], fmt, WEIGHT, spec.axis)
        is_other = fixed_grid is not None and not fixed_grid.fits(
            widened
        )  # one of bits alone is a grid of both
        if pairs and self._may_widen and not is_other and self._is_cheap(node):
            return replace(self._of_weight(widened, weight, node, index), symmetric=True)
        return replace(spec, pairs=pairs)

    def _is_cheap(self, node: gs.Node) -> bool:
        """Return whether a layer is as fast with widened weights, and alone reads its weight."""
        if len(node.inputs[1].outputs) > 1:
            return False
        if node.op == "Conv":
            return int(node.inputs[1].shape[1]) <= _FEW_CHANNELS
        shape = node.inputs[0].shape
        is_matrix = shape is not None and len(shape) > 1
        return is_matrix and all(size == 1 or size in self._batch for size in shape[:-1])


def _sums(spec: QuantSpec, weight: gs.Constant) -> tuple[tuple[int, ...], ...]:
    """Return the axes of the sums over a weight in all products that may read it on this grid.

    The weight is stored once for all; products that sum along the axis of its scales are left out.
    """
    products = [node for node, index in walk.uses(weight) if index == 1 and dot_products.is_dot_product(node)]
    all_axes = {dot_products.pair_axes(node, weight.shape) for node in products}
    return tuple(sorted(axes for axes in all_axes if axes and spec.axis not in axes))


def orders_channels(scheme: Scheme) -> bool:
    """Return whether channels may be reordered so that 8-bit sums saturate less."""
    if scheme.saturation != AVOID or scheme.target not in ("", ON_CPU) or scheme.weight != _SATURATES:
        return False
    activation = scheme.format(scheme.activation)
    return activation is not None and activation.is_integer and activation.bits <= _BITS


def _has_few_bits(activation: QuantSpec | None) -> bool:
    return activation is not None and activation.format.is_integer and activation.format.bits <= _BITS
