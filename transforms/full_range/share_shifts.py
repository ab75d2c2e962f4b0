"""A quantized model on all codes of int8, and a float model that makes the same shifted tensors."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from ops.formats import Format
from transforms.all_codes.recorded_shifts import shifts_within
from transforms.all_codes.use_all_codes import use_all_codes
from transforms.graph import dtypes, walk
from transforms.graph.constants import Constants, load
from transforms.graph.lazy_values import constant
from transforms.graph.rewire import Insertions
from transforms.layers.match_layers import match_layers
from transforms.layers.matched_layer import MatchedLayer
from transforms.model.copy_graph import copy_graph

_LEAST_OPSET = 11  # bounds of a Clip are inputs


def on_all_codes(
    float_graph: gs.Graph,
    quantized_graph: gs.Graph,
    formats: Sequence[Format] = (),
    *,
    padded_for: Iterable[Feed] | None = None,
) -> tuple[gs.Graph, gs.Graph, int]:
    """Return copies of both models with shifted tensors, and how many; the models themselves if none.

    :func:`transforms.all_codes.use_all_codes.use_all_codes` shifts tensors of the quantized model. Layers are
    fitted to tensors of the float model, so that those are shifted alike: a bias takes the shift, the Relu is
    a Clip, and an Add after it takes the shift back. With samples in ``padded_for``, layers that pad get a
    Pad, and inputs that are never negative in them a Sub.
    """
    targets = _targets(float_graph, quantized_graph, formats)
    padded = padded_for is not None
    inputs = _never_negative(quantized_graph, padded_for) if padded_for is not None else set()
    shifted = copy_graph(quantized_graph)
    shifts = use_all_codes(shifted, targets.keys(), inputs, padded=padded) if targets or inputs else {}
    if not shifts:
        return float_graph, quantized_graph, 0
    reference = copy_graph(float_graph)
    _shift_reference(reference, {targets[name]: shift for name, shift in shifts.items() if name in targets})
    return reference, shifted, len(shifts)


def shift_alike(float_graph: gs.Graph, quantized_graph: gs.Graph, formats: Sequence[Format] = ()) -> gs.Graph:
    """Return a copy of a float model with tensors shifted as the quantized model records; itself if none are.

    Raises ValueError if a layer is not followed by what was shifted with it.
    """
    shifts = shifts_within(quantized_graph)
    if not shifts:
        return float_graph
    wanted, linear = dict[str, float](), set[str]()
    made = {tensor.name: tensor for node in float_graph.nodes for tensor in node.outputs}
    for layer in _users(float_graph, quantized_graph, formats):
        shift = shifts.get(layer.node.outputs[0].name)
        if shift is None:
            continue
        wanted[layer.target] = shift
        is_rectified = _is_lowest(layer.node.outputs[0], shift)
        if not is_rectified:
            linear.add(layer.target)
        fits = _is_open if is_rectified else _has_bias
        if float_graph.opset < _LEAST_OPSET or not fits(made[layer.target]):
            missing = "Relu or Clip alone after it" if is_rectified else "layer with a bias there"
            raise ValueError(f"'{layer.target}' is shifted, and the float model has no {missing}")
    reference = copy_graph(float_graph)
    _shift_reference(reference, wanted, linear)
    return reference


def _is_lowest(tensor: gs.Tensor, shift: float) -> bool:
    """Return whether the lowest code stands for the zero of a shifted tensor, as after a Relu."""
    return any(np.isclose(128 * load(node.inputs[1]), shift, rtol=1e-5).all() for node in tensor.outputs)


def _users(float_graph: gs.Graph, quantized_graph: gs.Graph, formats: Sequence[Format]) -> list[MatchedLayer]:
    layers = match_layers(float_graph, quantized_graph, formats)[0]
    return [user for layer in layers for user in layer.users]


def _never_negative(graph: gs.Graph, feeds: Iterable[Feed]) -> set[str]:
    """Return the float32 inputs of a model without a number below 0 in any sample."""
    names = {str(tensor.name) for tensor in graph.inputs if dtypes.is_type(tensor, dtypes.FLOAT)}
    seen = False
    for feed in feeds:
        seen = True
        names = {name for name in names if name in feed and not np.any(np.less(feed[name], 0))}
        if not names:
            break
    return names if seen else set()


def _targets(float_graph: gs.Graph, quantized_graph: gs.Graph, formats: Sequence[Format]) -> dict[str, str]:
    """Return float tensors that can be shifted, by the output of the quantized layer fitted to each."""
    if float_graph.opset < _LEAST_OPSET:
        return {}
    made = {tensor.name: tensor for node in float_graph.nodes for tensor in node.outputs}
    outputs = walk.outputs(float_graph)
    return {
        layer.node.outputs[0].name: layer.target
        for layer in _users(float_graph, quantized_graph, formats)
        if layer.target in made and id(made[layer.target]) not in outputs and _is_open(made[layer.target])
    }


def _is_open(tensor: gs.Tensor) -> bool:
    """Return whether a Conv or Gemm with a stored bias makes a tensor, and a Relu or Clip alone reads it."""
    uses = walk.uses(tensor)
    return _has_bias(tensor) and len(uses) == 1 and uses[0][0].op in ("Relu", "Clip") and uses[0][1] == 0


def _has_bias(tensor: gs.Tensor) -> bool:
    """Return whether a Conv or Gemm with a stored bias makes a tensor."""
    maker = walk.producer(tensor)
    if maker is None or maker.op not in ("Conv", "Gemm") or len(maker.inputs) < 3:
        return False
    return isinstance(maker.inputs[2], gs.Constant) and load(maker.inputs[2]).dtype == np.float32


def _shift_reference(
    graph: gs.Graph, shifts: Mapping[str, float], linear: Container[str] = frozenset()
) -> None:
    """Shift outputs of layers in place, and rectify from the shifted zero unless they are ``linear``."""
    names, constants, insertions = walk.Names(graph), Constants(graph), Insertions()
    for maker in graph.nodes:
        shift = np.float32(shifts.get(maker.outputs[0].name, 0)) if maker.outputs else np.float32(0)
        if not shift:
            continue
        bias = maker.inputs[2]
        maker.inputs[2] = constant(names.derive(bias.name, "shifted"), load(bias) - shift)
        if maker.outputs[0].name in linear:
            shifted, node = maker.outputs[0], maker
            whole = dtypes.variable(names.derive(shifted.name, "back"), dtypes.FLOAT, shifted)
            walk.redirect(shifted, whole)
        else:
            node = walk.uses(maker.outputs[0])[0][0]
            whole = node.outputs[0]
            shifted = _rectify(node, shift, names, constants)
        back = constant(names.derive(whole.name, "shift"), np.asarray(shift, np.float32))
        add = gs.Node("Add", names.derive(node.name, "back"), inputs=[shifted, back], outputs=[whole])
        insertions.add(graph, node, [add])
    insertions.place(graph)


def _rectify(rectifier: gs.Node, shift: np.float32, names: walk.Names, constants: Constants) -> gs.Variable:
    """Let a Relu or Clip cut off what is below a shifted zero; return what it makes."""
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
