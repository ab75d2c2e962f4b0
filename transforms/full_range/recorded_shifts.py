"""The shifts of a quantized model's tensors, as recorded in its metadata."""

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
    """Return how much lower tensors are than those with their name in the float model.

    These are outputs of layers before a Relu or Clip and outputs of the latter, both by the names of the
    float model, and inputs and means, of which a Sub makes the quantized tensor. Empty without a record, or
    if it is unreadable.
    """
    try:
        found = json.loads(info_of(graph).metadata.get(_KEY, "{}"))
        shifts = {str(name): float(shift) for name, shift in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
    return {name: shift for name, shift in shifts.items() if math.isfinite(shift)}


def shifts_within(graph: gs.Graph) -> dict[str, float]:
    """Return the shifts of tensors that hold shifted numbers; a Sub shifts others before quantization."""
    before = {str(node.inputs[0].name) for node in graph.nodes if is_shift(node)}
    return {name: shift for name, shift in recorded_shifts(graph).items() if name not in before}


def is_shift(node: gs.Node) -> bool:
    """Return whether a node subtracts a single stored number, and only quantizations read the result."""
    if node.op != "Sub" or not isinstance(node.inputs[1], gs.Constant) or node.inputs[1].shape:
        return False
    users = node.outputs[0].outputs
    return bool(users) and all(user.op == "QuantizeLinear" for user in users)


def record_shifts(graph: gs.Graph, shifts: Mapping[str, float]) -> None:
    """Add shifts to the record of a graph; the records of graphs from which it was copied are unchanged."""
    if not isinstance(graph, Graph) or not shifts:
        return
    text = json.dumps({**recorded_shifts(graph), **shifts}, sort_keys=True)
    graph.info = replace(graph.info, metadata={**graph.info.metadata, _KEY: text})
