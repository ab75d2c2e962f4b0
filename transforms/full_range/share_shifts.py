"""A quantized model on the full range of int8, and a float model with the same shifted tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from ops.formats import Format
from transforms.full_range.recorded_shifts import shifts_within
from transforms.full_range.shift_tensors import shift_tensors
from transforms.graph import dtypes, walk
from transforms.graph.constants import Constants, load
from transforms.graph.lazy_values import constant
from transforms.graph.rewire import Insertions
from transforms.layers.match_layers import match_layers
from transforms.model.copy_graph import copy_graph

_LEAST_OPSET = 11  # bounds of a Clip are inputs


def on_full_range(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    formats: Sequence[Format] = (),
    *,
    padded_for: Iterable[Feed] | None = None,
) -> tuple[gs.Graph, gs.Graph, int]:
    """Return copies of both models with shifted tensors, and their number; the models themselves if none.

    :func:`transforms.full_range.shift_tensors.shift_tensors` shifts tensors of the quantized model. Layers
    are fitted to tensors of the float model, so these are shifted by the same amount: a bias absorbs the
    shift, the Relu becomes a Clip, and an Add after it undoes the shift. With samples in ``padded_for``,
    layers that pad get a Pad, and inputs that are never negative in them a Sub.
    """
    computed = {tensor.name: tensor for node in float_graph.nodes for tensor in node.outputs}
    outputs = walk.outputs(float_graph)
    targets = {
        name: target
        for name, target in _targets(float_graph, quantized_graph, formats).items()
        if target in computed
        and id(computed[target]) not in outputs
        and _can_shift(float_graph, computed[target])
    }
    inputs = _never_negative(quantized_graph, padded_for) if padded_for is not None else set()
    shifted = copy_graph(quantized_graph)
    shifts = shift_tensors(shifted, targets.keys() | inputs, padded=padded_for is not None)
    if not shifts:
        return float_graph, quantized_graph, 0
    reference = copy_graph(float_graph)
    _shift_reference(reference, {targets[name]: shift for name, shift in shifts.items() if name in targets})
    return reference, shifted, len(shifts)


def shift_alike(float_graph: gs.Graph, quantized_graph: gs.Graph, formats: Sequence[Format] = ()) -> gs.Graph:
    """Return a copy of a float model with tensors shifted as the quantized model records; itself if none are.

    Raises ValueError if a layer is not followed by the Relu or Clip that was shifted with it.
    """
    shifts = shifts_within(quantized_graph)
    if not shifts:
        return float_graph
    computed = {tensor.name: tensor for node in float_graph.nodes for tensor in node.outputs}
    targets = _targets(float_graph, quantized_graph, formats)
    wanted = {target: shifts[name] for name, target in targets.items() if name in shifts}
    for target in wanted:
        if not _can_shift(float_graph, computed[target]):
            raise ValueError(f"'{target}' is shifted, and the float model has no Relu or Clip alone after it")
    reference = copy_graph(float_graph)
    _shift_reference(reference, wanted)
    return reference


def _targets(float_graph: gs.Graph, quantized_graph: gs.Graph, formats: Sequence[Format]) -> dict[str, str]:
    """Return the float tensor to which each layer of the quantized model is fitted, by its output."""
    layers = match_layers(float_graph, quantized_graph, formats)[0]
    return {str(user.node.outputs[0].name): user.target for layer in layers for user in layer.users}


def _never_negative(graph: gs.Graph, feeds: Iterable[Feed]) -> set[str]:
    """Return the float32 inputs of a model without a negative number in any sample."""
    names = {str(tensor.name) for tensor in graph.inputs if dtypes.is_type(tensor, dtypes.FLOAT)}
    seen = False
    for feed in feeds:
        seen = True
        names = {name for name in names if name in feed and not np.any(np.less(feed[name], 0))}
        if not names:
            break
    return names if seen else set()


def _can_shift(graph: gs.Graph, tensor: gs.Tensor) -> bool:
    """Return whether a Conv or Gemm with a stored bias computes a tensor that only a Relu or Clip reads."""
    uses, maker = walk.uses(tensor), walk.producer(tensor)
    if graph.opset < _LEAST_OPSET or len(uses) != 1 or uses[0][0].op not in ("Relu", "Clip") or uses[0][1]:
        return False
    if maker is None or maker.op not in ("Conv", "Gemm") or len(maker.inputs) < 3:
        return False
    return isinstance(maker.inputs[2], gs.Constant) and load(maker.inputs[2]).dtype == np.float32


def _shift_reference(graph: gs.Graph, shifts: Mapping[str, float]) -> None:
    """Shift outputs of layers in place, and rectify at the shifted zero."""
    names, constants, insertions = walk.Names(graph), Constants(graph), Insertions()
    for maker in graph.nodes:
        shift = np.float32(shifts.get(maker.outputs[0].name, 0)) if maker.outputs else np.float32(0)
        if not shift:
            continue
        bias, (rectifier, _) = maker.inputs[2], walk.uses(maker.outputs[0])[0]
        maker.inputs[2] = constant(names.derive(bias.name, "shifted"), load(bias) - shift)
        rectified = rectifier.outputs[0]
        shifted = _rectify(rectifier, shift, names, constants)
        back = constant(names.derive(rectified.name, "shift"), np.asarray(shift, np.float32))
        add = gs.Node(
            "Add", names.derive(rectifier.name, "back"), inputs=[shifted, back], outputs=[rectified]
        )
        insertions.add(graph, rectifier, [add])
    insertions.place(graph)


def _rectify(rectifier: gs.Node, shift: np.float32, names: walk.Names, constants: Constants) -> gs.Variable:
    """Make a Relu or Clip clip at a shifted zero; return its output."""
    ends = [constants.scalar(end) for end in rectifier.inputs[1:3] if not end.is_empty()]
    top = np.float32(ends[1]) if len(ends) > 1 and ends[1] is not None else np.float32(np.inf)
    rectified = rectifier.outputs[0]
    low = constant(names.derive(rectified.name, "least"), np.asarray(-shift, np.float32))
    high = constant(names.derive(rectified.name, "most"), np.asarray(top - shift, np.float32))
    clipped = dtypes.variable(names.derive(rectified.name, "shifted"), dtypes.FLOAT, rectified)
    rectifier.op, rectifier.attrs = "Clip", {}
    rectifier.inputs = [rectifier.inputs[0], low, high]
    rectifier.outputs = [clipped]
    return clipped
