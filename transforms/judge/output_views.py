"""Choose views: tensors before the outputs that are compared, too, because the outputs say little of errors.

Probabilities of a few samples say little: most are near 0 or 1 whatever is done to the model, and the sample
that is not decides. The input of the Softmax or Sigmoid differs on every sample. An output of one number for
a sample says little, too: its error is near zero by chance on some samples and large on others. The many
numbers that it is a sum of have errors of the same origin.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import onnx_graphsurgeon as gs

from transforms.graph import dot_products, dtypes, walk
from transforms.graph.value_limits import LEVEL
from transforms.judge.constants import FEW_NUMBERS, MOST_VIEWS

_SATURATING = LEVEL | {"Softmax", "LogSoftmax"}
_MOVES = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Concat", "Clip"}
)


def views_of(graph: gs.Graph) -> dict[str, str]:
    """Return the names of views, each with the name of its output if that has few numbers, else empty.

    Views are inputs of functions that saturate an output, and the nearest tensors of at least ``FEW_NUMBERS``
    numbers before an output with fewer; the output may have more than its shape says. Inputs of the model
    are not views: nothing in the model changes them.
    """
    saturated = [tensor for output in graph.outputs for tensor in _sources(output, set()) if _is_view(tensor)]
    views = {str(tensor.name): "" for tensor in saturated}
    for output in graph.outputs:
        if dtypes.is_type(output, dtypes.FLOAT) and _numbers(output, unknown=1) < FEW_NUMBERS:
            for tensor in [*_before_few(output, set())][:MOST_VIEWS]:
                views.setdefault(str(tensor.name), str(output.name))
    return views


def _is_view(tensor: gs.Tensor) -> bool:
    return dtypes.is_type(tensor, dtypes.FLOAT) and walk.producer(tensor) is not None


def _numbers(tensor: gs.Tensor, unknown: float = math.inf) -> float:
    """Return the number of elements of a tensor in a sample: 0 if its rank is not known.

    ``unknown``: stands for an unknown length; an unknown first length is a batch of 1.
    """
    first, *rest = tensor.shape or (0,)
    batch = first if isinstance(first, int) else 1
    return batch * math.prod(length if isinstance(length, int) else unknown for length in rest)


def _summed(node: gs.Node) -> int:
    """Return the number of terms in each sum of a layer with a stored weight; 1 for other nodes."""
    if not dot_products.is_dot_product(node) or not isinstance(node.inputs[1], gs.Constant):
        return 1
    shape = node.inputs[1].shape
    return int(shape[dot_products.sum_axis(node, 1, len(shape))]) if len(shape) > 1 else 1


def _before_few(tensor: gs.Tensor, visited: set[int]) -> Iterator[gs.Tensor]:
    """Yield the nearest tensors of many numbers before a tensor of few."""
    pending = [(tensor, True)]
    while pending:
        current, is_few = pending.pop()
        node = walk.producer(current)
        if not is_few:
            yield current
        elif node is not None and id(node) not in visited:
            visited.add(id(node))
            sources = reversed(list(filter(_is_view, node.inputs)))
            pending += [(source, max(_numbers(source), _summed(node)) < FEW_NUMBERS) for source in sources]


def show(graph: gs.Graph, names: Collection[str]) -> list[str]:
    """Append tensors of these names to the outputs of a graph, in place; return the names that it has.

    The output of a Relu is missing if the Relu was folded into a quantization.
    """
    outputs = {tensor.name for tensor in graph.outputs}
    tensors = {tensor.name: tensor for node in graph.nodes for tensor in node.outputs}
    shown = [name for name in names if name in tensors]
    graph.outputs += [tensors[name] for name in shown if name not in outputs]
    return shown


def _sources(tensor: gs.Tensor, visited: set[int]) -> Iterator[gs.Tensor]:
    pending = [tensor]
    while pending:
        node = walk.producer(pending.pop())
        if node is None or id(node) in visited:
            continue
        visited.add(id(node))
        if node.op in _SATURATING:
            yield node.inputs[0]
        elif (exponents := before_softmax(node)) is not None:
            yield exponents
        elif node.op in _MOVES:
            pending += reversed(node.inputs[: None if node.op == "Concat" else 1])


def before_softmax(node: gs.Node) -> gs.Tensor | None:
    """Return the input of a Softmax, or of one written as exp(x - max) / sum; None for other nodes."""
    if node.op == "Softmax":
        return node.inputs[0]
    exponential = walk.producer(node.inputs[0]) if node.op == "Div" else None
    if exponential is None or exponential.op != "Exp":
        return None
    shifted = walk.producer(exponential.inputs[0])
    return shifted.inputs[0] if shifted is not None and shifted.op == "Sub" else exponential.inputs[0]
