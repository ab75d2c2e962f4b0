"""Which formats each node of a graph has, after the rules of a scheme, and rules that come to nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import onnx_graphsurgeon as gs

import ops
from transforms.graph import walk
from transforms.plan.quant_spec import QuantSite
from transforms.plan.scheme_targets import Targets, operators
from transforms.scheme.layer_rule import LayerRule
from transforms.scheme.scheme import AUTO, FLOAT32, Scheme


@dataclass(frozen=True)
class NodeFormats:
    """Formats of what a node reads, None for float32: activations, weights, biases, and all ``other`` values.

    A ``bias`` of int32 is for nodes that multiply integers; others have ``other`` in its place.
    ``per_channel``: a weight has a scale for each output channel, or only (``spread``) where it needs them.
    ``weight_method``: how that is found, ``auto`` if the scheme says it for all.
    """

    activation: ops.Format | None
    weight: ops.Format | None
    bias: ops.Format | None
    other: ops.Format | None
    per_channel: bool | str
    weight_method: str = AUTO

    @property
    def wants_integers(self) -> bool:
        """Whether activations are integers."""
        return self.activation is not None and self.activation.is_integer

    @property
    def wants_grids(self) -> bool:
        """Whether activations or weights are integers or blocks, which have no float type's ratios."""
        return any(fmt is not None and not fmt.is_float for fmt in (self.activation, self.weight))


_FLOAT = NodeFormats(None, None, None, None, False)


class FormatTable:
    """The formats of every node; a node of which the scheme says nothing has those of the whole model."""

    def __init__(self, graph: gs.Graph, scheme: Scheme, targets: Targets) -> None:
        """Resolve the rules, the later over the earlier, exclusion over all."""
        self._scheme = scheme
        self.default = self._resolve(LayerRule())
        rules: dict[int, LayerRule] = {}
        for _, selection, rule in targets.rules:
            for node in walk.nodes(graph):
                if node in selection:
                    rules[id(node)] = replace(rules.get(id(node), LayerRule()), **rule.said)
        self._formats = {key: self._resolve(rule) for key, rule in rules.items()}
        self._formats |= {id(node): _FLOAT for node in self._kept(graph, targets)}

    def __getitem__(self, node: gs.Node) -> NodeFormats:
        return self._formats.get(id(node), self.default)

    def _kept(self, graph: gs.Graph, targets: Targets) -> Iterator[gs.Node]:
        wanted = set(self._scheme.op_types)
        for node in walk.nodes(graph):
            is_ruled = any(node in rule for _, rule, _ in targets.rules)
            if node in targets.excluded or (wanted and not operators(node) & wanted and not is_ruled):
                yield node

    def _resolve(self, rule: LayerRule) -> NodeFormats:
        scheme = self._scheme
        activation = scheme.format(rule.activation or scheme.activation)
        weight = scheme.format(rule.weight or scheme.weight)
        per_channel = scheme.per_channel if rule.per_channel is None else rule.per_channel
        other = self._other(rule, activation)
        bias = scheme.bias_format(activation, weight, rule)
        if (rule.bias or scheme.bias) == AUTO and (bias is None or not bias.is_integer):
            reaches = scheme.quantize_all_op_types and activation is not None and not activation.is_integer
            bias = activation if reaches else other
        return NodeFormats(activation, weight, bias, other, per_channel, rule.weight_method or AUTO)

    def _other(self, rule: LayerRule, activation: ops.Format | None) -> ops.Format | None:
        """A rule that asks for a float type asks for it everywhere; float32 means that the node is kept."""
        if rule.activation is None:
            return self._scheme.other_format
        if rule.activation == FLOAT32 or (activation is not None and activation.is_float):
            return activation
        return self._scheme.other_format


def check_targets(
    graph: gs.Graph,
    scheme: Scheme,
    targets: Targets,
    formats: FormatTable,
    quantizations: Sequence[QuantSite],
) -> None:
    """Raise ValueError for a layer or tensor that a scheme names and that got nothing in the format named.

    A rule that later rules or exclusions override on all its nodes is none such, nor one that gives a format
    to weights of nodes that have none but does something else. Also for a tensor that
    would need a range inside a body, where none is measured.
    """
    for site in quantizations:
        name, format = targets.tensors.get(id(site.tensor), ("", ""))
        measured = name and site.steps[0].needs_range and isinstance(site.tensor, gs.Variable)
        if measured and site.owner is not graph:
            raise ValueError(
                f"tensors entry '{name}': {format} needs a range, none is measured in If, Loop and Scan"
            )
    placed = {id(site.tensor) for site in quantizations}
    names = {name for key, (name, _) in targets.tensors.items() if key in placed}
    for name, format in targets.tensors.values():
        if name not in names and scheme.format(format) is not None:
            raise ValueError(f"tensors entry '{name}': nothing that reads it can take {format}")
    used = {(id(node), q.steps[0].format.name) for q in quantizations for node, _ in q.uses}
    for pattern, selection, rule in targets.rules:
        wanted = [
            (node, name)
            for part, name in {"activation": rule.activation, "weight": rule.weight}.items()
            if name is not None and (fmt := scheme.format(name)) is not None
            for node in walk.nodes(graph)
            if node in selection and getattr(formats[node], part) == fmt
        ]
        if wanted and not any((id(node), name) in used for node, name in wanted):
            kinds = ", ".join(sorted({node.op for node, _ in wanted}))
            words = " or ".join(dict.fromkeys(name for _, name in wanted))
            raise ValueError(f"layers entry '{pattern}': no input of {kinds} can take {words} there")
