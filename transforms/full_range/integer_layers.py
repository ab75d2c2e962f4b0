"""Integer Conv and Gemm, and moving zero to the lowest level of int8, which their int32 biases absorb."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.array_types import Float64Array
from transforms.graph import walk
from transforms.graph.constants import exportable, load
from transforms.graph.rewire import STANDARD_DOMAINS

MIDDLE = 128
"""Steps by which a tensor is shifted."""

_LARGEST = 2**31 - 1
_SAME = 1e-5  # relative difference of scales explained by rounding to float32
_HEADROOM = 1.01  # times a bias: rounding the weights again changes what is added to it


@dataclass(frozen=True)
class IntegerLayer:
    """A Conv or Gemm, the int32 numbers of its bias, N in the last axis, and their steps, all its own.

    ``weight`` dequantizes its integer weight. ``may_grow``: it has a scale for each output, read by no other
    layer, which can then be increased.
    """

    node: gs.Node
    numbers: gs.Constant
    steps: gs.Constant
    weight: gs.Node
    may_grow: bool

    @property
    def integers(self) -> NDArray[np.int64]:
        """The weight as integers minus their zero point, outputs first: [N, K]."""
        stored = load(self.weight.inputs[0])
        found = stored.astype(np.int64) - middle_of(stored.dtype)
        return (found if _is_first(self.node) else found.T).reshape(load(self.numbers).size, -1)


def integer_layer(node: gs.Node) -> IntegerLayer | None:
    """Return a Conv or Gemm with integer weights and an int32 bias of its own, or None."""
    if node.op not in ("Conv", "Gemm") or node.domain not in STANDARD_DOMAINS or len(node.inputs) < 3:
        return None
    if any(node.attrs.get(name, 1.0) != 1.0 for name in ("alpha", "beta")) or node.attrs.get("transA", 0):
        return None
    stored = [_stored(node.inputs[index]) for index in (1, 2)]
    if stored[0] is None or stored[1] is None:
        return None
    weight, bias = stored[0], stored[1]
    numbers, steps = load(bias.inputs[0]), load(bias.inputs[1])
    if numbers.dtype != np.int32 or not (_is_own(bias) and np.all(steps > 0)):
        return None
    shape, scale = np.shape(load(weight.inputs[0])), load(weight.inputs[1])
    outputs = shape[0 if _is_first(node) else 1]
    if numbers.size != outputs or numbers.shape[-1:] != (outputs,):
        return None
    if scale.size > 1 and not _is_each_output(node, weight):
        return None
    may_grow = scale.size == numbers.size == steps.size and _is_own(weight)
    return IntegerLayer(node, bias.inputs[0], bias.inputs[1], weight, may_grow)


def _stored(tensor: gs.Tensor) -> gs.Node | None:
    """Return the node that dequantizes integers with float32 scales and 0 in the middle of the type."""
    node = walk.producer(tensor)
    if node is None or node.op != "DequantizeLinear" or not _is_at_middle(node):
        return None
    is_stored = all(isinstance(one, gs.Constant) for one in node.inputs[:2])
    return node if is_stored and load(node.inputs[1]).dtype == np.float32 else None


def _is_own(back: gs.Node) -> bool:
    """Return whether only one layer reads stored integers and their scale."""
    return all(len(tensor.outputs) == 1 for tensor in (*back.inputs[:2], back.outputs[0]))


def _is_first(node: gs.Node) -> bool:
    """Return whether the outputs are the first axis of a layer's weight."""
    return node.op == "Conv" or bool(node.attrs.get("transB", 0))


def _is_each_output(node: gs.Node, weight: gs.Node) -> bool:
    axis = int(weight.attrs.get("axis", 1)) % np.ndim(load(weight.inputs[0]))
    return axis == (0 if _is_first(node) else 1)


def is_at_zero(node: gs.Node) -> bool:
    """Return whether the zero point of a node is 0, and it is a standard operator without blocks."""
    if node.domain not in STANDARD_DOMAINS or node.attrs.get("block_size", 0):
        return False
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    return zero is None or zero.is_empty() or (isinstance(zero, gs.Constant) and not np.any(load(zero)))


def _is_at_middle(node: gs.Node) -> bool:
    """Return whether the middle of the type of stored integers stands for 0: 128 of uint8, 0 if signed."""
    stored, zero = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    middle = middle_of(load(stored).dtype) if isinstance(stored, gs.Constant) else 0
    if not middle:
        return is_at_zero(node)
    is_plain = node.domain in STANDARD_DOMAINS and not node.attrs.get("block_size", 0)
    return is_plain and isinstance(zero, gs.Constant) and bool(np.all(load(zero) == middle))


def middle_of(dtype: np.dtype[Any]) -> int:
    """Return the middle of an integer type: 128 of uint8, 0 of signed types."""
    return 128 if dtype == np.uint8 else 0


def move_zero(
    maker: IntegerLayer | None, consumers: Sequence[IntegerLayer], old: float, scale: float
) -> bool:
    """Let biases absorb a shift in place; return False, with nothing changed, if one overflows int32.

    A tensor with the scale ``old`` between the layers is reduced by 128 times its new scale, ``scale``.
    """
    ratio = scale / old

    def _of_maker(layer: IntegerLayer) -> Float64Array:
        steps = load(layer.steps).astype(np.float64)
        return np.asarray(load(layer.numbers) - np.rint(MIDDLE * scale / steps))

    def _of_consumer(layer: IntegerLayer) -> Float64Array:
        return np.asarray(np.rint(load(layer.numbers) / ratio) + MIDDLE * layer.integers.sum(1))

    changes: list[tuple[IntegerLayer, Callable[[IntegerLayer], Float64Array], float]] = [
        *((consumer, _of_consumer, ratio) for consumer in consumers),
        *([(maker, _of_maker, 1.0)] if maker is not None else []),
    ]
    growths = [_growth_of(numbers(layer)) for layer, numbers, _ in changes]
    if any(
        (growth > 1).any() and not consumer[0].may_grow
        for growth, consumer in zip(growths, changes, strict=True)
    ):
        return False
    for (layer, numbers, factor), growth in zip(changes, growths, strict=True):
        _grow(layer, growth)
        layer.numbers.values = numbers(layer).astype(np.int32)
        layer.steps.values = (load(layer.steps) * factor).astype(np.float32)
    return True


def layer_that_reads(node: gs.Node, scale: float, *, padded: bool) -> IntegerLayer | None:
    """Return a layer whose bias can absorb a shift of its input, or None."""
    layer = integer_layer(node)
    if layer is None or (any(node.attrs.get("pads", ())) and not padded):
        return None
    if layer.weight.inputs[0].dtype not in (np.int8, np.uint8):
        return None
    if node.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    products = scale * load(layer.weight.inputs[1]).astype(np.float64).reshape(-1)
    steps = load(layer.steps).reshape(-1)
    is_product = steps.size in (1, products.size) and np.allclose(products, steps, rtol=_SAME, atol=0)
    return layer if is_product else None


def _growth_of(numbers: Float64Array) -> Float64Array:
    """Return the powers of two by which steps must grow so that numbers fit into int32."""
    needed = np.abs(numbers) * _HEADROOM / _LARGEST
    return np.asarray(np.exp2(np.ceil(np.log2(np.maximum(needed, 1.0)))))


def _grow(layer: IntegerLayer, growth: Float64Array) -> None:
    """Increase the scales of a weight, and the steps of the bias with them.

    The bias exceeds the products by far there, so that rounding the weights again loses nothing.
    """
    if not (growth > 1).any():
        return
    weight, scale = layer.weight.inputs[:2]
    stored, factors = load(weight), growth.astype(np.float32)
    middle = middle_of(stored.dtype)
    numbers = stored.astype(np.float64) - middle
    by_output = growth.reshape(-1, *[1] * (numbers.ndim - 1)) if _is_first(layer.node) else growth
    weight.values = exportable((np.rint(numbers / by_output) + middle).astype(stored.dtype))
    scale.values = load(scale) * factors.reshape(load(scale).shape)
    layer.steps.values = load(layer.steps) * factors.reshape(load(layer.steps).shape)
    layer.numbers.values = np.rint(load(layer.numbers) / growth).astype(np.int32)
