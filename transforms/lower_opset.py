"""Lowering the version of the standard operator set without changing the meaning of a node.

A definition that only gained element types, or attributes whose defaults preserve the old meaning, includes
the older one. A node that uses only this common part means the same in the older opset.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from transforms.convert_opset import import_standard
from transforms.graph import dtypes, walk
from transforms.graph.constants import Constants
from transforms.graph.rewire import onnx_op
from transforms.graph.schemas import changes, definition
from transforms.graph.selection import label_of
from transforms.model import detached_weights, graph_proto
from transforms.model.read_model import ModelError
from transforms.opset.raises import ADDED, REDUCTIONS
from transforms.runtime.compare_runs import compare_runs

log = logging.getLogger(__name__)

_LEAST = 13
"""The oldest opset to which a model can be lowered."""

_AXES_AS_INPUT = frozenset((f"Reduce{name}", 18) for name in REDUCTIONS)
_SPLIT = ("Split", 18)

_NEW_VALUES: Mapping[tuple[str, str], Mapping[str, int]] = {
    ("Pad", "mode"): {"wrap": 19},
    ("Resize", "coordinate_transformation_mode"): {"half_pixel_symmetric": 19},
    ("ScatterElements", "reduction"): {"max": 18, "min": 18},
    ("ScatterND", "reduction"): {"max": 18, "min": 18},
}
"""Values of attributes that an opset added without changing the signature."""

Attributes = dict[str, Any]


def lower_opset(graph: gs.Graph, version: int) -> int:
    """Lower the graph to an opset; return 1 if it changed, 0 if its opset is not higher.

    A node is kept if the older definition of its operator gives it the same meaning: newer attributes with
    the old meaning are removed, and axes of reductions and equal parts of a Split become attributes again.
    Newer operators are not replaced. Raises ModelError naming operator, node and opset for any other node,
    with the graph unchanged, for an opset below 13, and if the lowered model differs from the original on
    random input.
    """
    walk.check_graph(graph)
    if graph.opset <= version:
        return 0
    before = graph.opset
    where = f"the model cannot be lowered from opset {before} to {version}"
    if version < _LEAST:
        raise ModelError(f"{where}: {_LEAST} is the least")
    constants, lowered = Constants(graph), []
    for node in filter(onnx_op, walk.nodes(graph)):
        try:
            lowered.append((node, *_lowered(node, before, version, constants)))
        except _CannotLowerError as error:
            raise ModelError(f"{where}: {node.op} '{label_of(node)}': {error}") from None
    original, weights = _light(graph)
    for node, attributes, count in lowered:
        node.attrs, node.inputs = attributes, node.inputs[:count]
    import_standard(graph, version)
    graph.ir_version = onnx.helper.find_min_ir_version_for(graph.import_domains, ignore_unknown=True)
    try:
        compare_runs(original, _light(graph)[0], weights, change="lowered")
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error
    log.debug("opset %d -> %d", before, version)
    return 1


def _light(graph: gs.Graph) -> tuple[onnx.ModelProto, dict]:
    light, weights = graph_proto.export_light(graph)
    return detached_weights.as_inputs(light, weights), weights


class _CannotLowerError(ValueError):
    """A node has no equivalent in the older opset."""


def _lowered(node: gs.Node, before: int, after: int, constants: Constants) -> tuple[Attributes, int]:
    """Return the attributes of a node in an older opset, and how many of its inputs it keeps.

    Raises _CannotLowerError with the reason, without the name of the node, if it has no equivalent there.
    """
    old, new = definition(node.op, after), definition(node.op, before)
    if new is None:
        raise _CannotLowerError(f"it is unknown in opset {before}")
    if old is None:
        first = next(opset for opset in range(1, before + 1) if definition(node.op, opset) is not None)
        raise _CannotLowerError(f"it exists from opset {first} on")
    attributes, count = dict(node.attrs), len(node.inputs)
    if old.since_version == new.since_version:
        return attributes, count
    for opset in changes(node.op, after, before):
        if (node.op, opset) in _AXES_AS_INPUT:
            attributes, count = _with_axes(node, attributes, constants), 1
        elif (node.op, opset) == _SPLIT:
            attributes = _without_count(node, attributes)
        elif (node.op, opset) not in ADDED:
            raise _CannotLowerError(f"opset {opset} defines it anew")
    attributes = _of_old(attributes, old, new)
    for name, value in attributes.items():
        since = _NEW_VALUES.get((node.op, name), {}).get(str(value), 0)
        if since > after:
            raise _CannotLowerError(f"its attribute {name} = {value!r} needs opset {since}")
    _refuse_inputs(node.inputs[:count], old)
    _refuse_types([*zip(node.inputs[:count], old.inputs, strict=False)], after)
    _refuse_types([*zip(node.outputs, old.outputs, strict=False)], after)
    return attributes, count


def _with_axes(node: gs.Node, attributes: Attributes, constants: Constants) -> Attributes:
    """Return the attributes of a reduction with its axes as an attribute."""
    left_out = len(node.inputs) < 2 or node.inputs[1].is_empty()
    axes = () if left_out else constants.integers(node.inputs[1])
    if axes is None:
        raise _CannotLowerError("its axes are computed, before opset 18 they are an attribute")
    rest = {name: value for name, value in attributes.items() if name != "noop_with_empty_axes"}
    if axes:
        return {**rest, "axes": [int(axis) for axis in axes]}
    if attributes.get("noop_with_empty_axes"):
        raise _CannotLowerError("it reduces no axis, which needs opset 18")
    return rest


def _without_count(node: gs.Node, attributes: Attributes) -> Attributes:
    """Return the attributes of a Split into equal parts without their number; one with sizes is unchanged."""
    if "num_outputs" not in attributes:
        return attributes
    shape, axis = node.inputs[0].shape, int(attributes.get("axis", 0))
    size = None if shape is None or not -len(shape) <= axis < len(shape) else shape[axis]
    if not isinstance(size, int) or size % len(node.outputs):
        raise _CannotLowerError("its parts may differ in size, which needs opset 18")
    return {name: value for name, value in attributes.items() if name != "num_outputs"}


def _of_old(attributes: Attributes, old: onnx.defs.OpSchema, new: onnx.defs.OpSchema) -> Attributes:
    """Remove new attributes with values that preserve the old meaning; refuse other values."""
    older: Attributes = {}
    for name, value in attributes.items():
        if name in old.attributes:
            older[name] = value
            continue
        declared = new.attributes.get(name)
        default = (
            onnx.helper.get_attribute_value(declared.default_value)
            if declared and not declared.required
            else None
        )
        plain = default.decode() if isinstance(default, bytes) else default
        comparable = plain is not None and not isinstance(value, gs.Tensor | gs.Graph)
        if not comparable or not np.array_equal(np.asarray(value), np.asarray(plain)):
            raise _CannotLowerError(f"its attribute {name} = {value!r} is newer")
    return older


def _refuse_inputs(inputs: list[gs.Tensor], old: onnx.defs.OpSchema) -> None:
    filled = [index for index, tensor in enumerate(inputs) if not tensor.is_empty()]
    if filled and filled[-1] >= old.max_input:
        raise _CannotLowerError(f"its input {filled[-1]} is newer")
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    missing = [i for i, parameter in enumerate(old.inputs) if parameter.option == single and i not in filled]
    if missing:
        raise _CannotLowerError(f"its input {missing[0]} could not be left out")


def _refuse_types(pairs: list[tuple[gs.Tensor, Any]], after: int) -> None:
    for tensor, parameter in pairs:
        element = None if tensor.is_empty() else dtypes.element_type(tensor)
        if element is None:
            continue
        kind = onnx.TensorProto.DataType.Name(element).lower()
        if f"tensor({kind})" not in parameter.types:
            raise _CannotLowerError(f"it does not take {kind} in opset {after}")
