"""Weights of 8 bits with which ONNX Runtime's sums are exact on every processor.

Without VNNI, kernels on x86 add the products of int8 weights in pairs that saturate (:mod:`ops.pair_sums`).
Each weight beside activations of 8 bits gets what costs least:

* uint8, of which products are widened to 16 bits first, where that costs no time: convolutions with few
  channels in a group, whose time is that of gathering the input, and products of one row for each sample,
  whose time is that of reading the weight. Elsewhere it takes 1.2 to 2.7 times int8's on a processor with
  VNNI, here 0.98 to 1.38 (``python -m tests.benchmarks.bench_sums``);
* int8 with pairs that cannot saturate, by larger scales and by lowering the pairs that are still beyond.

Depthwise convolutions have kernels that add in 32 bits, and ConvTranspose has none for integers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import onnx_graphsurgeon as gs

import ops
from transforms.graph import dot_products
from transforms.plan.quant_spec import QuantSpec

_SATURATES, _BITS = "int8", 8
_WIDENED = "uint8"

_FEW_CHANNELS = 3
"""Channels in a group up to which a convolution gathers its input (im2col) for longer than it multiplies:
kernels that gather nothing take multiples of four."""


def sums_saturate(weight: QuantSpec, activation: QuantSpec | None) -> bool:
    """Return whether the sums of a product's second input may saturate beside an activation."""
    if weight.block or weight.in_rows or weight.format.name != _SATURATES or activation is None:
        return False
    return activation.format.is_integer and activation.format.bits <= _BITS


def exact_sums(spec: QuantSpec, node: gs.Node, batch: Collection[object]) -> QuantSpec:
    """Return the grid of a weight, the second input of a product, with which its sums are exact.

    ``batch``: sizes that stand for the number of samples.
    """
    axes = dot_products.pair_axes(node, node.inputs[1].shape)
    if axes and _is_cheap(node, batch):
        return replace(spec, format=ops.get_format(_WIDENED), symmetric=True)
    return replace(spec, pairs=axes)


def _is_cheap(node: gs.Node, batch: Collection[object]) -> bool:
    """Return whether a layer takes no longer with weights that are widened."""
    if node.op == "Conv":
        return int(node.inputs[1].shape[1]) <= _FEW_CHANNELS
    shape = node.inputs[0].shape
    return shape is not None and len(shape) > 1 and all(size == 1 or size in batch for size in shape[:-1])
