"""Compare outputs that end in a Softmax before the Softmax.

Most probabilities are near 0 or 1 whatever is done to a model: their error on a few clear samples says
nothing of other data, where one doubtful sample may have a thousand times as much.
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
    """Return the input of the Softmax of each output that ends in one, by the name of the output.

    Between the Softmax and the output, numbers are only moved or rounded.
    """
    outputs = (output for output in graph.outputs if dtypes.is_type(output, dtypes.FLOAT))
    tensors = {str(output.name): _before(output) for output in outputs}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def in_both(first: gs.Graph, other: gs.Graph) -> list[str]:
    """Return the names of the outputs that end in a Softmax in both of two models."""
    names = softmax_outputs(other)
    return [name for name in softmax_outputs(first) if name in names]


def show_before_softmax(graph: gs.Graph, names: Collection[str], *, alone: bool = False) -> list[str]:
    """Make the Softmax inputs of some outputs new outputs of a graph, in place; return the new names.

    New outputs come last; with ``alone``, they replace the probabilities in their places.
    """
    tensors = softmax_outputs(graph)
    shown = {name: _named(graph, name + _BEFORE, tensors[name]) for name in names}
    if alone:
        graph.outputs = [shown.get(str(tensor.name), tensor) for tensor in graph.outputs]
    else:
        graph.outputs += shown.values()
    return [str(tensor.name) for tensor in shown.values()]


def in_shape(outputs: Feed, expected: Feed) -> Feed:
    """Return outputs with Softmax inputs reshaped to the expected shapes, which differ between opsets."""
    shapes = {name: array.shape for name, array in expected.items() if name.endswith(_BEFORE)}
    alike = {name: shape for name, shape in shapes.items() if outputs[name].size == expected[name].size}
    return {**outputs, **{name: outputs[name].reshape(shape) for name, shape in alike.items()}}


def _before(output: gs.Tensor) -> gs.Tensor | None:
    for node in _makers(output):
        tensor = before_softmax(node)
        if tensor is not None and walk.producer(tensor) is not None:
            return tensor if dtypes.is_type(tensor, dtypes.FLOAT) else None
        if node.op not in _MOVES | _ROUNDING:
            return None
    return None


def _makers(tensor: gs.Tensor) -> Iterator[gs.Node]:
    """Yield the producer of a tensor, and the producers before it, along first inputs."""
    node = walk.producer(tensor)
    while node is not None:
        yield node
        node = walk.producer(node.inputs[0]) if node.inputs else None


def _named(graph: gs.Graph, name: str, tensor: gs.Tensor) -> gs.Tensor:
    """Add a copy of a tensor under a name, since the tensor itself may be an output already."""
    copy = gs.Variable(name, dtype=tensor.dtype, shape=tensor.shape)
    graph.nodes.append(gs.Node("Identity", name, inputs=[tensor], outputs=[copy]))
    return copy
