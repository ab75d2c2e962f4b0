"""Mixtures of experts that standard operators write out: a TopK, and Gathers of matrices by what it chose.

What lies between is written in many ways. So a mixture is not told by its nodes: these only say where it
begins and ends, and which stacks there are. What ONNX Runtime makes of a few random tokens there has to be
what a mixture of one of its forms makes of them, else there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Float32Array, Float64Array
from transforms.experts.candidates import Stacked, candidates
from transforms.experts.mixture import Mixture
from transforms.experts.outputs import mixture_outputs
from transforms.graph import walk
from transforms.graph.constants import load
from transforms.graph.dot_products import is_dot_product
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import onnx_op
from transforms.model import graph_proto
from transforms.model.quiet_settings import compute

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Cast", "Transpose"})
_ENDS = frozenset({"ReduceSum", "MatMul", "Einsum", "Squeeze", "Reshape"})
_BOUNDS = frozenset({"Clip", "Min", "Max"})
_PROBABILITIES = frozenset({"Softmax", "Sigmoid"})
_RANK_OF_STACK, _RANK_OF_BIAS = 3, 2
_TOKENS = 6
_MOST_ENDS = 6
_CLOSE = 1e-3
"""Tokens that are tried, ends that are, and the largest error beside what an output has in all: kernels have
another GELU, which is as far off."""


@dataclass(frozen=True)
class WrittenOut:
    """A mixture, the nodes that write it out, and the tensor in which it ends."""

    mixture: Mixture
    nodes: list[gs.Node]
    output: gs.Tensor


def written_out(graph: gs.Graph) -> list[WrittenOut]:
    """Return the mixtures of experts that nodes of a graph, without its bodies, write out."""
    found = []
    for choice in [node for node in graph.nodes if onnx_op(node) == "TopK"]:
        stacks = list(_stacks(choice))
        if not any(one.rank == _RANK_OF_STACK for one in stacks):
            continue
        for end in _ends(graph, choice, [one.node for one in stacks])[:_MOST_ENDS]:
            if (one := _mixture(graph, choice, stacks, end)) is not None:
                found.append(one)
                break
    return found


@dataclass(frozen=True)
class _Gathered:
    """A Gather of parts of a constant by what a TopK chose."""

    node: gs.Node
    values: gs.Constant

    @property
    def rank(self) -> int:
        return len(self.values.shape)


def _stacks(choice: gs.Node) -> Iterator[_Gathered]:
    waiting, seen = list(choice.outputs[1:]), set[int]()
    while waiting:
        for node in waiting.pop().outputs:
            if id(node) in seen:
                continue
            seen.add(id(node))
            if onnx_op(node) in _VIEWS:
                waiting += node.outputs
            elif onnx_op(node) == "Gather" and not node.attrs.get("axis", 0) and _is_stack(node.inputs[0]):
                yield _Gathered(node, node.inputs[0])


def _is_stack(tensor: gs.Tensor) -> bool:
    return isinstance(tensor, gs.Constant) and len(tensor.shape) in (_RANK_OF_STACK, _RANK_OF_BIAS)


def _ends(graph: gs.Graph, choice: gs.Node, gathers: Sequence[gs.Node]) -> list[gs.Tensor]:
    """Return the tensors in which all that was gathered may end, the first ones first."""
    after = [_descendants(node) for node in gathers]
    common = set.intersection(*after)
    nodes = (node for node in graph.nodes if id(node) in common and onnx_op(node) in _ENDS)
    return [node.outputs[0] for node in nodes]


def _descendants(node: gs.Node) -> set[int]:
    waiting, found = [node], set[int]()
    while waiting:
        for tensor in waiting.pop().outputs:
            new = [user for user in tensor.outputs if id(user) not in found]
            found.update(map(id, new))
            waiting += new
    return found


def _mixture(
    graph: gs.Graph, choice: gs.Node, stacks: Sequence[_Gathered], end: gs.Tensor
) -> WrittenOut | None:
    k = choice.inputs[1]
    data = _data(stacks, end)
    logits = choice.inputs[0]
    if data is None or not isinstance(k, gs.Constant) or not choice.attrs.get("largest", 1):
        return None
    if logits.shape is None or len(logits.shape) != 2 or choice.attrs.get("axis", -1) not in (-1, 1):
        return None
    nodes = _between(graph, [data, logits], end)
    if nodes is None:
        return None
    feed = _feed(data, logits)
    made = None if feed is None else _made(graph, nodes, feed, end)
    if feed is None or made is None:
        return None
    matrices = [one for one in stacks if one.rank == _RANK_OF_STACK]
    stacked = [
        Stacked(one.values.name, load(one.values), _bias(one, stacks), _is_last(one.node, stacks))
        for one in matrices
    ]
    for mixture in candidates(data, logits, int(np.asarray(load(k)).reshape(-1)[0]), stacked):
        found = mixture_outputs(mixture, feed[str(data.name)], feed[str(logits.name)])
        if found.shape == made.shape and _error(made, found) < _CLOSE:
            return WrittenOut(mixture, nodes, end)
    return None


def _is_last(gather: gs.Node, stacks: Sequence[_Gathered]) -> bool:
    """Return whether the product that reads what was gathered follows from another one with such a matrix."""
    first = _product(gather)
    others = (_product(one.node) for one in stacks if one.rank == _RANK_OF_STACK and one.node is not gather)
    return first is not None and any(
        other is not None and other is not first and id(first) in _descendants(other) for other in others
    )


def _bias(one: _Gathered, stacks: Sequence[_Gathered]) -> Float32Array | None:
    """Return the bias that is added to what a stack's product makes."""
    product = _product(one.node)
    added = None if product is None else _product(product)
    biases = [other for other in stacks if other.rank == _RANK_OF_BIAS and _product(other.node) is added]
    return np.asarray(load(biases[0].values), np.float32) if len(biases) == 1 and added is not None else None


def _product(gather: gs.Node) -> gs.Node | None:
    """Return the first node after a Gather that does more than move what it gathered."""
    tensor = gather.outputs[0]
    while len(tensor.outputs) == 1:
        node = tensor.outputs[0]
        if onnx_op(node) not in _VIEWS:
            return node
        tensor = node.outputs[0]
    return None


def _data(stacks: Sequence[_Gathered], end: gs.Tensor) -> gs.Tensor | None:
    """Return what the first products multiply, before it was brought to their shape."""
    rank = None if end.shape is None else len(end.shape)
    for one in stacks:
        product = _product(one.node)
        if (
            one.rank != _RANK_OF_STACK
            or product is None
            or _is_last(one.node, stacks)
            or not is_dot_product(product)
        ):
            continue
        matrix = id(one.node.outputs[0])
        for tensor in product.inputs[:2]:
            way = _way_up(tensor)
            if all(id(step) != matrix for step in way):
                fits = (t for t in way if t.shape is not None and len(t.shape) == rank == 2)
                return next(fits, None)
    return None


def _way_up(tensor: gs.Tensor) -> list[gs.Tensor]:
    way = [tensor]
    while (node := walk.producer(way[-1])) is not None and (
        onnx_op(node) in MOVES or onnx_op(node) == "Tile"
    ):
        way.append(node.inputs[0])
    return way


def _between(graph: gs.Graph, starts: Sequence[gs.Tensor], end: gs.Tensor) -> list[gs.Node] | None:
    """Return the nodes from some tensors to another, None if others have to do with what they make."""
    begin = {id(tensor) for tensor in starts}
    found: dict[int, gs.Node] = {}
    waiting = [end]
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in begin or isinstance(tensor, gs.Constant) or tensor.is_empty():
            continue
        node = walk.producer(tensor)
        if node is None or any(walk.bodies(node)) or onnx_op(node) in _BOUNDS or not onnx_op(node):
            return None
        if id(node) not in found:
            found[id(node)] = node
            waiting += node.inputs
    inner = [t for node in found.values() for t in node.outputs if t is not end]
    outside = any(id(user) not in found for tensor in inner for user in tensor.outputs)
    if outside or any(walk.is_output(tensor, graph) for tensor in inner):
        return None
    return [node for node in graph.nodes if id(node) in found]


def _feed(data: gs.Tensor, logits: gs.Tensor) -> dict[str, Float64Array] | None:
    """Return random numbers for tokens and their logits, probabilities where these are."""
    sizes = [tensor.shape[0] for tensor in (data, logits)]
    known = {size for size in sizes if isinstance(size, int)}
    width, experts = data.shape[1], logits.shape[1]
    if len(known) > 1 or not isinstance(width, int) or not isinstance(experts, int):
        return None
    tokens, random = next(iter(known), _TOKENS), np.random.default_rng(0)
    numbers = random.standard_normal((tokens, experts))
    maker = walk.producer(logits)
    if maker is not None and onnx_op(maker) in _PROBABILITIES:
        numbers = np.exp(numbers) / np.exp(numbers).sum(axis=1, keepdims=True)
    x = random.standard_normal((tokens, width))
    given = {str(data.name): x, str(logits.name): numbers}
    return {name: array.astype(np.float32).astype(np.float64) for name, array in given.items()}


def _made(
    graph: gs.Graph, nodes: Sequence[gs.Node], feed: dict[str, Float64Array], end: gs.Tensor
) -> AnyArray | None:
    """Return what nodes make of a feed; None if ONNX Runtime does not run them."""
    copies: dict[int, gs.Tensor] = {}

    def _copy(tensor: gs.Tensor) -> gs.Tensor:
        if tensor.is_empty():
            return gs.Variable.empty()
        if id(tensor) not in copies:
            array = feed.get(str(tensor.name))
            if array is not None:
                copies[id(tensor)] = gs.Constant(tensor.name, array.astype(np.float32))
            elif isinstance(tensor, gs.Constant):
                copies[id(tensor)] = tensor.copy()
            else:
                copies[id(tensor)] = gs.Variable(tensor.name, tensor.dtype)
        return copies[id(tensor)]

    new = [
        gs.Node(node.op, node.name, dict(node.attrs), [*map(_copy, node.inputs)], [*map(_copy, node.outputs)])
        for node in nodes
    ]
    output = gs.Variable(end.name, np.float32)
    for node in new:
        node.outputs = [output if t.name == end.name else t for t in node.outputs]
    part = gs.Graph(new, [], [output], opset=graph.opset, import_domains=graph.import_domains)
    try:
        return compute(graph_proto.export_model(part), [str(end.name)])[str(end.name)]
    except Exception:  # of the runtime, which shares no narrower class: there is no mixture then
        return None


def _error(wanted: AnyArray, made: AnyArray) -> float:
    return float(np.linalg.norm(wanted - made)) / max(float(np.linalg.norm(wanted)), 1e-30)
