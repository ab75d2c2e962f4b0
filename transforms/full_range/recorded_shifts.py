"""The shifts of tensors of a quantized model, as its metadata record them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import onnx_graphsurgeon as gs

from transforms.graph.typed import Graph, info_of
from transforms.model.provenance import PREFIX

_KEY = PREFIX + "shifts"


def recorded_shifts(graph: gs.Graph) -> dict[str, float]:
    """Return by how much tensors are less than those of their name in the float model.

    Those are what layers make before a Relu or Clip, what that makes of it, both by the names of the float
    model, and inputs and means, of which a Sub makes what is quantized. Empty without a record, or if it
    cannot be read.
    """
    try:
        found = json.loads(info_of(graph).metadata.get(_KEY, "{}"))
        shifts = {str(name): float(shift) for name, shift in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
    return {name: shift for name, shift in shifts.items() if math.isfinite(shift)}


def shifts_within(graph: gs.Graph) -> dict[str, float]:
    """Return the shifts of tensors that hold shifted numbers; a Sub makes the others' for a quantization."""
    before = {str(node.inputs[0].name) for node in graph.nodes if is_shift(node)}
    return {name: shift for name, shift in recorded_shifts(graph).items() if name not in before}


def is_shift(node: gs.Node) -> bool:
    """Return whether a node subtracts one stored number, and quantizations alone read the result."""
    if node.op != "Sub" or not isinstance(node.inputs[1], gs.Constant) or node.inputs[1].shape:
        return False
    users = node.outputs[0].outputs
    return bool(users) and all(user.op == "QuantizeLinear" for user in users)


def record_shifts(graph: gs.Graph, shifts: Mapping[str, float]) -> None:
    """Add shifts to the record of a graph; that of graphs it was copied from stays."""
    if not isinstance(graph, Graph) or not shifts:
        return
    text = json.dumps({**recorded_shifts(graph), **shifts}, sort_keys=True)
    graph.info = replace(graph.info, metadata={**graph.info.metadata, _KEY: text})
