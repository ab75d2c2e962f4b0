"""Channels brought to like ranges by a Mul in front of a layer, where nothing before it can take the factors.

The weight of the layer is divided by what the Mul multiplies with. All factors are powers of two, so the
float model computes the same numbers, and a coarse grid loses less.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from ops.integers import finite_range
from transforms import dot_products, dtypes, walk

DEPTHWISE_SPREAD = 64.0
"""Ratio of two channels from which a depthwise layer is balanced: of 7 bits the smaller keeps one."""

OUTLIER = 8.0
"""Ratio of a channel to the median from which it stands out."""

_KEPT = 2.0  # times the median that is left to a channel that stood out
_LEAST, _LARGEST = 2.0**-60, 2.0**60  # weights beyond are left alone: they may not under- or overflow

Exponents = NDArray[np.int64]


def balance_channels(
    graph: gs.Graph, *, depthwise: bool = True, outliers: bool = False, exclude: Container[gs.Node] = ()
) -> int:
    """Put a Mul in front of layers whose input channels differ much in weight; return how many got one.

    ``depthwise``: convolutions of each channel by itself whose largest and smallest channel differ by
    :data:`DEPTHWISE_SPREAD`. All channels get the range of their geometric mean. Blocks of numbers run across
    channels that such a layer never adds up; where its weights differ, so do its inputs, inversely, as far as
    the network was trained to make all channels matter.

    ``outliers``: MatMul, Gemm and Conv where the weights of an input channel are :data:`OUTLIER` times as
    large as the median channel's. Those channels alone are scaled, to twice the median: for activations of
    so many bits that they can take over what the weights can not hold.

    Does nothing to channels without weight, to weights that are outputs, and to a layer whose weight is the
    first operand. A weight that others read, too, is copied.
    """
    return sum(
        _balance(inner, node, depthwise, outliers, names)
        for names in [walk.Names(graph)]
        for inner in walk.graphs(graph)
        for node in list(inner.nodes)
        if dot_products.is_dot_product(node) and node not in exclude and dot_products.weight_index(node) == 1
    )


def _balance(graph: gs.Graph, node: gs.Node, depthwise: bool, outliers: bool, names: walk.Names) -> bool:
    weight = node.inputs[1]
    if not dtypes.is_type(weight, dtypes.FLOAT) or isinstance(node.inputs[0], gs.Constant):
        return False
    if is_depthwise(node):
        exponents = _evened(_ranges(weight, 0)) if depthwise else None
        axis = 0
    elif outliers and node.attrs.get("group", 1) == 1:
        axis = dot_products.sum_axis(node, 1, len(weight.shape))
        exponents = _outstanding(_ranges(weight, axis))
    else:
        return False
    if exponents is None or not exponents.any():
        return False
    _divide(node, exponents, axis, names)
    _insert(graph, node, np.ldexp(np.float32(1), exponents), names)
    return True


def is_depthwise(node: gs.Node) -> bool:
    """Return whether a convolution makes one channel of each channel by itself."""
    groups = node.attrs.get("group", 1)
    return node.op == "Conv" and groups > 1 and tuple(node.inputs[1].shape[:2]) == (groups, 1)


def _ranges(weight: gs.Constant, axis: int) -> NDArray[np.float64]:
    low, high = finite_range(np.asarray(weight.values), axis)
    return np.maximum(-low, high).astype(np.float64)


def _evened(ranges: NDArray[np.float64]) -> Exponents | None:
    """Return the powers of two by which channels differ from their geometric mean, None if by too little."""
    live = (ranges >= _LEAST) & (ranges <= _LARGEST)
    if not live.any() or ranges[live].max() < DEPTHWISE_SPREAD * ranges[live].min():
        return None
    logs = np.log2(np.where(live, ranges, 1))
    return np.where(live, np.rint(logs - logs[live].mean()), 0).astype(np.int64)


def _outstanding(ranges: NDArray[np.float64]) -> Exponents | None:
    """Return the powers of two by which channels stand out, 0 for all others."""
    median = float(np.median(ranges))
    if not _LEAST <= median <= _LARGEST:
        return None
    out = (ranges > OUTLIER * median) & (ranges <= _LARGEST)
    logs = np.log2(np.where(out, ranges, 1) / (_KEPT * median))
    return np.where(out, np.rint(logs), 0).astype(np.int64)


def _divide(node: gs.Node, exponents: Exponents, axis: int, names: walk.Names) -> None:
    weight = node.inputs[1]
    shape = [-1 if i == axis else 1 for i in range(len(weight.shape))]
    values = np.ldexp(np.asarray(weight.values), -exponents.reshape(shape)).astype(np.float32)
    node.inputs[1] = gs.Constant(names.derive(weight.name, "balanced"), values)
    if not weight.outputs:
        node.inputs[1].name = weight.name


def _insert(graph: gs.Graph, node: gs.Node, factors: NDArray[np.float32], names: walk.Names) -> None:
    source = node.inputs[0]
    target = dtypes.variable(names.derive(source.name, "balanced"), dtypes.FLOAT, source)
    scale = gs.Constant(names.derive(source.name, "balance"), factors.reshape(_broadcast(node)))
    name = names.derive(target.name, "Mul")
    place = next(i for i, other in enumerate(graph.nodes) if other is node)
    graph.nodes.insert(place, gs.Node("Mul", name, inputs=[source, scale], outputs=[target]))
    node.inputs[0] = target


def _broadcast(node: gs.Node) -> list[int]:
    """Return the shape in which one number per channel meets the first operand."""
    if node.op == "Conv":
        return [1, -1, *[1] * (len(node.inputs[1].shape) - 2)]
    return [-1, 1] if node.op == "Gemm" and node.attrs.get("transA", 0) else [-1]
