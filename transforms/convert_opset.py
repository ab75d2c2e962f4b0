"""Raising the version of the standard operator set without changing the meaning of a node.

``onnx.version_converter`` silently ignores some changes of definitions. The changes that it handles correctly
are in the table of :mod:`transforms.opset.raises`; :mod:`transforms.opset.rules` rewrites the nodes that it
does not; and the raised model is compared with the original.
"""

from __future__ import annotations

import logging

import onnx
import onnx.version_converter
import onnx_graphsurgeon as gs

from transforms.files.runtime_message import said_by_runtime
from transforms.graph import walk
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.graph.schemas import changes, definition
from transforms.graph.selection import label_of
from transforms.lift_constants import lift_constants
from transforms.model import proto_pass
from transforms.model.read_model import ModelError
from transforms.opset.raises import CHECKED
from transforms.opset.rules import RULES
from transforms.opset.set_aside import SetAside
from transforms.runtime.compare_runs import compare_runs

log = logging.getLogger(__name__)

CAST_TO_BFLOAT16 = 13
"""First opset in which Cast, and the operators that only move data, accept bfloat16."""


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
    if graph.opset >= version:
        return 0
    before = graph.opset
    try:
        _refuse_functions(graph)
        if all(node.domain not in STANDARD_DOMAINS for node in walk.nodes(graph)):
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
    """Return a light model of the graph raised to an opset, or to the least that has all equivalents."""
    aside = SetAside(model, graph.opset, version, walk.Names(graph))
    if aside.why and 0 < newest < aside.least:
        raise ModelError(aside.why)
    _refuse_unchecked(graph, aside.least)
    raised = aside.put_back(onnx.version_converter.convert_version(aside.model, aside.least))
    if any(_is_new(node, graph.opset, aside.least) for node in walk.nodes(graph)):
        compare_runs(model, raised, proto_pass.hidden_weights(graph, model), change="raised")
    return raised


def _refuse_unchecked(graph: gs.Graph, version: int) -> None:
    for node in walk.nodes(graph):
        if node.domain not in STANDARD_DOMAINS:
            continue
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
    functions = {(one.domain, one.name): one for one in graph.functions}
    for node in walk.nodes(graph):
        function = functions.get((node.domain, node.op))
        if function is not None and any(inner.domain in STANDARD_DOMAINS for inner in function.nodes):
            raise ModelError(
                f"{node.op} '{label_of(node)}': a local function of opset {function.opset}, not {graph.opset}"
            )


def _is_new(node: gs.Node, before: int, after: int) -> bool:
    """Return whether an operator of ONNX has another definition in an opset than in one before."""
    if node.domain not in STANDARD_DOMAINS:
        return False
    old, new = definition(node.op, before), definition(node.op, after)
    return old is None or new is None or old.since_version != new.since_version


def import_standard(graph: gs.Graph, version: int) -> None:
    """Write a version of the standard operator set into a graph and its bodies."""
    others = [opset for opset in graph.import_domains if opset.domain not in STANDARD_DOMAINS]
    graph.import_domains = [onnx.helper.make_opsetid("", version), *others]
    for inner in walk.graphs(graph):
        inner.opset = version
