"""Attach and resolve the functions that decode packed weights.

A saved model gets the functions; in a model that is read, their calls become weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray

from ops.formats import Format
from transforms.features.packed.code_layout import BlockLayout, Codes, join_planes, plane_bytes
from transforms.features.packed.codes import Encoded, codes_of, decode
from transforms.features.packed.lanes import form_of, input_shapes, shift_width
from transforms.features.packed.turns import drop_turns, is_turn_op, make_turn_op, stored_names, take_turns
from transforms.features.packed.unpackers import (
    attribute_names,
    call_attributes,
    form_of_op,
    format_of_op,
    format_of_own,
    group_of,
    input_names,
    make_own,
)
from transforms.functions import DOMAIN
from transforms.graph.lazy_values import LARGE, Computed, Weight, load_values
from transforms.graph.proto_graphs import each_graph, each_node, read_names

_LEAST_IR_VERSION = 8
"""First IR version with functions in a model."""

_Decoders = dict[str, tuple[Format, bool]]


def attach_packed(model: onnx.ModelProto) -> None:
    """Attach the missing functions that a model calls, in place; large weights are decoded in turns."""
    if all(entry.domain != DOMAIN for entry in model.opset_import):
        return
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    calls = [node for node in model.graph.node if node.domain == DOMAIN]
    take_turns(model.graph, [node for node in calls if format_of_op(node.op_type)])
    attached = {function.name for function in model.functions if function.domain == DOMAIN}
    called = {node.op_type for node in each_node(model.graph) if node.domain == DOMAIN}
    for op in sorted(called - attached):
        if format_of_op(op):
            model.functions.append(make_own(op, opset))
        elif is_turn_op(op):
            model.functions.append(make_turn_op(op, opset))
    model.ir_version = max(model.ir_version, _LEAST_IR_VERSION)


def unpack_calls(light: onnx.ModelProto, weights: dict[str, Weight]) -> int:
    """Replace calls of our decoding functions by the decoded weights, in place; return how many.

    ``weights`` are inputs of the light model; large results are added, decoded when needed.
    Calls whose inputs are computed, or do not fit their attributes, stay calls of a local function.
    """
    decoders = {
        function.name: decoder for function in light.functions if (decoder := format_of_own(function))
    }
    if not decoders:
        return 0
    drop_turns(light)
    count = _in_graph(light.graph, decoders, weights)
    for graph in list(each_graph(light.graph))[1:]:
        count += _in_graph(graph, decoders, {}, least=math.inf)
    left = {node.op_type for node in each_node(light.graph) if node.domain == DOMAIN}
    for function in [local for local in light.functions if local.domain == DOMAIN and local.name not in left]:
        light.functions.remove(function)
    if not left:
        imports = [entry for entry in light.opset_import if entry.domain != DOMAIN]
        del light.opset_import[:]
        light.opset_import.extend(imports)
    return count


def calls_in(model: onnx.ModelProto) -> Iterator[tuple[Format, int, set[str]]]:
    """Yield the format of each call that decodes a weight, its element count, and the names it reads."""
    waiting = stored_names(model)
    for node in each_node(model.graph):
        named_format = format_of_op(node.op_type) if node.domain == DOMAIN else None
        if named_format is not None:
            shape = next(
                (list(attribute.ints) for attribute in node.attribute if attribute.name == "shape"), []
            )
            yield named_format[0], math.prod(shape), {waiting.get(name, name) for name in node.input}


def _in_graph(
    graph: onnx.GraphProto, decoders: _Decoders, weights: dict[str, Weight], *, least: float = LARGE
) -> int:
    """Replace the calls in one graph; results of at least ``least`` bytes become inputs, in ``weights``."""
    calls = [node for node in graph.node if node.domain == DOMAIN and node.op_type in decoders]
    stored = {tensor.name: tensor for tensor in graph.initializer}
    results = {
        node.output[0]: result for node in calls if (result := _result(node, decoders, stored, weights))
    }
    if not results:
        return 0
    gone = [node for node in calls if node.output[0] in results]
    remaining = [node for node in graph.node if not (node.domain == DOMAIN and node.output[0] in results)]
    inputs = {name for node in gone for name in node.input}
    del graph.node[:]
    graph.node.extend(remaining)
    _drop_unused(graph, inputs, weights)
    infos = [value for value in graph.value_info if value.name not in results]
    del graph.value_info[:]
    graph.value_info.extend(infos)
    for name, values in results.items():
        _store(graph, name, values, weights if values.nbytes >= least else None)
    return len(results)


def _result(
    node: onnx.NodeProto, decoders: _Decoders, stored: dict[str, onnx.TensorProto], weights: dict[str, Weight]
) -> Weight | None:
    """Return the lazily decoded weight of a call, or None unless all inputs are stored and consistent."""
    fmt, patched = decoders[node.op_type]
    names = input_names(fmt, patched=patched)
    if len(node.input) != len(names) or not all(
        operand in stored or operand in weights for operand in node.input
    ):
        return None
    arrays = {
        name: weights[operand] if operand in weights else onnx.numpy_helper.to_array(stored[operand])
        for name, operand in zip(names, node.input, strict=True)
    }
    layout = _layout(fmt, {attribute.name: list(attribute.ints) for attribute in node.attribute})
    codes = codes_of(fmt)
    if layout is None or codes is None or not _fit(arrays, codes, layout):
        return None
    form = form_of_op(node.op_type)
    if form and not (form == form_of(layout) and _have_shapes(arrays, input_shapes(codes, layout))):
        return None
    return Computed(layout.shape, np.float32, lambda: _decode(arrays, codes, layout))


def _layout(fmt: Format, attributes: Mapping[str, Sequence[int]]) -> BlockLayout | None:
    """Return the layout given by attributes of a call, or None if they contradict each other."""
    if set(attributes) != set(attribute_names(fmt)) or len(attributes["cut"]) != 3:
        return None
    shape, (outer, length, inner) = tuple(attributes["shape"]), attributes["cut"]
    if min((*shape, outer, length, inner)) < 1 or math.prod(shape) != outer * length * inner:
        return None
    layout = BlockLayout(shape, (outer, length, inner), fmt.block, group_of(fmt))
    return layout if call_attributes(fmt, layout) == attributes else None


def _fit(inputs: Mapping[str, Weight], codes: Codes, layout: BlockLayout) -> bool:
    """Return whether inputs of a call have the sizes and types given by its attributes."""
    sizes = [*plane_bytes(layout.size, codes.bits), layout.count(layout.block)]
    if codes.shift_bits:
        sizes += plane_bytes(layout.count(layout.group), shift_width(codes))
    arrays = list(inputs.values())
    counts = [math.prod(array.shape) for array in arrays[: len(sizes)] if array.dtype == np.uint8]
    if counts != sizes or len(arrays) == len(sizes):
        return counts == sizes
    places, patches = arrays[len(sizes) :]
    types = (places.dtype, patches.dtype) == (layout.place_type, np.float32)
    if not types or places.shape != patches.shape or len(places.shape) != 1:
        return False
    inside = load_values(places)
    return bool(((inside >= 0) & (inside < layout.size)).all())


def _have_shapes(inputs: Mapping[str, Weight], shapes: Sequence[tuple[int, ...]] | None) -> bool:
    """Return whether planes, exponents and shifts have the shapes that a form's function reads."""
    actual = [tuple(array.shape) for array in inputs.values()]
    return shapes is not None and actual[: len(shapes)] == list(shapes)


def _decode(inputs: Mapping[str, Weight], codes: Codes, layout: BlockLayout) -> NDArray[np.float32]:
    arrays = {name: load_values(values) for name, values in inputs.items()}
    planes = [array.reshape(-1) for name, array in arrays.items() if name.startswith("codes")]
    shifts = np.empty(0, np.uint8)
    if codes.shift_bits:
        count = layout.count(layout.group)
        shifts = join_planes([arrays["shifts"].reshape(-1)], shift_width(codes), count)
    numbers = join_planes(planes, codes.bits, layout.size)
    encoded = Encoded(numbers, arrays["exponents"].reshape(-1), shifts, np.empty(0, np.int64))
    values = decode(encoded, codes, layout).reshape(-1)
    if "places" in arrays:
        values[arrays["places"]] = arrays["others"]
    return values.reshape(layout.shape)


def _drop_unused(graph: onnx.GraphProto, names: set[str], weights: dict[str, Weight]) -> None:
    """Remove inputs of calls that nothing else reads; the decoded weights keep their arrays alive."""
    gone = names - read_names(graph)
    remaining = [tensor for tensor in graph.initializer if tensor.name not in gone]
    inputs = [value for value in graph.input if value.name not in gone or value.name not in weights]
    for field, values in ((graph.initializer, remaining), (graph.input, inputs)):
        del field[:]
        field.extend(values)
    for name in gone & weights.keys():
        del weights[name]


def _store(graph: onnx.GraphProto, name: str, values: Weight, weights: dict[str, Weight] | None) -> None:
    """Store a weight under the name of a call's output, in ``weights`` if given, else in the graph."""
    if weights is None:
        graph.initializer.append(onnx.numpy_helper.from_array(load_values(values), name))
        return
    weights[name] = values
    shape = list(values.shape)
    graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
