"""Targets of a layer whose output is cut off at once, by a Relu or a Clip: what is cut off does not matter.

With a target t that is cut off at 0 and what the float weights make of the quantized inputs, z, a prediction
p cut off at 0 is no further from it than p is from min(z, 0): the squared error to these targets is a bound
of the error behind the Relu, close to it where p is close to z. So the sums over rows stay those of a
quadratic form with one Gram matrix for all outputs, while rows that are cut off ask for nothing but to stay
so.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph import walk
from transforms.graph.constants import Constants

Limits = tuple[float, float]


def limits_behind(graph: gs.Graph, target: str) -> Limits | None:
    """Return the limits that all that reads a tensor cuts it off at; None where something reads it as it is.

    Of several readers with different limits, the widest.
    """
    tensor = next((t for node in graph.nodes for t in node.outputs if t.name == target), None)
    if tensor is None or not tensor.outputs or walk.is_output(tensor, graph):
        return None
    constants = Constants(graph)
    found = [_limits(node, constants) for node, index in walk.uses(tensor)]
    known = [limits for limits in found if limits is not None]
    if len(known) < len(found):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def relax(made: NDArray[np.floating], near: NDArray[np.floating], limits: Limits) -> NDArray[np.floating]:
    """Return targets for outputs that are cut off at limits; ``near`` is where their error is exact."""
    low, high = limits
    below = np.where(made <= low, np.minimum(near, low), made)
    return np.where(made >= high, np.maximum(near, high), below)


def _limits(node: gs.Node, constants: Constants) -> Limits | None:
    if node.op == "Relu":
        return 0.0, np.inf
    if node.op != "Clip" or len(node.inputs) < 2:
        return None
    ends = [-np.inf, np.inf]
    for i, tensor in enumerate(node.inputs[1:3]):
        end = ends[i] if tensor.is_empty() else constants.scalar(tensor)
        if end is None:
            return None
        ends[i] = end
    return ends[0], ends[1]
