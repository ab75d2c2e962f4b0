"""Tell states that grow with each step from states that are passed on unchanged or computed from no state.

A decoder that reads an encoder keeps keys and values of the encoder's output: it takes and returns them, or
computes them in a branch of an If for the first step. Caches of its own tokens grow.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_graphsurgeon as gs

from transforms.graph import walk

_MOVES = frozenset({"Identity", "Cast", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Dropout"})


def grown_by(state: gs.Tensor, inputs: Iterable[gs.Tensor]) -> gs.Node | None:
    """Return the node that appends the new tokens of a step to one of these inputs, or None.

    None for a state that is an unchanged input, or is computed from other inputs, in each branch of an If;
    and for one whose sizes are all fixed, which no step makes longer.
    """
    if state.shape and all(isinstance(size, int) for size in state.shape):
        return None
    past, waiting = {id(end) for end in inputs}, [state]
    while waiting:
        tensor = waiting.pop()
        node = walk.producer(tensor)
        if node is None:
            continue
        if node.op == "If":
            place = next(i for i, end in enumerate(node.outputs) if end is tensor)
            waiting += [body.outputs[place] for body in walk.bodies(node)]
        elif node.op in _MOVES:
            waiting.append(node.inputs[0])
        elif _depends_on(past, node):
            return node
    return None


def _depends_on(inputs: set[int], node: gs.Node) -> bool:
    """Return whether a node depends on one of these inputs."""
    waiting, seen = [node], {id(node)}
    while waiting:
        for tensor in walk.reads(waiting.pop()):
            if id(tensor) in inputs:
                return True
            maker = walk.producer(tensor)
            if maker is not None and id(maker) not in seen:
                seen.add(id(maker))
                waiting.append(maker)
    return False
