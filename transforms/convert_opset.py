"""Raising the version of the standard operator set without changing the meaning of a node.

``onnx.version_converter`` silently ignores some changes of definitions. The changes that it handles correctly
are in the table of :mod:`transforms.opset.raises`; :mod:`transforms.opset.rules` rewrites the other nodes;
and the converted model is compared with the original.
"""

from __future__ import annotations

import logging

import onnx
import onnx.version_converter
import onnx_graphsurgeon as gs

from transforms.files.runtime_message import said_by_runtime
from transforms.graph import walk
from transforms.graph.proto_graphs import bodies
from transforms.graph.rewire import STANDARD_DOMAINS, onnx_op
from transforms.graph.schemas import changes, definition
from transforms.graph.selection import label_of
from transforms.lift_constants import lift_constants
from transforms.model import proto_pass
from transforms.model.proto_facts import Facts
from transforms.model.read_model import ModelError
from transforms.opset.raises import CHECKED
from transforms.opset.rules import RULES, least_opset

log = logging.getLogger(__name__)

_ASIDE = "set.aside"
"""Domain of the placeholders for nodes that are hidden from the converter."""


def convert_opset(graph: gs.Graph, version: int, *, newest: int = 0) -> int:
    """Raise the graph to an opset; return 1 if it changed, 0 if its opset is high enough already.

    Every node computes the same as before, and Constant nodes become initializers: the converter makes some
    from attributes, such as the bounds of Clip. Some nodes have no equivalent before a later opset than
    ``version`` (Softmax of opset 12 along inner axes whose sizes are free: 14), which is then the graph's.
    ``newest``: the opset that the graph may not pass, 0 for none.
    Raises ModelError if a node has no equivalent at all, or none until ``newest``, if a change of its
    operator's definition is not in the table, if the converter of the onnx package fails, and if the raised
    model differs from the original on random input.
    """
    walk.check_graph(graph)
    if graph.opset >= version:
        return 0
    before = graph.opset
    try:
        _refuse_functions(graph)
        if not any(map(onnx_op, walk.nodes(graph))):
            import_standard(graph, version)  # nothing to convert, and maybe no import to convert from
            return 1
        proto_pass.apply(graph, lambda model: _raise(model, graph, version, newest))
    except (RuntimeError, ModelError, onnx.version_converter.ConvertError) as error:
        message = f"the model cannot be raised from opset {before} to {version}: {said_by_runtime(error)}"
        raise ModelError(message) from error
    lift_constants(graph)
    log.debug("opset %d -> %d, %d nodes", before, graph.opset, sum(1 for _ in walk.nodes(graph)))
    return 1


def _raise(model: onnx.ModelProto, graph: gs.Graph, version: int, newest: int) -> onnx.ModelProto:
    """Return a light model of the graph raised to an opset, or to the first one with all equivalents."""
    aside = _SetAside(model, graph.opset, version, walk.Names(graph))
    if aside.why and 0 < newest < aside.least:
        raise ModelError(aside.why)
    _refuse_unchecked(graph, aside.least)
    raised = aside.put_back(onnx.version_converter.convert_version(aside.model, aside.least))
    if any(_is_new(node.op, graph.opset, aside.least) for node in filter(onnx_op, walk.nodes(graph))):
        from transforms.runtime.compare_runs import compare_runs

        compare_runs(model, raised, proto_pass.hidden_weights(graph, model), change="raised")
    return raised


def _refuse_unchecked(graph: gs.Graph, version: int) -> None:
    for node in filter(onnx_op, walk.nodes(graph)):
        if definition(node.op, graph.opset) is None:
            raise ModelError(f"{node.op} '{label_of(node)}': opset {graph.opset} has no such operator")
        ruled = RULES[node.op].steps if node.op in RULES else ()
        for opset in changes(node.op, graph.opset, version):
            if (node.op, opset) not in CHECKED and opset not in ruled:
                raise ModelError(
                    f"{node.op} '{label_of(node)}': opset {opset} defines it anew in a way not checked here"
                )


def _refuse_functions(graph: gs.Graph) -> None:
    """Refuse calls of local functions that could not be inlined because they use another opset."""
    functions = {(function.domain, function.name): function for function in graph.functions}
    for node in walk.nodes(graph):
        function = functions.get((node.domain, node.op))
        if function is not None and any(map(onnx_op, function.nodes)):
            raise ModelError(
                f"{node.op} '{label_of(node)}': a local function of opset {function.opset}, not {graph.opset}"
            )


def _is_new(op: str, before: int, after: int) -> bool:
    """Return whether the definition of an operator of ONNX differs between two opsets."""
    old, new = definition(op, before), definition(op, after)
    return old is None or new is None or old.since_version != new.since_version


def import_standard(graph: gs.Graph, version: int) -> None:
    """Set the version of the standard operator set of a graph and its bodies."""
    custom = [opset for opset in graph.import_domains if opset.domain not in STANDARD_DOMAINS]
    graph.import_domains = [onnx.helper.make_opsetid("", version), *custom]
    for inner in walk.graphs(graph):
        inner.opset = version


class _SetAside:
    """The nodes that match a rule of :mod:`transforms.opset.rules`, and their replacements.

    ``model`` is a copy of the given one with a placeholder, a node of an unknown operator, for each of them;
    ``least`` is the opset that it has to be raised to, at least ``target``, and ``why`` says which node needs
    a later one. ModelError names a node without an equivalent.
    """

    def __init__(self, model: onnx.ModelProto, before: int, target: int, names: walk.Names) -> None:
        """Set aside the nodes that a raise from one opset to another would change."""
        self.least, self._before, self._target, self._names = target, before, target, names
        self.why = ""
        self._original_tensors = set[str]()
        self._replacements: list[list[onnx.NodeProto]] = []
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self._take(self.model.graph, model.graph, Facts())
        if self._replacements:
            self.model.opset_import.append(onnx.helper.make_opsetid(_ASIDE, 1))

    def _take(self, graph: onnx.GraphProto, source: onnx.GraphProto, outer: Facts) -> None:
        facts = outer.inside(source)
        self._original_tensors.update(name for node in source.node for name in node.output)
        for node, original in zip(graph.node, source.node, strict=True):
            for body, inner in zip(bodies(node), bodies(original), strict=True):
                self._take(body, inner, facts)
            nodes = self._rewritten(original, facts)
            if nodes is not None:
                number, ends = str(len(self._replacements)), (node.input, node.output)
                node.CopyFrom(onnx.helper.make_node(number, *ends, node.name, domain=_ASIDE))
                self._replacements.append(nodes)

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
        """Return the converted model with the replacements, and unique names for all new tensors."""
        self._fill(model.graph)
        imports = [opset for opset in model.opset_import if opset.domain != _ASIDE]
        del model.opset_import[:]
        model.opset_import.extend(imports)
        return model

    def _fill(self, graph: onnx.GraphProto) -> None:
        self._rename(graph)
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            for body in bodies(node):
                self._fill(body)
            nodes += self._replacements[int(node.op_type)] if node.domain == _ASIDE else [node]
        filled = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(filled)

    def _rename(self, graph: onnx.GraphProto) -> None:
        """Rename the converter's tensors: it restarts their numbers in each body."""
        new_tensors = [
            name for node in graph.node for name in node.output if name and name not in self._original_tensors
        ]
        new = {name: self._names.derive("", f"opset{self.least}") for name in new_tensors}
        for node in graph.node:
            for ends in (node.input, node.output):
                for index, name in enumerate(ends):
                    ends[index] = new.get(name, name)
        for value in graph.value_info:
            value.name = new.get(value.name, value.name)
