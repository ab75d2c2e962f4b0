"""Copying a graph without its large weights."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.graph.typed import Graph, info_of
from transforms.model import detached_weights, graph_proto


def copy_graph(graph: gs.Graph) -> Graph:
    """Return a copy of a graph with the same nodes and names; large weights are shared."""
    light, weights = graph_proto.export_light(graph)
    copy = graph_proto.import_light(detached_weights.as_inputs(light, weights), weights, info_of(graph))
    if isinstance(graph, Graph):
        copy.source_sha256, copy.source_files = graph.source_sha256, graph.source_files
    return copy
