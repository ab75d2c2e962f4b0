"""The float model in the form that was quantized: after folding, fusing and scaling."""

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs

from transforms.conversion.prepare import prepare_for
from transforms.conversion.standard_form import standardize
from transforms.graph.selection import Selection
from transforms.layers.match_layers import match_layers
from transforms.lift_constants import lift_constants
from transforms.scheme import Scheme
from transforms.scheme.sources import recorded_scheme
from transforms.write_out_axes import write_out_axes


def float_reference(
    load: Callable[[], gs.Graph], quantized_graph: gs.Graph, scheme: Scheme | None = None
) -> gs.Graph:
    """Return the float model, which ``load`` reads at each call, in the form that was quantized.

    The steps of the scheme are repeated; files of tools.quantize record their scheme. For other models it is
    the form, unchanged or prepared as in the conversions, in which more layers match. Raises ValueError if
    the recorded steps cannot be applied to the float model.
    """
    scheme = scheme or recorded_scheme(quantized_graph)
    if scheme is not None:
        graph = load()
        try:
            prepare_for(graph, scheme)
        except ValueError as error:
            raise ValueError(f"the float model is not the one that was quantized: {error}") from error
        return graph
    as_it_is, prepared = load(), load()
    lift_constants(as_it_is)
    lift_constants(prepared)
    write_out_axes(prepared)
    standardize(prepared, Selection())
    counts = [len(match_layers(graph, quantized_graph)[0]) for graph in (as_it_is, prepared)]
    return prepared if counts[1] > counts[0] else as_it_is
