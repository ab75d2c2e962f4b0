"""Checks at the door of a rewrite: what it is given is a graph, of an opset in which it can do something."""

from __future__ import annotations

import logging
from os import PathLike

import onnx_graphsurgeon as gs

log = logging.getLogger(__name__)


def check_graph(graph: object) -> None:
    """Raise TypeError unless this is a graph of graph-surgeon."""
    if isinstance(graph, gs.Graph):
        return
    is_path = isinstance(graph, str | PathLike)
    given = f"the path '{graph}'" if is_path else f"a {type(graph).__name__}"
    is_model = is_path or type(graph).__name__ == "ModelProto"
    hint = ": load it with transforms.model_io.load" if is_model else ""
    raise TypeError(f"a graph of onnx_graphsurgeon is needed, not {given}{hint}")


def reaches(graph: gs.Graph, opset: int, rewrite: str) -> bool:
    """Return whether a graph has the opset that a rewrite needs; if not, the log says so."""
    check_graph(graph)
    if graph.opset < opset:
        log.debug("%s needs opset %d, the graph has %d", rewrite, opset, graph.opset)
    return bool(graph.opset >= opset)
