"""The float model of a comparison in the form that was quantized: layers are folded and fused alike."""

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs

from transforms.conversion.float_reference import float_reference


def as_quantized(float_graph: gs.Graph, quantized_graph: gs.Graph, load: Callable[[], gs.Graph]) -> gs.Graph:
    """Return the float model in that form, so that a folded layer is matched to what it was folded into.

    It is ``float_graph`` itself where the form has other inputs or outputs, or where the record of the
    quantized model is that of another float model. ``load`` reads the float model anew.
    """
    try:
        found = float_reference(load, quantized_graph)
    except ValueError:
        return float_graph
    return found if _ends(found) == _ends(float_graph) else float_graph


def _ends(graph: gs.Graph) -> tuple[list[str], list[str]]:
    return [tensor.name for tensor in graph.inputs], [tensor.name for tensor in graph.outputs]
