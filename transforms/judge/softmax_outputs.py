"""Outputs that end in a Softmax, compared as what is before it.

Most probabilities are near 0 or 1 whatever is done to a model: of a few samples without a doubtful one, their
error says nothing of others, where one sample may hold a thousand times as much.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.graph import dtypes, walk
from transforms.graph.qdq import BLOCKS, PAIRS
from transforms.judge.output_views import before_softmax

_MOVES = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
_ROUNDING = PAIRS | {*BLOCKS, "Cast"}

_BEFORE = "_before_softmax"


def softmax_outputs(graph: gs.Graph) -> dict[str, gs.Tensor]:
    """Return what is before the Softmax of each output that ends in one, by the name of the output.

    Between both, numbers are moved or rounded at most.
    """
    outputs = (output for output in graph.outputs if dtypes.is_type(output, dtypes.FLOAT))
    found = {str(output.name): _before(output) for output in outputs}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def in_both(one: gs.Graph, other: gs.Graph) -> list[str]:
    """Return the names of the outputs that end in a Softmax in both of two models."""
    others = softmax_outputs(other)
    return [name for name in softmax_outputs(one) if name in others]


def show_before_softmax(graph: gs.Graph, names: Collection[str], *, alone: bool = False) -> list[str]:
    """Make what is before the Softmax of some outputs an output of a graph, in place; return the new names.

    The new ones come last; ``alone``: in the places of the probabilities, which are outputs no more.
    """
    tensors = softmax_outputs(graph)
    shown = {name: _named(graph, name + _BEFORE, tensors[name]) for name in names}
    if alone:
        graph.outputs = [shown.get(str(tensor.name), tensor) for tensor in graph.outputs]
    else:
        graph.outputs += shown.values()
    return [str(tensor.name) for tensor in shown.values()]


def in_shape(made: Feed, expected: Feed) -> Feed:
    """Return what a model makes, what is before a Softmax in the shapes expected: later opsets flatten it."""
    shapes = {name: array.shape for name, array in expected.items() if name.endswith(_BEFORE)}
    alike = {name: shape for name, shape in shapes.items() if made[name].size == expected[name].size}
    return {**made, **{name: made[name].reshape(shape) for name, shape in alike.items()}}


def _before(output: gs.Tensor) -> gs.Tensor | None:
    for node in _makers(output):
        tensor = before_softmax(node)
        if tensor is not None and walk.producer(tensor) is not None:
            return tensor if dtypes.is_type(tensor, dtypes.FLOAT) else None
        if node.op not in _MOVES | _ROUNDING:
            return None
    return None


def _makers(tensor: gs.Tensor) -> Iterator[gs.Node]:
    """Yield the node that makes a tensor, and those before it, by their first inputs."""
    node = walk.producer(tensor)
    while node is not None:
        yield node
        node = walk.producer(node.inputs[0]) if node.inputs else None


def _named(graph: gs.Graph, name: str, tensor: gs.Tensor) -> gs.Tensor:
    """Add a tensor of a name that is the same as another one; that may be an output already."""
    copy = gs.Variable(name, dtype=tensor.dtype, shape=tensor.shape)
    graph.nodes.append(gs.Node("Identity", name, inputs=[tensor], outputs=[copy]))
    return copy
