"""Rewrite a graph in place by a pass over ``onnx.ModelProto``, which does not see large weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.lazy_values import Weight
from transforms.graph.typed import Node, info_of
from transforms.model import detached_weights, graph_proto

_REPLACED = ("nodes", "inputs", "outputs", "import_domains", "opset", "ir_version")


def apply(
    graph: gs.Graph,
    change: Callable[[onnx.ModelProto], onnx.ModelProto | None],
    *,
    hide: Callable[[gs.Constant], bool] | None = None,
    pin: Sequence[gs.Tensor] = (),
) -> None:
    """Replace the graph's content by the result of ``change``.

    ``change`` gets a model in which large weights, or weights for which ``hide`` is true, are graph inputs
    with the same name, so that no pass folds, copies or serializes them. It returns a new model, or None to
    leave the graph unchanged.

    Inputs and outputs must keep their names. Operator sets that the pass imports without use are dropped,
    and lost documentation of nodes is restored by node name. Tensors in ``pin``, of the outermost graph, are
    outputs during the pass, so that no node is merged across them.
    """
    outputs = list(graph.outputs)
    graph.outputs = [*outputs, *pin]
    try:
        light, weights = graph_proto.export_light(graph, hide=hide)
    finally:
        graph.outputs = outputs
    new_model = change(detached_weights.as_inputs(light, weights))
    if new_model is None:
        return
    light, shown = detached_weights.split(new_model)
    changed = graph_proto.import_light(light, weights | shown)
    changed.outputs = changed.outputs[: len(outputs)]
    _restore_documentation(graph, changed)
    notes = info_of(graph).notes
    notes += [note for note in info_of(changed).notes if note not in notes]
    used = (
        {node.domain or "" for node in walk.nodes(changed)} | {o.domain for o in graph.import_domains} | {""}
    )
    changed.import_domains = [opset for opset in changed.import_domains if opset.domain in used]
    for name in _REPLACED:
        setattr(graph, name, getattr(changed, name))


def hidden_weights(graph: gs.Graph, model: onnx.ModelProto) -> dict[str, Weight]:
    """Return the arrays of the graph that are inputs of the model passed to a pass."""
    hidden = {value.name for value in model.graph.input}
    return {t.name: t._values for t in walk.constants(graph) if t.name in hidden}


def _restore_documentation(before: gs.Graph, after: gs.Graph) -> None:
    known = {node.name: node for node in walk.nodes(before) if node.name}
    for node in walk.nodes(after):
        source = known.get(node.name)
        if isinstance(source, Node) and source.op == node.op:
            node.doc_string = node.doc_string or source.doc_string
            node.metadata = node.metadata or source.metadata
