"""Tensors that may hold infinities, and those whose infinities have a meaning.

A block has one shared exponent, and an infinity turns all of its numbers into NaN. A float type of our
operators saturates an infinity to its largest number. That is harmless unless the model distinguishes the
two: a fully masked row of scores becomes NaN in a Softmax, which IsNaN finds and a Where replaces; a row of
large numbers becomes a row of equal shares. An infinity is distinguished from a number by:

* IsInf, and IsNaN of tensors in which an infinity becomes NaN;
* comparisons, and choices by size: Max, Min, ReduceMax, ReduceMin, ArgMax, ArgMin, TopK, Hardmax;
* a Where that selects it as data;
* a Softmax, unless all infinities are in one added constant that leaves a number in each row.

Infinities come from constants. Others come from inputs, from logarithms and quotients, or from sums of
numbers close to the largest one (``computed``), which may occur in any model. They count where the model
itself expects them: before an IsInf, a comparison with an infinity or a number of that magnitude, and before
an IsNaN where they become NaN, in a Softmax or a difference.
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
"""Operators that turn a number into an infinity; also Div, if its divisor is computed."""

_HALF = 2.0**127
"""The least number whose double is infinite in float32."""

_LARGEST_FLOAT16 = 65504.0


def infinite_tensors(graph: gs.Graph) -> set[int]:
    """Return the ids of the tensors of a graph and its bodies that may hold infinities.

    They come from constants, and from a Pow with a stored negative exponent whose small base a block rounds
    to zero. They are followed through moves, sums, element-wise products, functions that are infinite at
    infinity, choices and control flow, and end at all other operators.
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
    """Return the tensors, by id, of a graph and its bodies whose infinities must stay infinite.

    These are infinities of constants, and with ``computed`` also those that arise in a run.
    """
    ops = set(map(onnx_op, walk.nodes(graph)))
    if ops.isdisjoint(_TELLING | _GUARDS):
        return {}
    meant = _Meant(graph)
    tensors = meant.stored()
    if computed and not ops.isdisjoint(_COMPARISONS | _GUARDS):
        tensors |= meant.computed()
    return tensors


def is_infinite(tensor: gs.Tensor) -> bool:
    """Return whether a tensor is a constant that holds an infinity."""
    if not isinstance(tensor, gs.Constant) or dtypes.is_discrete(tensor):
        return False
    return _is_float(tensor) and has_infinity(np.asarray(tensor.values))


def has_infinity(values: np.ndarray) -> bool:
    """Return whether an array of floats holds an infinity, with or without NaN."""
    if not values.size:
        return False
    low, high = np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None)  # both ignore NaN
    return bool(np.isinf(low) or np.isinf(high))


def _carries(node: gs.Node, index: int) -> bool:
    """Return whether an infinite input may make the output of a node infinite."""
    op = onnx_op(node)
    carries = op in _CARRIERS or (op == "Gemm" and index == _ADDED)
    return carries and not dtypes.is_discrete(node.inputs[index])


def _filled(graph: gs.Graph) -> Iterator[gs.Tensor]:
    """Yield tensors that nodes fill with a stored infinity."""
    for node in walk.nodes(graph):
        value = node.attrs.get("value") if onnx_op(node) == "ConstantOfShape" else None
        if value is not None and is_infinite(value):
            yield node.outputs[0]


class _Meant:
    """Where infinities of a graph come from, and where they are distinguished from numbers."""

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
        """Return the tensors between stored infinities and the nodes that distinguish them from numbers."""
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
        """Return the tensors between infinities that arise in a run and nodes that expect them."""
        ends = [tensor for node, tensor in self._edges if self._expects(node)]
        before = self._spread.backwards(ends)
        sources = [source for source in before.values() if self._may_become_infinite(source)]
        return self._between(self._spread.onwards(sources), ends)

    def _between(self, reached: dict[int, gs.Tensor], ends: Iterable[gs.Tensor]) -> dict[int, gs.Tensor]:
        before = self._spread.backwards(end for end in ends if id(end) in reached)
        return {key: tensor for key, tensor in before.items() if key in reached}

    def _expects(self, node: gs.Node) -> bool:
        """Return whether a node shows that the model expects infinities."""
        constants = [constant for constant in node.inputs if isinstance(constant, gs.Constant)]
        if node.op in _COMPARISONS:
            return any(
                _is_float(constant) and magnitude(constant.values) >= _LARGEST_FLOAT16
                for constant in constants
            )
        makes_nan = node.op in _SOFTMAX or (node.op == "Sub" and not constants)
        return node.op == "IsInf" or (makes_nan and self._is_before_nan(node))

    def _is_before_nan(self, node: gs.Node) -> bool:
        return any(id(tensor) in self._guarded for tensor in node.outputs)

    def _may_become_infinite(self, tensor: gs.Tensor) -> bool:
        """Return whether a tensor may be infinite in a run.

        It may if it is an input, a number that overflows in a sum, or computed by a division by zero or the
        like."""
        if isinstance(tensor, gs.Constant):
            return _is_float(tensor) and magnitude(tensor.values) >= _HALF
        node = walk.producer(tensor)
        if node is None:
            return any(tensor is model_input for model_input in self._graph.inputs)
        return node.op in _MAKERS or (node.op == "Div" and not isinstance(node.inputs[1], gs.Constant))


def _may_fill_a_row(softmax: gs.Node, infinite: dict[int, gs.Tensor]) -> bool:
    """Return whether a row of a Softmax may be all infinite, or hold a positive infinity.

    ``infinite``: the tensors, by id, that may hold infinities. False if these are all in one constant that
    sums add, and that leaves a number in each of its rows along the last axis.
    """
    summands = list(_summands(softmax.inputs[0]))
    if any(id(summand) in infinite for summand in summands if not isinstance(summand, gs.Constant)):
        return True
    constants = [summand.values for summand in summands if is_infinite(summand)]
    rank = len(softmax.inputs[0].shape) if softmax.inputs[0].shape is not None else 0
    if len(constants) != 1 or softmax.attrs.get("axis", -1) not in (-1, rank - 1):
        return True
    (values,) = constants
    if not values.ndim or values.shape[-1] == 1:
        return True
    return bool((values.max(-1) == -np.inf).any() or np.isposinf(values).any())


def _summands(tensor: gs.Tensor) -> Iterator[gs.Tensor]:
    """Yield the tensors whose sum, by Adds or a Gemm's bias, is a tensor; itself if nothing is added."""
    waiting = [tensor]
    while waiting:
        summand = waiting.pop()
        node = walk.producer(summand)
        added: list[gs.Tensor] = []
        if node is not None and onnx_op(node) == "Add":
            added = node.inputs
        elif node is not None and onnx_op(node) == "Gemm" and node.attrs.get("beta", 1.0) > 0:
            added = node.inputs[_ADDED:]
        waiting += added
        if not added:
            yield summand


def _carries_nan(node: gs.Node, index: int) -> bool:
    """Return whether NaN in an input of a node may be NaN in its output."""
    floats = (output for output in node.outputs if not dtypes.is_discrete(output))
    return not dtypes.is_discrete(node.inputs[index]) and any(floats)


def _is_float(constant: gs.Constant) -> bool:
    return np.asarray(constant.values).dtype.kind == "f"
