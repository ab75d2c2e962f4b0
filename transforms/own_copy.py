"""Constants that several nodes read, copied for one of them."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.constants import load
from transforms.stored import Stored


def own_copy(graph: gs.Graph, node: gs.Node, index: int, stored: Stored, names: walk.Names) -> bool:
    """Let a node read its input ``index``, stored as said, from a copy; return whether that was needed.

    It is where others read the constant, too, or what the nodes between make of it. Scales stay shared.
    """
    if all(len(walk.uses(tensor)) == 1 for tensor in stored.tensors):
        return False
    tensor: gs.Tensor = gs.Constant(names.derive(stored.source.name, "own"), load(stored.source))
    stored.source = tensor
    chain = []
    for old in stored.chain:
        made = old.outputs[0]
        target = gs.Variable(names.derive(made.name, "own"), made.dtype, made.shape)
        inputs = [tensor, *old.inputs[1:]]
        name = names.derive(old.name or made.name, "own")
        chain.append(gs.Node(old.op, name, dict(old.attrs), inputs, [target], domain=old.domain))
        tensor = target
    place = next(i for i, one in enumerate(graph.nodes) if one is node)
    graph.nodes[place:place] = chain
    stored.chain = chain
    node.inputs[index] = tensor
    return True
