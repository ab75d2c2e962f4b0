"""LSTMs with weights in int8, written as ONNX Runtime's DynamicQuantizeLSTM.

com.microsoft's DynamicQuantizeLSTM, version 1, multiplies integers: it quantizes inputs and states to uint8
in every step. It reads W [D, I, 4 * H] and R [D, H, 4 * H] in 8 bits, turned against those of LSTM, and after
the inputs of LSTM scale and zero point of both, one for each direction or [D, 4 * H]. ONNX Runtime 1.32 takes
zero points from outside of a body only if they are those of int8.
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
    """Put DynamicQuantizeLSTM in the place of each LSTM with stored weights in int8; return how many.

    In bodies, too. Comes after a plan, or :func:`transforms.quantize_recurrent.quantize_recurrent`, has
    stored the weights. Does nothing to an LSTM with fewer weights than ``least``, whose rounding of inputs
    would take longer than it saves, with blocks within rows, or with batches first.
    """
    names, changed, kept = walk.Names(graph), 0, resolve(exclude, graph, nodes)
    stored: dict[tuple[int, str], gs.Constant] = {}
    idle: list[gs.Node] = []
    for owner in walk.graphs(graph):
        replacements = Replacements(owner)
        for node in [node for node in owner.nodes if onnx_op(node) == "LSTM" and node not in kept]:
            weights = [stored_rows(node.inputs[index]) for index in WEIGHTS]
            rows = [one for one in weights if one is not None]
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
            idle += [made for one in rows for made in reversed(one.nodes)]
            changed += 1
        replacements.place()
    for owner in reversed(list(walk.graphs(graph))) if idle else ():
        remove_unused(owner, idle)  # nodes around a body outlive it there
    if changed:
        import_domains(graph, {RUNTIME_DOMAIN})
    return changed


def _why_not(node: gs.Node, rows: list[StoredRows], least: int) -> str:
    """Return why an LSTM stays as it is, empty if it need not."""
    if len(rows) < len(WEIGHTS):
        return "its weights are not stored integers"
    if any(one.format != "int8" or one.parameters[0].shape[2] > 1 or one.parameters[1].any() for one in rows):
        return "its weights are not int8, with a scale for each row and no zero points"
    if not dtypes.is_type(node.inputs[0], dtypes.FLOAT) or node.attrs.get("layout", 0):
        return "its inputs are not float32, or batches come first"
    if sum(one.integers.size for one in rows) < least:
        return "it is small"
    return ""


def _dynamic(
    node: gs.Node, rows: list[StoredRows], names: walk.Names, stored: dict[tuple[int, str], gs.Constant]
) -> gs.Node:
    """Return a DynamicQuantizeLSTM of the inputs of an LSTM, without outputs."""

    def _constant(one: StoredRows, suffix: str, values: AnyArray) -> gs.Constant:
        key = id(one.source), suffix
        if key not in stored:
            name = one.source.name.removesuffix("_quantized")
            stored[key] = gs.Constant(names.derive(name, suffix), np.ascontiguousarray(values))
        return stored[key]

    inputs = [*node.inputs, *(gs.Variable.empty() for _ in range(_INPUTS - len(node.inputs)))]
    for index, one in zip(WEIGHTS, rows, strict=True):
        scale = one.parameters[0][..., 0]
        integers = one.integers.view(np.uint8) ^ np.uint8(_MIDDLE)  # adds 128
        inputs[index] = _constant(one, "turned", integers.transpose(0, 2, 1))
        zero_points = np.full(scale.shape, _MIDDLE, np.uint8)
        inputs += [_constant(one, "scales", scale), _constant(one, "zero_points", zero_points)]
    attrs = {name: value for name, value in node.attrs.items() if name != "layout"}
    attrs.setdefault("hidden_size", rows[1].integers.shape[2])
    return gs.Node(OPERATOR, node.name, attrs, inputs, [], RUNTIME_DOMAIN)
