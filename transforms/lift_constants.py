"""Constant nodes become initializers, so that every later rewrite sees one kind of constant."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.ir.tensor import LazyValues

from transforms.graph import walk
from transforms.graph.constants import PLAIN_VALUES
from transforms.graph.lazy_values import Weight, become_constant


def lift_constants(graph: gs.Graph) -> int:
    """Turn Constant nodes, in all bodies, into initializers of the same name; return how many.

    Takes every attribute kind that holds numbers: ``value``, ``value_float(s)`` and ``value_int(s)``. Leaves
    ``sparse_value`` and ``value_string(s)`` alone, and a Constant that is itself an output of its graph:
    such an output has to come from a node.
    """
    return sum(_lift_in(inner) for inner in walk.graphs(graph))


def _lift_in(graph: gs.Graph) -> int:
    lifted = set()
    for node in graph.nodes:
        values = _constant_value(node)
        if values is not None and not walk.is_output(node.outputs[0], graph):
            tensor = node.outputs[0]
            node.outputs.clear()
            become_constant(tensor, values)
            lifted.add(id(node))
    if lifted:
        graph.nodes = [node for node in graph.nodes if id(node) not in lifted]
    return len(lifted)


def _constant_value(node: gs.Node) -> Weight | LazyValues | None:
    """Return the value of the node, lazily if it is a tensor that graph-surgeon has not read yet."""
    if node.op != "Constant" or node.domain:
        return None
    tensor = node.attrs.get("value")
    if isinstance(tensor, gs.Constant):
        values: Weight | LazyValues = tensor._values  # `.values` would convert types without a NumPy form
        return values
    return next(
        (np.array(node.attrs[name], PLAIN_VALUES[name]) for name in PLAIN_VALUES if name in node.attrs), None
    )
