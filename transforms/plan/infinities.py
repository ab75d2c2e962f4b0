"""Tensors that may hold infinities, and those of them whose infinities mean something.

A block shares one exponent, and an infinity leaves it none: all of its numbers become NaN. A float type of
our operators makes an infinity its largest number. That does no harm unless something tells the two apart: a
row of scores that is masked whole becomes NaN in a Softmax, which IsNaN finds and a Where replaces; a row of
large numbers becomes a row of equal shares. What tells an infinity from a number:

* IsInf, and IsNaN of what an infinity becomes NaN in;
* comparisons, and choices by size: Max, Min, ReduceMax, ReduceMin, ArgMax, ArgMin, TopK, Hardmax;
* a Where that it is data of;
* a Softmax, unless the infinities are all in one added constant that leaves a number in each row.

Infinities come from constants. Others come with inputs, from logarithms and quotients, or from sums of
numbers next to the largest one (``computed``): any model might have those. They count where the model itself
expects them: before an IsInf, a comparison with an infinity or a number of that size, and before an IsNaN
where they become NaN, in a Softmax or a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.constants import magnitude
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import onnx_op
from transforms.graph.slots import Spread

_CARRIERS = (
    MOVES
    | frozenset({"Add", "Sub", "Sum", "Mean", "CumSum", "Mul", "Div", "Pow", "Neg", "Abs"})
    | {"Where", "Min", "Max", "Clip", "Relu", "LeakyRelu", "PRelu", "TopK"}
    | {"Exp", "Log", "LogSoftmax", "Softplus", "Sqrt", "Floor", "Ceil", "Round"}
    | {"ReduceMax", "ReduceMin", "ReduceSum", "ReduceLogSumExp", "MaxPool", "GlobalMaxPool"}
    | {"ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceProd"}
    | {"Cast", "CastLike", "Trilu", "Tile", "Pad", "ScatterND", "ScatterElements", "GatherND"}
    | {"GatherElements", "Compress", "ReverseSequence", "DepthToSpace", "SpaceToDepth"}
    | {"SequenceConstruct", "SequenceInsert", "SequenceAt", "ConcatFromSequence", "SplitToSequence"}
)
_ADDED = 2
"""The input of a Gemm that is added to the product."""

_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_BY_SIZE = frozenset({"Max", "Min", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "TopK", "Hardmax"})
_SOFTMAX = frozenset({"Softmax", "LogSoftmax"})
_GUARDS = frozenset({"IsInf", "IsNaN"})
_TELLING = _COMPARISONS | _BY_SIZE | _SOFTMAX | {"Where", "IsInf"}
_MAKERS = frozenset({"Log", "Reciprocal", "Exp", "Pow"})
"""Operators that make an infinity of a number; Div does, if what it divides by is computed."""

_HALF = 2.0**127
"""The least number that is infinite in float32 once it is added to itself."""

_LARGEST_FLOAT16 = 65504.0


def infinite_tensors(graph: gs.Graph) -> set[int]:
    """Return the ids of the tensors of a graph and its bodies to which infinities are carried.

    Of constants, and those that a Pow with a stored negative exponent makes of a small number that a block
    rounds to zero. That goes by moves, sums, products of single numbers, functions that are infinite where
    these are, and choices, through control flow, and ends at all other operators.
    """
    exponents = ((node, node.inputs[1]) for node in walk.nodes(graph) if onnx_op(node) == "Pow")
    powers = (
        node.outputs[0]
        for node, exponent in exponents
        if isinstance(exponent, gs.Constant) and (np.asarray(exponent.values) < 0).any()
    )
    sources = [*filter(is_infinite, walk.constants(graph)), *_filled(graph), *powers]
    return {*Spread(graph, _carries).onwards(sources)} if sources else set()


def meant_infinities(graph: gs.Graph, *, computed: bool = False) -> dict[int, gs.Tensor]:
    """Return the tensors, by id, of a graph and its bodies whose infinities have to stay infinite.

    Those of constants, and with ``computed`` those that come about in a run.
    """
    ops = set(map(onnx_op, walk.nodes(graph)))
    if ops.isdisjoint(_TELLING | _GUARDS):
        return {}
    meant = _Meant(graph)
    found = meant.stored()
    if computed and not ops.isdisjoint(_COMPARISONS | _GUARDS):
        found |= meant.computed()
    return found


def is_infinite(tensor: gs.Tensor) -> bool:
    """Return whether a tensor is a constant that holds an infinity."""
    if not isinstance(tensor, gs.Constant) or dtypes.is_discrete(tensor):
        return False
    return _is_float(tensor) and has_infinity(np.asarray(tensor.values))


def has_infinity(values: np.ndarray) -> bool:
    """Return whether an array of floats holds an infinity, beside NaN or not."""
    if not values.size:
        return False
    low, high = np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None)  # which ignore NaN
    return bool(np.isinf(low) or np.isinf(high))


def _carries(node: gs.Node, index: int) -> bool:
    """Return whether what a node makes may be infinite if what it reads as an input is."""
    op = onnx_op(node)
    carries = op in _CARRIERS or (op == "Gemm" and index == _ADDED)
    return carries and not dtypes.is_discrete(node.inputs[index])


def _filled(graph: gs.Graph) -> Iterator[gs.Tensor]:
    """Yield what nodes fill with a stored infinity."""
    for node in walk.nodes(graph):
        value = node.attrs.get("value") if onnx_op(node) == "ConstantOfShape" else None
        if value is not None and is_infinite(value):
            yield node.outputs[0]


class _Meant:
    """Where infinities of a graph come from, and where they are told from numbers."""

    def __init__(self, graph: gs.Graph) -> None:
        self._graph, self._spread = graph, Spread(graph, _carries)
        guarded = [node.inputs[0] for node in walk.nodes(graph) if node.op == "IsNaN"]
        self._guarded = Spread(graph, _carries_nan).backwards(guarded) if guarded else {}
        self._edges = [
            (node, tensor)
            for node in walk.nodes(graph)
            if onnx_op(node)
            for tensor in node.inputs
            if not (tensor.is_empty() or dtypes.is_discrete(tensor))
        ]

    def stored(self) -> dict[int, gs.Tensor]:
        """Return the tensors between stored infinities and where these are told from numbers."""
        telling = [
            (node, tensor)
            for node, tensor in self._edges
            if node.op in _TELLING or (node.op not in MOVES and self._is_before_nan(node))
        ]
        before = self._spread.backwards(tensor for _, tensor in telling)
        sources = [source for source in before.values() if is_infinite(source)]
        sources += (source for source in _filled(self._graph) if id(source) in before)
        reached = self._spread.onwards(sources)
        ends = (
            tensor
            for node, tensor in telling
            if id(tensor) in reached
            if node.op not in _SOFTMAX or self._is_before_nan(node) or _may_fill_a_row(node, reached)
        )
        return self._between(reached, ends)

    def computed(self) -> dict[int, gs.Tensor]:
        """Return the tensors between infinities that a run brings and where the model expects them."""
        ends = [tensor for node, tensor in self._edges if self._expects(node)]
        before = self._spread.backwards(ends)
        sources = [one for one in before.values() if self._may_become_infinite(one)]
        return self._between(self._spread.onwards(sources), ends)

    def _between(self, reached: dict[int, gs.Tensor], ends: Iterable[gs.Tensor]) -> dict[int, gs.Tensor]:
        before = self._spread.backwards(one for one in ends if id(one) in reached)
        return {key: tensor for key, tensor in before.items() if key in reached}

    def _expects(self, node: gs.Node) -> bool:
        """Return whether a node is one by which a model shows that it expects infinities."""
        constants = [one for one in node.inputs if isinstance(one, gs.Constant)]
        if node.op in _COMPARISONS:
            return any(_is_float(one) and magnitude(one.values) >= _LARGEST_FLOAT16 for one in constants)
        makes_nan = node.op in _SOFTMAX or (node.op == "Sub" and not constants)
        return node.op == "IsInf" or (makes_nan and self._is_before_nan(node))

    def _is_before_nan(self, node: gs.Node) -> bool:
        return any(id(tensor) in self._guarded for tensor in node.outputs)

    def _may_become_infinite(self, tensor: gs.Tensor) -> bool:
        """Return whether a tensor is an input, a number that becomes infinite in a sum, or made of a division
        by zero or the like.
        """
        if isinstance(tensor, gs.Constant):
            return _is_float(tensor) and magnitude(tensor.values) >= _HALF
        node = walk.producer(tensor)
        if node is None:
            return any(tensor is one for one in self._graph.inputs)
        return node.op in _MAKERS or (node.op == "Div" and not isinstance(node.inputs[1], gs.Constant))


def _may_fill_a_row(softmax: gs.Node, infinite: dict[int, gs.Tensor]) -> bool:
    """Return whether a row of a Softmax may be all infinite, or hold a positive infinity.

    ``infinite``: the tensors, by id, that may hold infinities. Not if these are all in one constant that
    sums add, and that leaves a number in each of its rows along the last axis.
    """
    summands = list(_summands(softmax.inputs[0]))
    if any(id(one) in infinite for one in summands if not isinstance(one, gs.Constant)):
        return True
    constants = [one.values for one in summands if is_infinite(one)]
    rank = len(softmax.inputs[0].shape) if softmax.inputs[0].shape is not None else 0
    if len(constants) != 1 or softmax.attrs.get("axis", -1) not in (-1, rank - 1):
        return True
    (values,) = constants
    if not values.ndim or values.shape[-1] == 1:
        return True
    return bool((values.max(-1) == -np.inf).any() or np.isposinf(values).any())


def _summands(tensor: gs.Tensor) -> Iterator[gs.Tensor]:
    """Yield the tensors that Adds make a tensor of, or that a Gemm adds; itself if nothing is added."""
    waiting = [tensor]
    while waiting:
        one = waiting.pop()
        node = walk.producer(one)
        added: list[gs.Tensor] = []
        if node is not None and onnx_op(node) == "Add":
            added = node.inputs
        elif node is not None and onnx_op(node) == "Gemm" and node.attrs.get("beta", 1.0) > 0:
            added = node.inputs[_ADDED:]
        waiting += added
        if not added:
            yield one


def _carries_nan(node: gs.Node, index: int) -> bool:
    """Return whether NaN in an input of a node may be NaN in what it makes."""
    floats = (one for one in node.outputs if not dtypes.is_discrete(one))
    return not dtypes.is_discrete(node.inputs[index]) and any(floats)


def _is_float(constant: gs.Constant) -> bool:
    return np.asarray(constant.values).dtype.kind == "f"
