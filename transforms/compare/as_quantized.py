"""Bring the float model of a comparison into the form that was quantized: folded and fused alike."""

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs

from transforms.conversion.float_reference import float_reference


def as_quantized(float_graph: gs.Graph, quantized_graph: gs.Graph, load: Callable[[], gs.Graph]) -> gs.Graph:
    """Return the float model in that form, so that folded layers are matched to their result.

    Returns ``float_graph`` itself if the form has other inputs or outputs, or if the quantized model's
    record is of another float model. ``load`` reads the float model again.
    """
    try:
        found = float_reference(load, quantized_graph)
    except ValueError:
        return float_graph
    return found if _ends(found) == _ends(float_graph) else float_graph


def _ends(graph: gs.Graph) -> tuple[list[str], list[str]]:
    return [tensor.name for tensor in graph.inputs], [tensor.name for tensor in graph.outputs]
