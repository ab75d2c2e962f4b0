"""LSTMs with weights in int8, written as ONNX Runtime's DynamicQuantizeLSTM.

com.microsoft's DynamicQuantizeLSTM, version 1, multiplies integers: it quantizes inputs and states to uint8
in every step. It reads W [D, I, 4 * H] and R [D, H, 4 * H] in 8 bits, transposed compared with LSTM, and,
after the inputs of LSTM, the scale and zero point of both, one for each direction or [D, 4 * H]. In a body,
ONNX Runtime 1.32 accepts zero points from the outer graph only if they are those of int8.
"""

from __future__ import annotations

import logging

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray
from transforms.features.recurrent.operators import WEIGHTS
from transforms.features.recurrent.stored_rows import StoredRows, stored_rows
from transforms.graph import dtypes, walk
from transforms.graph.rewire import (
    RUNTIME_DOMAIN,
    Replacements,
    import_domains,
    onnx_op,
    remove_unused,
    take_over,
)
from transforms.graph.selection import Choice, Exclusion, label_of, resolve

log = logging.getLogger(__name__)

OPERATOR = "DynamicQuantizeLSTM"
_MIDDLE = 128  # what is added to integers in int8, whose sums may saturate on x86 without VNNI
_INPUTS = 8  # of an LSTM: X, W, R, B, sequence_lens, initial_h, initial_c, P
_LEAST = 1 << 15
"""Numbers in W and R from which integers are faster: 64 units on 64 inputs take 0.78 of the time for 20 steps
and 1.03 for one, 32 on 32 take 1.18 and 1.09, measured with one thread."""


def write_dynamic_lstm(
    graph: gs.Graph, *, least: int = _LEAST, nodes: Choice | None = None, exclude: Exclusion = None
) -> int:
    """Replace each LSTM with weights stored in int8 by DynamicQuantizeLSTM; return how many.

    Also in bodies. Run it after a plan, or :func:`transforms.quantize_recurrent.quantize_recurrent`, has
    stored the weights. Does nothing to an LSTM with fewer weights than ``least``, whose rounding of inputs
    would take longer than it saves, with blocks within rows, or with batches first.
    """
    names, changed, excluded = walk.Names(graph), 0, resolve(exclude, graph, nodes)
    stored: dict[tuple[int, str], gs.Constant] = {}
    idle: list[gs.Node] = []
    for owner in walk.graphs(graph):
        replacements = Replacements(owner)
        for node in [node for node in owner.nodes if onnx_op(node) == "LSTM" and node not in excluded]:
            weights = [stored_rows(node.inputs[index]) for index in WEIGHTS]
            rows = [weight for weight in weights if weight is not None]
            if reason := _why_not(node, rows, least):
                log.debug("LSTM '%s' stays: %s", label_of(node), reason)
                continue
            new = _dynamic(node, rows, names, stored)
            for tensor in list(node.outputs):
                if tensor.is_empty():
                    new.outputs.append(gs.Variable.empty())
                else:
                    take_over(new, tensor)
            replacements.replace([node], [new])
            idle += [reader for weight in rows for reader in reversed(weight.nodes)]
            changed += 1
        replacements.place()
    for owner in reversed(list(walk.graphs(graph))) if idle else ():
        remove_unused(owner, idle)  # nodes around a body outlive it there
    if changed:
        import_domains(graph, {RUNTIME_DOMAIN})
    return changed


def _why_not(node: gs.Node, rows: list[StoredRows], least: int) -> str:
    """Return the reason why an LSTM cannot be replaced, empty if it can."""
    if len(rows) < len(WEIGHTS):
        return "its weights are not stored integers"
    if any(
        weight.format != "int8" or weight.parameters[0].shape[2] > 1 or weight.parameters[1].any()
        for weight in rows
    ):
        return "its weights are not int8, with a scale for each row and no zero points"
    if not dtypes.is_type(node.inputs[0], dtypes.FLOAT) or node.attrs.get("layout", 0):
        return "its inputs are not float32, or batches come first"
    if sum(weight.integers.size for weight in rows) < least:
        return "it is small"
    return ""


def _dynamic(
    node: gs.Node, rows: list[StoredRows], names: walk.Names, stored: dict[tuple[int, str], gs.Constant]
) -> gs.Node:
    """Return a DynamicQuantizeLSTM with the inputs of an LSTM, without outputs."""

    def _constant(weight: StoredRows, suffix: str, values: AnyArray) -> gs.Constant:
        key = id(weight.source), suffix
        if key not in stored:
            name = weight.source.name.removesuffix("_quantized")
            stored[key] = gs.Constant(names.derive(name, suffix), np.ascontiguousarray(values))
        return stored[key]

    inputs = [*node.inputs, *(gs.Variable.empty() for _ in range(_INPUTS - len(node.inputs)))]
    for index, weight in zip(WEIGHTS, rows, strict=True):
        scale = weight.parameters[0][..., 0]
        integers = weight.integers.view(np.uint8) ^ np.uint8(_MIDDLE)  # adds 128
        inputs[index] = _constant(weight, "turned", integers.transpose(0, 2, 1))
        zero_points = np.full(scale.shape, _MIDDLE, np.uint8)
        inputs += [_constant(weight, "scales", scale), _constant(weight, "zero_points", zero_points)]
    attrs = {name: value for name, value in node.attrs.items() if name != "layout"}
    attrs.setdefault("hidden_size", rows[1].integers.shape[2])
    return gs.Node(OPERATOR, node.name, attrs, inputs, [], RUNTIME_DOMAIN)
