"""Infer element types after operators without a schema from the operators around them.

onnx infers nothing for operators of other domains, nor for anything after them. A schema ties the tensors of
a node to one type: a tensor added to a float32 bias is itself float32. Union-find over these ties (Tarjan,
"Efficiency of a Good But Not Linear Set Union Algorithm", 1975) gives the types of all tensors connected to
a known one.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import helper

from transforms.graph.proto_graphs import bodies, each_graph
from transforms.graph.rewire import RUNTIME_DOMAIN, STANDARD_DOMAINS
from transforms.graph.schemas import find_schema, runtime_schema, type_variables

_UNKNOWN = onnx.TensorProto.UNDEFINED
_OF_RANK_3 = frozenset(
    {"Attention", "EmbedLayerNormalization", "GroupQueryAttention", "LinearAttention", "MultiHeadAttention"}
    | {"DecoderMaskedMultiHeadAttention", "SparseAttention"}
)
"""Operators of ONNX Runtime whose first output is [batch, tokens, hidden]."""

_AS_INPUT = {"CausalConvWithState": 0, "GatedDeltaNet": 2}
"""Operators of ONNX Runtime whose first output has the rank of an input, with the input's index."""


def add_types(model: onnx.ModelProto) -> bool:
    """Add the element types that ties imply for tensors without one; return whether ranks were added as well.

    Ranks are added after attentions and convolutions of ONNX Runtime. Tensors of sequences, maps and
    optionals, and tensors tied to two types, stay without a type.
    """
    open_tensors = [name for graph in each_graph(model.graph) for name in _untyped(graph)]
    if not open_tensors:
        return False
    ties = _Ties({"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import})
    ties.read(model.graph, ChainMap())
    return ties.write()


def _untyped(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the outputs of nodes without a declared type."""
    known = {value.name for value in (*graph.value_info, *graph.output) if value.type.WhichOneof("value")}
    yield from (name for node in graph.node for name in node.output if name and name not in known)


def _rank(node: onnx.NodeProto, ranks: Mapping[str, int]) -> int:
    """Return the rank of an ONNX Runtime operator's first output, given ranks of tensors; 0 if unknown."""
    if node.domain != RUNTIME_DOMAIN:
        return 0
    if node.op_type in _OF_RANK_3:
        return 3
    place = _AS_INPUT.get(node.op_type, len(node.input))
    return ranks.get(node.input[place], 0) if place < len(node.input) else 0


class _Ties:
    """Disjoint sets of tensors with one type. Tensors are numbers, since names are local to a graph."""

    def __init__(self, opsets: dict[str, int]) -> None:
        self._opsets = opsets
        self._parents: list[int] = []
        self._types: list[int | None] = []  # None: no type, or two
        self._made: list[tuple[onnx.GraphProto, str, int, int]] = []

    def read(self, graph: onnx.GraphProto, outer: ChainMap[str, int]) -> ChainMap[str, int]:
        """Tie the tensors of a graph and its bodies; return their numbers."""
        scope = outer.new_child()
        for tensor in graph.initializer:
            self._declare(scope, tensor.name, tensor.data_type)
        for value in (*graph.input, *graph.value_info, *graph.output):
            kind = value.type.WhichOneof("value")
            if kind is not None:
                plain = kind == "tensor_type"
                self._declare(scope, value.name, value.type.tensor_type.elem_type if plain else None)
        open_tensors = set(_untyped(graph))
        values = (*graph.input, *graph.value_info)
        ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in values}
        for node in graph.node:
            for name in node.output:
                if name in open_tensors:
                    self._declare(scope, name, _UNKNOWN)
                    rank = _rank(node, ranks) if name == node.output[0] else 0
                    self._made.append((graph, name, scope[name], rank))
        for node in graph.node:
            self._tie_node(node, scope)
        return scope

    def write(self) -> bool:
        """Write the type of each set to its tensors in their graphs; return whether a rank was added."""
        ranked = False
        for graph, name, number, rank in self._made:
            kind = self._types[self._find(number)]
            if kind:
                shape = [None] * rank or None
                graph.value_info.append(helper.make_tensor_value_info(name, kind, shape))
                ranked |= shape is not None
        return ranked

    def _declare(self, scope: ChainMap[str, int], name: str, kind: int | None) -> None:
        if name in scope.maps[0]:
            return
        scope[name] = len(self._parents)
        self._parents.append(scope[name])
        self._types.append(kind)

    def _tie_node(self, node: onnx.NodeProto, scope: ChainMap[str, int]) -> None:
        domain = "" if node.domain in STANDARD_DOMAINS else node.domain
        operator = node.op_type, domain, self._opsets.get(domain, 1)
        schema = find_schema(*operator) or runtime_schema(*operator)
        variables = ((), ()) if schema is None else type_variables(schema)
        first: dict[str, int] = {}
        for names, kinds in zip((node.input, node.output), variables, strict=True):
            for index, name in enumerate(names):
                kind = kinds[min(index, len(kinds) - 1)] if kinds else ""
                if kind and name in scope:
                    self._tie(first.setdefault(kind, scope[name]), scope[name])
        for body in bodies(node):
            self._tie_body(node, body, scope)

    def _tie_body(self, node: onnx.NodeProto, body: onnx.GraphProto, scope: ChainMap[str, int]) -> None:
        """Tie the inputs and outputs of a node to those of its body."""
        inner = self.read(body, scope)
        inputs, outputs = [value.name for value in body.input], [value.name for value in body.output]
        pairs: list[tuple[Sequence[str], Sequence[str]]] = []
        if node.op_type == "If":
            pairs = [(node.output, outputs)]
        elif node.op_type == "Loop":
            carried = len(node.input) - 2
            pairs = [(node.input[2:], inputs[2:]), (node.output, outputs[1:])]
            pairs.append((node.output[:carried], inputs[2:]))
        elif node.op_type == "Scan":
            pairs = [(node.input, inputs), (node.output, outputs)]
        for outside, inside in pairs:
            for here, there in zip(outside, inside, strict=False):
                if here in scope and there in inner:
                    self._tie(scope[here], inner[there])

    def _find(self, number: int) -> int:
        while self._parents[number] != number:
            self._parents[number] = self._parents[self._parents[number]]
            number = self._parents[number]
        return number

    def _tie(self, one: int, other: int) -> None:
        one, other = self._find(one), self._find(other)
        if one == other:
            return
        kinds = self._types[one], self._types[other]
        self._parents[other] = one
        same = kinds[0] == kinds[1] or _UNKNOWN in kinds
        self._types[one] = (kinds[0] or kinds[1]) if same and None not in kinds else None
