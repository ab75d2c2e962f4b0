"""What of a model is compared: its outputs, and what they are made of before a function that saturates.

Probabilities of a few samples say little: most of them are near 0 or 1 whatever is done to the model, and one
sample that is not decides. The numbers before the Softmax or Sigmoid differ on every sample.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk

_SATURATING = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid", "Tanh", "Softsign"})
_MOVES = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Concat", "Clip"}
)


def before_saturation(graph: gs.Graph) -> dict[str, str]:
    """Return tensors that an output of the model saturates, each with the name of the output.

    An input of the model is none of them: nothing in the model changes it.
    """
    found: dict[str, str] = {}
    for output in graph.outputs:
        for tensor in _sources(output, set()):
            if dtypes.is_type(tensor, dtypes.FLOAT) and walk.producer(tensor) is not None:
                found.setdefault(tensor.name, output.name)
    return found


def show(graph: gs.Graph, names: Collection[str]) -> None:
    """Make tensors of these names outputs of a graph, in place, after its own."""
    known = {tensor.name for tensor in graph.outputs}
    made = {tensor.name: tensor for node in graph.nodes for tensor in node.outputs}
    graph.outputs += [made[name] for name in names if name not in known]


def _sources(tensor: gs.Tensor, seen: set[int]) -> Iterator[gs.Tensor]:
    node = walk.producer(tensor)
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if node.op in _SATURATING:
        yield node.inputs[0]
    elif (exponents := _of_softmax(node)) is not None:
        yield exponents
    elif node.op in _MOVES:
        for source in node.inputs[: None if node.op == "Concat" else 1]:
            yield from _sources(source, seen)


def _of_softmax(node: gs.Node) -> gs.Tensor | None:
    """Return what a Softmax is made of that is written as exp(x - max) / sum."""
    exponential = walk.producer(node.inputs[0]) if node.op == "Div" else None
    if exponential is None or exponential.op != "Exp":
        return None
    shifted = walk.producer(exponential.inputs[0])
    return shifted.inputs[0] if shifted is not None and shifted.op == "Sub" else exponential.inputs[0]
