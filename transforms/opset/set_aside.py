"""Hiding nodes from the converter of the onnx package, and inserting their replacements afterwards."""

from __future__ import annotations

import onnx

from transforms.graph import walk
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.schemas import changes
from transforms.model.proto_facts import Facts, bodies
from transforms.model.read_model import ModelError
from transforms.opset.rules import RULES, least_opset

_DOMAIN = "set.aside"


class SetAside:
    """The nodes that match a rule of :mod:`transforms.opset.rules`, and their replacements.

    ``model`` is a copy of the given one with a node of an unknown operator in place of each; ``least`` is the
    opset that it has to be raised to, at least ``target``, and ``why`` says which node needs a later one.
    ModelError names a node without an equivalent.
    """

    def __init__(self, model: onnx.ModelProto, before: int, target: int, names: walk.Names) -> None:
        """Set aside the nodes that a raise from one opset to another would change."""
        self.least, self._before, self._target, self._names = target, before, target, names
        self.why = ""
        self._known = set[str]()
        self._kept: list[list[onnx.NodeProto]] = []
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self._take(self.model.graph, model.graph, Facts())
        if self._kept:
            self.model.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))

    def _take(self, graph: onnx.GraphProto, source: onnx.GraphProto, outer: Facts) -> None:
        facts = outer.inside(source)
        self._known.update(name for node in source.node for name in node.output)
        for node, original in zip(graph.node, source.node, strict=True):
            for body, inner in zip(bodies(node), bodies(original), strict=True):
                self._take(body, inner, facts)
            nodes = self._rewritten(original, facts)
            if nodes is not None:
                node.CopyFrom(_placeholder(node, len(self._kept)))
                self._kept.append(nodes)

    def _rewritten(self, node: onnx.NodeProto, facts: Facts) -> list[onnx.NodeProto] | None:
        rule = RULES.get(node.op_type) if node.domain in STANDARD_DOMAINS else None
        if rule is None or not rule.steps.intersection(changes(node.op_type, self._before, self._target)):
            return None
        label = f"{node.op_type} '{node.name or next(iter(node.output), '')}'"
        try:
            nodes = rule.rewrite(node, facts, self._before, self._names)
        except ModelError as error:
            raise ModelError(f"{label}: {error}") from None
        if nodes is not None and (least := least_opset(nodes)) > self.least:
            self.least, self.why = least, f"{label}: it has no equivalent before opset {least}"
        return nodes

    def put_back(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return the converted model with the replacements, and with unique names for all that is new."""
        self._fill(model.graph)
        imports = [opset for opset in model.opset_import if opset.domain != _DOMAIN]
        del model.opset_import[:]
        model.opset_import.extend(imports)
        return model

    def _fill(self, graph: onnx.GraphProto) -> None:
        self._rename(graph)
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            for body in bodies(node):
                self._fill(body)
            nodes += self._kept[int(node.op_type)] if node.domain == _DOMAIN else [node]
        filled = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(filled)

    def _rename(self, graph: onnx.GraphProto) -> None:
        """Rename the converter's tensors: it restarts their numbers in each body."""
        made = [name for node in graph.node for name in node.output if name and name not in self._known]
        new = {name: self._names.derive("", f"opset{self.least}") for name in made}
        for node in graph.node:
            for ends in (node.input, node.output):
                for index, name in enumerate(ends):
                    ends[index] = new.get(name, name)
        for value in graph.value_info:
            value.name = new.get(value.name, value.name)


def _placeholder(node: onnx.NodeProto, number: int) -> onnx.NodeProto:
    return onnx.helper.make_node(str(number), node.input, node.output, node.name, domain=_DOMAIN)
