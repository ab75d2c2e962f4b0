"""Targets of a layer directly followed by a Relu or a Clip: errors that are clipped do not matter.

With a target t clipped at 0 and the output z of the float weights on the quantized inputs, a prediction p
clipped at 0 is at least as close to t as p is to min(z, 0): the squared error to these targets bounds the
error after the Relu, closely if p is close to z. So the sums over rows remain those of a quadratic form with
one Gram matrix for all outputs, and clipped rows only have to stay clipped.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph import walk
from transforms.graph.constants import Constants
from transforms.graph.value_limits import Limits, rectifier_limits


def limits_after(graph: gs.Graph, target: str) -> Limits | None:
    """Return the limits at which the consumers of a tensor clip it, or None if a consumer does not.

    With several consumers, the widest limits.
    """
    tensor = next((t for node in graph.nodes for t in node.outputs if t.name == target), None)
    if tensor is None or not tensor.outputs or walk.is_output(tensor, graph):
        return None
    constants = Constants(graph)
    consumer_limits = [rectifier_limits(node, constants) for node, index in walk.uses(tensor)]
    clip_limits = [limits for limits in consumer_limits if limits is not None]
    if len(clip_limits) < len(consumer_limits):
        return None
    return min(low for low, _ in clip_limits), max(high for _, high in clip_limits)


def relax(made: NDArray[np.floating], near: NDArray[np.floating], limits: Limits) -> NDArray[np.floating]:
    """Return targets for outputs that are clipped at limits; their error is exact at ``near``."""
    low, high = limits
    below = np.where(made <= low, np.minimum(near, low), made)
    return np.where(made >= high, np.maximum(near, high), below)


_MOVING = frozenset({"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Cast", "Clip"})


def reads_activation_product(source: gs.Tensor) -> bool:
    """Return whether a tensor is, up to moves and rounding, a MatMul of two rounded computed tensors."""
    node = walk.producer(_behind(source))
    return node is not None and node.op == "MatMul" and all(_is_rounded(t) for t in node.inputs)


def _behind(tensor: gs.Tensor) -> gs.Tensor:
    """Return the tensor before its elements were moved and rounded."""
    while (node := walk.producer(tensor)) is not None and (node.op in _MOVING or _is_rounding(node)):
        tensor = node.inputs[0]
    return tensor


def _is_rounded(tensor: gs.Tensor) -> bool:
    """Return whether the last operation on a computed tensor is rounding."""
    node, start = walk.producer(tensor), _behind(tensor)
    maker = walk.producer(start)
    is_constant = isinstance(start, gs.Constant) or (maker is not None and maker.op == "Constant")
    return node is not None and _is_rounding(node) and not is_constant


def _is_rounding(node: gs.Node) -> bool:
    return "quantize" in node.op.lower()
