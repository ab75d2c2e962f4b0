"""Tensors whose shapes depend on the numbers that a model computes, as the boxes that a detector finds.

Two models that compute nearly the same numbers make such tensors of different lengths: there is no element
of the one for each of the other. Numbers are those of floating types that nodes compute, and whatever follows
from them, such as what is greater than a threshold. Inputs are as they are fed, and what follows from lengths
and constants alone, as most arithmetic on shapes, is the same in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk

_COUNTING = frozenset({"NonMaxSuppression", "NonZero", "Unique", "Compress", "StringSplit"})
"""Operators that make as many rows as they find."""

_RANDOM = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}) | frozenset(
    {"Bernoulli", "Multinomial"}
)

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
"""Inputs of an operator whose numbers are lengths of what it makes, or set them."""

_SHAPED_BY = {
    **dict.fromkeys(("ScatterND", "ScatterElements", "Scatter", "TensorScatter"), (0,)),
    "GatherElements": (1,),
}
"""The inputs whose shapes what an operator makes has, where those are not all."""

_MEASURING = frozenset({"Shape", "Size", "SequenceLength"})
_FLOATS = frozenset({dtypes.FLOAT, dtypes.FLOAT16, dtypes.BFLOAT16})
_AS_FED = frozenset(
    {"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "GatherND"}
    | {"GatherElements", "Concat", "Split", "Expand", "Tile", "Cast"}
)
"""Operators that make no new numbers."""


def judged_tensors(
    graph: gs.Graph, known: Iterable[str] | None = None, shapes: NumberShapes | None = None
) -> dict[str, list[str]]:
    """Return, for each output of a graph, the names of what of it is compared with that of another model.

    That is the output itself, or what it is made of up to where numbers decide how many rows there are;
    nothing where a body computes all that. ``known``: names of the tensors that the other model has.
    ``shapes``: those of the graph, if they are at hand.
    """
    found = shapes or NumberShapes(graph)
    return {
        str(tensor.name): found.sources(tensor, known) if found.is_shaped(tensor) else [str(tensor.name)]
        for tensor in graph.outputs
    }


def in_words(judged: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each output that is not compared itself."""
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
    """The tensors of a graph, those in bodies among them, that depend on numbers."""

    def __init__(self, graph: gs.Graph) -> None:
        """Follow numbers through the nodes, which stand in the order in which they run."""
        self._graph = graph
        self._valued, self._shaped, self._lengths = set[int](), set[int](), set[int]()
        if any(map(_may_set_lengths, walk.nodes(graph))):
            self._visit(graph.nodes)

    @property
    def names(self) -> frozenset[str]:
        """The names of tensors of the main graph whose shapes depend on numbers."""
        made = (tensor for node in self._graph.nodes for tensor in node.outputs)
        return frozenset(str(tensor.name) for tensor in made if id(tensor) in self._shaped)

    def is_shaped(self, tensor: gs.Tensor) -> bool:
        """Return whether the shape of a tensor depends on numbers."""
        return id(tensor) in self._shaped

    def sources(self, tensor: gs.Tensor, known: Iterable[str] | None = None) -> list[str]:
        """Return the names of the float tensors by which a tensor got its shape and its numbers.

        They are the last ones whose own shapes depend on no number, of those with ``known`` names, if given.
        There are none where a body computes all numbers.
        """
        allowed = None if known is None else frozenset(known)
        found: dict[str, None] = {}
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
                    found.setdefault(str(read.name))
                else:
                    waiting.append(read)
        own = {str(made.name) for node in self._graph.nodes for made in node.outputs}
        return sorted(name for name in found if name in own)

    def _visit(self, nodes: Iterable[gs.Node]) -> None:
        for node in nodes:
            if node.op == "If":
                self._branch(node)
            elif node.op == "Loop":
                self._loop(node)
            elif any(True for _ in walk.bodies(node)):
                self._scan(node)
            else:
                self._compute(node)

    def _compute(self, node: gs.Node) -> None:
        """Mark what a node without bodies makes."""
        valued = any(id(tensor) in self._valued for tensor in node.inputs) or node.op in _RANDOM
        shaped = any(id(tensor) in self._shaped for tensor in node.inputs)
        is_length = node.op in _MEASURING or all(map(self._is_length, node.inputs))
        if is_length and node.op not in _RANDOM:
            self._lengths.update(map(id, node.outputs))
        if node.op in _MEASURING:
            self._mark(node.outputs, shaped, False)
            return
        by = _SHAPED_BY.get(node.op)
        if by is not None:
            shaped = any(id(node.inputs[i]) in self._shaped for i in by)
        lengths = (node.inputs[i] for i in _LENGTHS.get(node.op, ()) if i < len(node.inputs))
        shaped = shaped or any(id(tensor) in self._valued for tensor in lengths)
        shaped = shaped or (node.op in _COUNTING and valued)
        computes = node.op not in _AS_FED and not is_length
        for tensor in node.outputs:
            is_float = dtypes.element_type(tensor) in _FLOATS
            self._mark([tensor], valued or shaped or (computes and is_float), shaped)

    def _is_length(self, tensor: gs.Tensor) -> bool:
        return walk.is_given(tensor) or id(tensor) in self._lengths

    def _branch(self, node: gs.Node) -> None:
        """Mark what an If makes: which branch runs may depend on numbers."""
        decided = id(node.inputs[0]) in self._valued
        branches = list(walk.bodies(node))
        for branch in branches:
            self._visit(branch.nodes)
        for tensor, *ends in zip(node.outputs, *(branch.outputs for branch in branches), strict=False):
            sizes = [_sizes(end) for end in ends]
            differ = None in sizes or len({*map(str, sizes)}) > 1
            valued = decided or any(id(end) in self._valued for end in ends)
            shaped = any(id(end) in self._shaped for end in ends)
            self._mark([tensor], valued, shaped or (decided and differ))

    def _loop(self, node: gs.Node) -> None:
        """Mark what a Loop makes: how often it runs may depend on numbers."""
        (body,) = walk.bodies(node)
        count = len(node.inputs) - 2
        given = node.inputs[2:]
        self._pass(zip(given, body.inputs[2:], strict=False))
        counted = any(id(tensor) in self._valued for tensor in node.inputs[:2])
        for _ in range(2 * count + 1):  # each run marks one more of the carried tensors at least
            before = len(self._valued) + len(self._shaped)
            self._visit(body.nodes)
            counted = counted or id(body.outputs[0]) in self._valued
            self._pass(zip(body.outputs[1 : 1 + count], body.inputs[2:], strict=False))
            if len(self._valued) + len(self._shaped) == before:
                break
        ends = zip(node.outputs, body.outputs[1:], strict=False)
        for place, (tensor, end) in enumerate(ends):
            starts = [end, *given[place : place + 1]]
            shaped = any(id(one) in self._shaped for one in starts)
            grows = counted and (place >= count or _sizes(end) is None)
            valued = counted or any(id(one) in self._valued for one in starts)
            self._mark([tensor], valued, shaped or grows)

    def _scan(self, node: gs.Node) -> None:
        """Mark what a Scan or a SequenceMap makes, which runs as often as its inputs have rows."""
        for body in walk.bodies(node):
            inputs = node.inputs[len(node.inputs) - len(body.inputs) :]
            pairs = list(zip(inputs, body.inputs, strict=False))
            self._pass(pairs)
            for _ in range(2 * len(pairs) + 1):
                before = len(self._valued) + len(self._shaped)
                self._visit(body.nodes)
                self._pass(zip(body.outputs, body.inputs, strict=False))
                if len(self._valued) + len(self._shaped) == before:
                    break
            rows = any(id(tensor) in self._shaped for tensor in node.inputs)
            for tensor, end in zip(node.outputs, body.outputs, strict=False):
                self._mark([tensor], id(end) in self._valued or rows, id(end) in self._shaped or rows)

    def _pass(self, pairs: Iterable[tuple[gs.Tensor, gs.Tensor]]) -> None:
        for source, target in pairs:
            self._mark([target], id(source) in self._valued, id(source) in self._shaped)

    def _mark(self, tensors: Iterable[gs.Tensor], valued: bool, shaped: bool) -> None:
        for tensor in tensors:
            if tensor.is_empty():
                continue
            if valued:
                self._valued.add(id(tensor))
            if shaped:  # whatever is declared: exporters write the shapes of one example
                self._shaped.add(id(tensor))


def _may_set_lengths(node: gs.Node) -> bool:
    """Return whether numbers may set the lengths of what a node makes."""
    if node.op in _COUNTING or any(True for _ in walk.bodies(node)):
        return True
    lengths = (node.inputs[i] for i in _LENGTHS.get(node.op, ()) if i < len(node.inputs))
    return any(not walk.is_given(tensor) for tensor in lengths)


def _sizes(tensor: gs.Tensor) -> list[int] | None:
    """Return the sizes of a plain tensor, None unless all are known."""
    shape = tensor.shape
    if dtypes.element_type(tensor) is None or shape is None or not all(isinstance(n, int) for n in shape):
        return None
    return list(shape)
