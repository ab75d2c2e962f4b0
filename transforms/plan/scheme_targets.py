"""Find the nodes and tensors that a scheme names, and the formats of each node by its rules.

Names are resolved before the model is prepared, and again in the prepared graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import onnx
import onnx_graphsurgeon as gs

import ops
from ops.legal_names import did_you_mean
from transforms import features
from transforms.features.hooks import RunTimeProducts
from transforms.graph import walk
from transforms.graph.selection import (
    Marked,
    NodeSet,
    Selection,
    label_of,
    marked_nodes,
    select,
)
from transforms.plan.graph_facts import GraphFacts, KnownFacts
from transforms.plan.named_nodes import NamedNodes, operators
from transforms.plan.tensor_grids import FixedGrids
from transforms.scheme.layer_rule import LayerRule
from transforms.scheme.scheme import AUTO, FLOAT32, Scheme

_Place = tuple[Selection, str, int]
"""The consumer of a tensor, its operator, and the index of its input."""

_FOLDED = "is gone after optimization, which folded it into its neighbours; optimize = false keeps it"


@dataclass(frozen=True)
class Targets:
    """The nodes and tensors of a graph that a scheme names.

    ``excluded`` nodes stay float, ``rules`` come in the order of the scheme, later ones override, and
    ``tensors`` holds, by ``id`` of the tensor, its name in the scheme and the name of the format. ``fixed``:
    grids given for single tensors besides the scheme; ``facts``: those of the graph.
    """

    excluded: NodeSet
    rules: tuple[tuple[str, NodeSet, LayerRule], ...]
    tensors: dict[int, tuple[str, str]]
    fixed: FixedGrids = field(default_factory=FixedGrids)
    facts: GraphFacts | None = None


class SchemeTargets:
    """The nodes and tensors of the loaded model that a scheme names."""

    def __init__(self, graph: gs.Graph, scheme: Scheme) -> None:
        """Resolve all names; missing ones may still appear when the graph is prepared."""
        self._scheme, self.fixed, self._facts = scheme, FixedGrids(), KnownFacts()
        self.excluded = select(graph, names=scheme.exclude_nodes, op_types=scheme.exclude_op_types)
        self._operators = _operators(graph)
        self.names = frozenset(label_of(node) for node in walk.nodes(graph))
        """The names of nodes of the loaded model."""
        nodes = NamedNodes(graph) if scheme.layers else None
        matching = {pattern: nodes.matching(pattern) for pattern in scheme.layers} if nodes else {}
        self._rules = {  # with their operators: a node that became another operator is a new one
            pattern: (Selection(graph, nodes), {node.op for node in nodes})
            for pattern, nodes in matching.items()
        }
        self._places = {name: _places(graph, name) for name in scheme.tensors}

    def naming(self, graph: gs.Graph, scheme: Scheme) -> SchemeTargets:
        """Return the targets of another scheme, which may add layers and tensors of a prepared graph."""
        found = copy(self)
        found._scheme = scheme
        found._rules = {name: self._rules.get(name, (Selection(), set[str]())) for name in scheme.layers}
        found._places = {name: self._places.get(name) or _places(graph, name) for name in scheme.tensors}
        return found

    def resolve_in(self, graph: gs.Graph) -> Targets:
        """Return the targets in the prepared graph.

        Raises ValueError for a name or operator type that matches nothing before or after, or whose node or
        tensor is gone.
        """
        present, chosen = self._operators | _operators(graph), self._scheme.op_types
        # a list shared by several models may name operators that only other models have
        absent = [op for op in chosen if op not in present]
        wrong = absent if len(absent) == len(chosen) else [op for op in absent if not onnx.defs.has(op)]
        if wrong:
            near = did_you_mean(wrong[0], sorted(present))
            raise ValueError(f"op_types entry '{wrong[0]}' matches no operator type{near}")
        rules: tuple[tuple[str, NodeSet, LayerRule], ...] = ()
        if self._scheme.layers:
            nodes, marked = NamedNodes(graph), list(marked_nodes(graph))
            rules = tuple(
                (pattern, self._resolve_rule(graph, nodes, marked, pattern), rule)
                for pattern, rule in self._scheme.layers.items()
            )
        tensors = {
            id(tensor): (name, format)
            for name, format in self._scheme.tensors.items()
            for tensor in self._resolve_tensor(graph, name)
        }
        facts = GraphFacts(graph, self._facts)
        return Targets(self.excluded.resolve_in(graph), rules, tensors, self.fixed, facts)

    def _resolve_rule(
        self, graph: gs.Graph, nodes: NamedNodes, marked: Sequence[Marked], pattern: str
    ) -> NodeSet:
        before, operators = self._rules[pattern]
        renamed = NodeSet(node for node in before.resolve_in(graph, marked) if node.op in operators)
        selected = renamed | nodes.matching(pattern)
        if not len(selected):
            if not operators:
                labels = [label_of(node) for node in walk.nodes(graph)]
                near = did_you_mean(pattern, [*labels, *sorted(_operators(graph))])
                raise ValueError(f"layers entry '{pattern}' matches no node name and no operator type{near}")
            raise ValueError(f"layers entry '{pattern}': the node {_FOLDED}")
        return selected

    def _resolve_tensor(self, graph: gs.Graph, name: str) -> list[gs.Tensor]:
        """Return the tensors with a name (bodies may repeat it) and those that their consumers now read."""
        places = self._places[name]
        tensors = [tensor for tensor in _tensors(graph) if tensor.name == name]
        for consumer, op, index in places:
            consumers = (node for node in consumer.resolve_in(graph) if node.op == op)
            tensors += [node.inputs[index] for node in consumers if index < len(node.inputs)]
        if tensors:
            return tensors
        if not places:
            near = did_you_mean(name, (str(tensor.name) for tensor in _tensors(graph)))
            raise ValueError(f"tensors entry '{name}' is not a tensor of the model{near}")
        raise ValueError(f"tensors entry '{name}': the tensor {_FOLDED}")


def _operators(graph: gs.Graph) -> set[str]:
    return {op_type for node in walk.nodes(graph) for op_type in operators(node)}


def _tensors(graph: gs.Graph) -> Iterator[gs.Tensor]:
    for inner in walk.graphs(graph):
        tensors: Iterable[gs.Tensor] = (t for node in inner.nodes for t in (*node.inputs, *node.outputs))
        yield from (*inner.inputs, *tensors)


def _places(graph: gs.Graph, name: str) -> list[_Place]:
    """Return the readers of the tensors with a name, by which they are found again under another name."""
    found = {id(tensor): tensor for tensor in _tensors(graph) if tensor.name == name}
    uses = (use for tensor in found.values() for use in walk.uses(tensor))
    return [(Selection(graph, [node]), node.op, index) for node, index in uses]


@dataclass(frozen=True)
class NodeFormats:
    """Formats of the inputs of a node, None for float32: activations, weights, biases and ``other`` values.

    A ``bias`` of int32 is for nodes that multiply integers; other nodes use ``other`` for it.
    ``per_channel``: a weight has a scale for each output channel, or only (``spread``) where it needs them.
    ``weight_method``: how that is found, ``auto`` if the scheme decides for all. ``dynamic``: how a product
    rounds its activations at run time, None if it does not.
    """

    activation: ops.Format | None
    weight: ops.Format | None
    bias: ops.Format | None
    other: ops.Format | None
    per_channel: bool | str
    weight_method: str = AUTO
    dynamic: RunTimeProducts | None = None

    @property
    def wants_integers(self) -> bool:
        """Whether activations are integers."""
        return self.activation is not None and self.activation.is_integer

    @property
    def wants_grids(self) -> bool:
        """Whether activations or weights are integers or blocks, whose relative precision varies."""
        return any(fmt is not None and not fmt.is_float for fmt in (self.activation, self.weight))


_FLOAT = NodeFormats(None, None, None, None, False)

_FINER = "int8"
"""Format of weights that get more bits; those of features stay float beside float activations."""


def _has_few_bits(fmt: ops.Format | None) -> bool:
    return fmt is not None and fmt.bits < ops.get_format(_FINER).bits


class FormatTable:
    """The formats of every node; a node of which the scheme says nothing has those of the whole model."""

    def __init__(
        self, graph: gs.Graph, scheme: Scheme, targets: Targets, facts: GraphFacts | None = None
    ) -> None:
        """Resolve the rules, the later over the earlier, exclusion over all."""
        self._scheme, facts = scheme, facts or GraphFacts(graph)
        opened = features.asked_for(scheme, *scheme.layers.values())
        self.at_run_time = [feature.products for feature in opened if feature.products]
        """How some products round their activations at run time; empty where none does."""
        self.default = self._resolve(LayerRule())
        rules: dict[int, LayerRule] = {}
        for _, selection, rule in targets.rules:
            for node in selection:
                rules[id(node)] = replace(rules.get(id(node), LayerRule()), **rule.said)
        self._formats = {key: self._resolve(rule) for key, rule in rules.items()}
        self.naming_weights = frozenset(key for key, rule in rules.items() if rule.weight)
        """``id`` of the nodes for whose weight a rule names the format."""
        self.choosing = self._leave(graph, facts.finer, _FINER) if _has_few_bits(self.default.weight) else []
        """Products of features whose weights get more bits than the scheme's."""
        self.deciding = self._leave(graph, facts.lengths)
        """Float nodes that decide the lengths of other tensors."""
        if (
            self.default.activation is None
        ):  # a quantized weight of a head would be stored besides its float table
            self._formats = dict.fromkeys(facts.shared_heads, _FLOAT) | self._formats
        self._formats |= {id(node): _FLOAT for node in self._kept(graph, targets)}
        self._formats |= dict.fromkeys(facts.rotating, _FLOAT)
        self.finer = self._finer_layers(graph) if _has_few_bits(self.default.weight) else []
        """Layers to which ``finer_share`` gives more bits."""

    def __getitem__(self, node: gs.Node) -> NodeFormats:
        return self._formats.get(id(node), self.default)

    def _leave(self, graph: gs.Graph, nodes: frozenset[int], weight: str = FLOAT32) -> list[gs.Node]:
        """Set nodes that no rule names to float, or to finer weights; return them."""
        left, is_integer = nodes.difference(self._formats), weight != FLOAT32 and self.default.wants_integers
        formats = self._resolve(LayerRule(weight=weight)) if is_integer else _FLOAT
        self._formats |= dict.fromkeys(left, formats)
        return [node for node in walk.nodes(graph) if id(node) in left] if left else []

    def _finer_layers(self, graph: gs.Graph) -> list[gs.Node]:
        """Give more bits to the most sensitive layers that no rule names, up to the share; return them."""
        fmt, share = self.default.weight, self._scheme.finer_share
        if not share or fmt is None or not fmt.is_integer:
            return []
        from transforms.graph.sensitive_convs import sensitive_convs, weight_count
        from transforms.graph.sensitive_layers import sensitive_layers, weight_key

        users: dict[int, list[gs.Node]] = {}  # a weight that several products read has one format
        for node in walk.nodes(graph):
            if id(node) not in self._formats and weight_count(node):
                users.setdefault(weight_key(node), []).append(node)
        sizes = {key: weight_count(nodes[0]) for key, nodes in users.items()}
        left = share * sum(sizes.values()) * fmt.bits
        more, finer = ops.get_format(_FINER).bits - fmt.bits, dict[int, gs.Node]()
        for node in sensitive_layers(graph) or sensitive_convs(graph):
            is_open = id(node) not in finer and id(node) not in self._formats
            if is_open and sizes[key := weight_key(node)] * more <= left:
                left -= sizes[key] * more
                finer |= {id(user): user for user in users[key]}
        self._formats |= dict.fromkeys(finer, self._resolve(LayerRule(weight=_FINER)))
        return list(finer.values())

    def _kept(self, graph: gs.Graph, targets: Targets) -> Iterator[gs.Node]:
        wanted = set(self._scheme.op_types)
        for node in walk.nodes(graph):
            is_ruled = any(node in rule for _, rule, _ in targets.rules)
            if node in targets.excluded or (wanted and not operators(node) & wanted and not is_ruled):
                yield node

    def _resolve(self, rule: LayerRule) -> NodeFormats:
        scheme = self._scheme
        dynamic = scheme.dynamic if rule.dynamic is None else rule.dynamic
        activation = scheme.format(FLOAT32 if rule.dynamic else rule.activation or scheme.activation)
        weight = scheme.format(rule.weight or scheme.weight)
        per_channel = scheme.per_channel if rule.per_channel is None else rule.per_channel
        other = self._other(rule, activation)
        bias = scheme.bias_format(activation, weight, rule)
        if (rule.bias or scheme.bias) == AUTO and (bias is None or not bias.is_integer):
            reaches = scheme.quantize_all_op_types and activation is not None and not activation.is_integer
            bias = activation if reaches else other
        products = self.at_run_time[0] if dynamic and activation is None and weight is not None else None
        return NodeFormats(activation, weight, bias, other, per_channel, rule.weight_method or AUTO, products)

    def _other(self, rule: LayerRule, activation: ops.Format | None) -> ops.Format | None:
        """Return the format of other values: that of a rule if it is float, None if it is float32."""
        if rule.activation is None:
            return self._scheme.other_format
        if rule.activation == FLOAT32 or (activation is not None and activation.is_float):
            return activation
        return self._scheme.other_format
