"""Copying a graph without its large weights."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.model import detached_weights, graph_proto


def copy_graph(graph: gs.Graph) -> gs.Graph:
    """Return a copy of a graph with the same nodes and names; large weights are shared."""
    light, weights = graph_proto.export_light(graph)
    copy = graph_proto.import_light(detached_weights.as_inputs(light, weights), weights)
    copy.info = graph.info
    copy.source_sha256 = vars(graph).get("source_sha256")
    copy.source_files = vars(graph).get("source_files", [])
    return copy
