"""A quantized model beside its float model: the same layers, and the tensors that stand for each other."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from transforms.conversion.record import Record


@dataclass
class Mixed:
    """A quantized model.

    ``raw``: by the name of a tensor of the float model, the tensor that stands for it before anything rounds
    it. ``layers``: the dot products by name, of which several nodes may have one.
    """

    graph: gs.Graph
    raw: dict[str, gs.Tensor]
    layers: dict[str, list[gs.Node]]
    done: Record
