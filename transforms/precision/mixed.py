"""A model with the correspondence of its tensors and layers to the float model."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.conversion.record import Record


@dataclass
class Mixed:
    """A model of a mix of formats.

    ``raw``: by the name of a tensor of the float model, the corresponding tensor before it is rounded.
    ``layers``: the dot products by name; several nodes may have the same name.
    """

    graph: gs.Graph
    raw: dict[str, gs.Tensor]
    layers: dict[str, list[gs.Node]]
    done: Record
