"""Zero at the lowest level of int8 for a tensor, taken up by the biases of the layers around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float64Array
from transforms.full_range.integer_layers import IntegerLayer, grow, growth_of, integer_layer
from transforms.graph.constants import Constants, load
from transforms.graph.rewire import STANDARD_DOMAINS

MIDDLE = 128
"""Steps by which a tensor is shifted."""

_SAME = 1e-5  # relative difference of scales that rounding to float32 explains


def move_zero(maker: IntegerLayer | None, readers: Sequence[IntegerLayer], old: float, scale: float) -> bool:
    """Let biases take a shift in place; return False, with nothing changed, if one does not fit into int32.

    The elements of a tensor with the scale ``old`` between the layers become less by 128 times ``scale``,
    which is its new one.
    """
    ratio = scale / old

    def _of_maker(layer: IntegerLayer) -> Float64Array:
        steps = load(layer.steps).astype(np.float64)
        return np.asarray(load(layer.numbers) - np.rint(MIDDLE * scale / steps))

    def _of_reader(layer: IntegerLayer) -> Float64Array:
        return np.asarray(np.rint(load(layer.numbers) / ratio) + MIDDLE * layer.integers.sum(1))

    changes: list[tuple[IntegerLayer, Callable[[IntegerLayer], Float64Array], float]] = [
        *((one, _of_reader, ratio) for one in readers),
        *([(maker, _of_maker, 1.0)] if maker is not None else []),
    ]
    growths = [growth_of(numbers(layer)) for layer, numbers, _ in changes]
    if any((growth > 1).any() and not one[0].may_grow for growth, one in zip(growths, changes, strict=True)):
        return False
    for (layer, numbers, factor), growth in zip(changes, growths, strict=True):
        grow(layer, growth)
        layer.numbers.values = numbers(layer).astype(np.int32)
        layer.steps.values = (load(layer.steps) * factor).astype(np.float32)
    return True


def layer_that_reads(node: gs.Node, scale: float, *, padded: bool) -> IntegerLayer | None:
    """Return a layer whose bias can take a shift of all that it reads; None for others."""
    layer = integer_layer(node)
    if layer is None or (any(node.attrs.get("pads", ())) and not padded):
        return None
    if layer.weight.inputs[0].dtype != np.int8:
        return None
    if node.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    products = scale * load(layer.weight.inputs[1]).astype(np.float64).reshape(-1)
    own = load(layer.steps).reshape(-1)
    is_product = own.size in (1, products.size) and np.allclose(products, own, rtol=_SAME, atol=0)
    return layer if is_product else None


def top_of_rectifier(node: gs.Node, constants: Constants) -> float | None:
    """Return the upper bound of a Relu or of a Clip from 0; None for other nodes."""
    if node.domain not in STANDARD_DOMAINS or node.op not in ("Relu", "Clip"):
        return None
    if node.op == "Relu":
        return np.inf
    ends = [constants.scalar(t) if not t.is_empty() else None for t in node.inputs[1:3]]
    if not ends or ends[0] != 0 or (len(ends) > 1 and ends[1] is None and not node.inputs[2].is_empty()):
        return None
    return np.inf if len(ends) < 2 or ends[1] is None else float(ends[1])
