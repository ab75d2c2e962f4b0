"""Find tensors whose shapes depend on computed numbers, such as the boxes of a detector.

Two models with slightly different numbers give such tensors different lengths: their elements do not
correspond. Numbers are computed floats, and everything derived from them, such as comparisons with a
threshold. Inputs, and what follows from lengths and constants alone, like most arithmetic on shapes, are the
same in both models. So are lengths computed by layers that stay in float
(:mod:`transforms.graph.decided_lengths`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.decided_lengths import MEASURING, DecidedLengths, Marks, decided_lengths
from transforms.graph.schemas import RANDOM
from transforms.graph.slots import passed_on

_COUNTING = frozenset({"NonMaxSuppression", "NonZero", "Unique", "Compress", "StringSplit"})
"""Operators whose output has a row for each match."""

_LENGTHS: dict[str, Sequence[int]] = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "TopK", "Split", "Squeeze", "Unsqueeze", "Upsample"), (1,)),
    **dict.fromkeys(("OneHot", "CenterCropPad", "SplitToSequence", "SequenceAt", "DFT", "AffineGrid"), (1,)),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"), (1,)),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"), (1,)),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 3),
    "Resize": (1, 2, 3),
    "Col2Im": (1, 2),
    "MaxUnpool": (2,),
    "STFT": (1, 3),
}
"""Inputs of an operator whose values are, or set, lengths of its output."""

_SHAPED_BY = {
    **dict.fromkeys(("ScatterND", "ScatterElements", "Scatter", "TensorScatter"), (0,)),
    "GatherElements": (1,),
}
"""The inputs that determine an operator's output shape, where not all do."""

_FLOATS = frozenset({dtypes.FLOAT, dtypes.FLOAT16, dtypes.BFLOAT16})
_AS_FED = frozenset(
    {"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "GatherND"}
    | {"GatherElements", "Concat", "Split", "Expand", "Tile", "Cast"}
)
"""Operators that compute no new numbers."""


def judged_tensors(
    graph: gs.Graph, known: Iterable[str] | None = None, shapes: NumberShapes | None = None
) -> dict[str, list[str]]:
    """Return, for each output of a graph, the names of the tensors compared with another model instead of it.

    That is the output itself, or its sources before numbers decide the number of rows; nothing where a body
    computes all of that. ``known``: names of the other model's tensors. ``shapes``: those of the graph, if
    already computed.
    """
    number_shapes = shapes or NumberShapes(graph)
    return {
        str(tensor.name): number_shapes.sources(tensor, known)
        if number_shapes.is_shaped(tensor)
        else [str(tensor.name)]
        for tensor in graph.outputs
    }


def in_words(judged: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each output that is not compared directly."""
    return [
        f"The numbers decide how many rows output '{name}' has: {_stand_ins(sources)}"
        for name, sources in judged.items()
        if list(sources) != [name]
    ]


def _stand_ins(names: Sequence[str]) -> str:
    if not names:
        return "it is not compared"
    return f"{', '.join(map(repr, names))} before it {'is' if len(names) == 1 else 'are'} compared instead"


class NumberShapes:
    """The tensors of a graph, including bodies, that depend on numbers."""

    def __init__(self, graph: gs.Graph) -> None:
        """Follow numbers through the nodes, which are in execution order."""
        self._graph, self.decided = graph, DecidedLengths()
        """Lengths that layers in float decide, which count as the same in both models."""
        self._valued, self._shaped, self._lengths = set[int](), set[int](), set[int]()
        nodes = list(_bodies_first(graph))
        if any(map(_may_set_lengths, nodes)):
            self._visit(nodes)
        if self._shaped:
            self._follow_without_decided(nodes)

    @property
    def names(self) -> frozenset[str]:
        """The names of tensors of the main graph whose shapes depend on numbers."""
        computed = (tensor for node in self._graph.nodes for tensor in node.outputs)
        return frozenset(str(tensor.name) for tensor in computed if id(tensor) in self._shaped)

    def is_shaped(self, tensor: gs.Tensor) -> bool:
        """Return whether the shape of a tensor depends on numbers."""
        return id(tensor) in self._shaped

    def is_found(self, tensor: gs.Tensor) -> bool:
        """Return whether rows of a tensor were selected by numbers, or a body may have done so.

        Selections of two models differ by rows; other lengths that differ concern the whole tensor.
        """
        makers = walk.makers([tensor], lambda _: True).values()
        return any(
            any(True for _ in walk.bodies(node))
            or (node.op in _COUNTING and any(id(operand) in self._valued for operand in node.inputs))
            for node in makers
        )

    def sources(self, tensor: gs.Tensor, other_names: Iterable[str] | None = None) -> list[str]:
        """Return the names of the float tensors that determine the shape and the numbers of a tensor.

        They are the last ones whose own shapes depend on no number, among ``other_names`` if given. There
        are none where a body computes all numbers.
        """
        allowed = None if other_names is None else frozenset(other_names)
        float_names: dict[str, None] = {}
        seen, waiting = set[int](), [tensor]
        while waiting:
            node = walk.producer(waiting.pop())
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))
            for read in walk.reads(node):
                if id(read) not in self._valued or walk.producer(read) is None:
                    continue
                is_end = id(read) not in self._shaped and dtypes.element_type(read) in _FLOATS
                if is_end and (allowed is None or read.name in allowed):
                    float_names.setdefault(str(read.name))
                else:
                    waiting.append(read)
        node_outputs = {str(output.name) for node in self._graph.nodes for output in node.outputs}
        return sorted(name for name in float_names if name in node_outputs)

    def _follow_without_decided(self, nodes: Sequence[gs.Node]) -> None:
        """Follow numbers again, in a graph where float layers decide lengths."""
        marks = Marks(_lengths_of, lambda tensor: id(tensor) in self._valued, self.is_shaped, self._is_length)
        self.decided = decided_lengths(self._graph, marks)
        if self.decided.tensors:
            self._valued, self._shaped, self._lengths = set(), set(), set(self.decided.tensors)
            self._visit(nodes)

    def _visit(self, nodes: Sequence[gs.Node]) -> None:
        """Mark outputs of nodes, repeatedly as long as the inputs of bodies change."""
        before = -1
        while before != (before := len(self._valued) + len(self._shaped)):
            for node in nodes:
                if any(True for _ in walk.bodies(node)):
                    self._pass_on(node)
                else:
                    self._compute(node)

    def _compute(self, node: gs.Node) -> None:
        """Mark the outputs of a node without bodies."""
        valued = any(id(tensor) in self._valued for tensor in node.inputs) or node.op in RANDOM
        shaped = any(id(tensor) in self._shaped for tensor in node.inputs)
        is_length = node.op in MEASURING or all(map(self._is_length, node.inputs))
        if is_length and node.op not in RANDOM:
            self._lengths.update(map(id, node.outputs))
        if node.op in MEASURING:
            self._mark(node.outputs, shaped, False)
            return
        by = _SHAPED_BY.get(node.op)
        if by is not None:
            shaped = any(id(node.inputs[i]) in self._shaped for i in by)
        shaped = shaped or any(id(tensor) in self._valued for tensor in _lengths_of(node))
        shaped = shaped or (node.op in _COUNTING and valued)
        computes = node.op not in _AS_FED and not is_length
        for tensor in node.outputs:
            is_float = dtypes.element_type(tensor) in _FLOATS
            self._mark([tensor], valued or shaped or (computes and is_float), shaped)

    def _is_length(self, tensor: gs.Tensor) -> bool:
        return walk.is_given(tensor) or id(tensor) in self._lengths

    def _pass_on(self, node: gs.Node) -> None:
        """Mark outputs of an If, Loop, Scan or SequenceMap, and what depends on the number of iterations."""
        for source, target in passed_on(node):
            self._mark([target], id(source) in self._valued, id(source) in self._shaped)
        body = next(walk.bodies(node))
        if node.op == "If":
            decided = id(node.inputs[0]) in self._valued
            sizes = [map(_sizes, branch.outputs) for branch in walk.bodies(node)]
            are_free = [None in ends or ends[0] != ends[-1] for ends in zip(*sizes, strict=False)]
        elif node.op == "Loop":
            decided = any(id(tensor) in self._valued for tensor in (*node.inputs[:2], body.outputs[0]))
            states = len(node.inputs) - 2
            are_free = [place >= states or _sizes(end) is None for place, end in enumerate(body.outputs[1:])]
        else:
            decided = any(id(tensor) in self._shaped for tensor in node.inputs)
            are_free = [True] * len(node.outputs)
        for tensor, is_free in zip(node.outputs, are_free, strict=False):
            self._mark([tensor], decided, decided and is_free)

    def _mark(self, tensors: Iterable[gs.Tensor], valued: bool, shaped: bool) -> None:
        for tensor in tensors:
            if tensor.is_empty() or id(tensor) in self.decided.tensors:
                continue
            if valued:
                self._valued.add(id(tensor))
            if shaped:  # regardless of the declaration: exporters write the shapes of one example
                self._shaped.add(id(tensor))


def _bodies_first(graph: gs.Graph) -> Iterator[gs.Node]:
    """Yield the nodes of a graph and of its bodies, each after the nodes of its own bodies."""
    for node in graph.nodes:
        for body in walk.bodies(node):
            yield from _bodies_first(body)
        yield node


def _may_set_lengths(node: gs.Node) -> bool:
    """Return whether numbers may set the lengths of a node's outputs."""
    if node.op in _COUNTING or any(True for _ in walk.bodies(node)):
        return True
    return any(not walk.is_given(tensor) for tensor in _lengths_of(node))


def _lengths_of(node: gs.Node) -> Iterator[gs.Tensor]:
    """Yield the inputs of a node that hold lengths, including the iteration count of a Loop."""
    places = (0,) if node.op == "Loop" else _LENGTHS.get(node.op, ())
    return (node.inputs[i] for i in places if i < len(node.inputs))


def _sizes(tensor: gs.Tensor) -> list[int] | None:
    """Return the sizes of a plain tensor, or None unless all are known."""
    shape = tensor.shape
    if dtypes.element_type(tensor) is None or shape is None or not all(isinstance(n, int) for n in shape):
        return None
    return list(shape)
