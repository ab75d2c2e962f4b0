"""Attach our operators as ONNX functions of standard operators to the models that use them.

A runtime without our library inlines the functions; with our library it uses the native kernels, from the
same file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import starmap
from types import MappingProxyType
from typing import NamedTuple

import onnx
import onnx.parser

from ops.formats import ATTRIBUTES, BFP, LINEAR, MX, format_of
from ops.registration import AMD_DOMAIN, DOMAIN
from transforms.graph.proto_graphs import bodies_in
from transforms.graph.qdq import EXTENDED_DEQUANTIZE

FIRST_OPSET = 13
GENERIC_OPSET = 15
"""From here on one function serves all types, thanks to CastLike."""

_AXES_AS_INPUT = 18
_MARK = "onnx-narrow: a native operator in standard operators"


class Twin(NamedTuple):
    """An operator of ours: body, inputs, output, attributes with defaults, the input that sets the type."""

    body: Callable[[], str]
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, int | str]
    typing_input: int | None


def _block_attributes(op: str) -> dict[str, int | str]:
    return {**{key: attribute.default for key, attribute in ATTRIBUTES[op].items()}, "axis": 1}


def _bfp() -> str:
    from transforms.functions.block_bodies import bfp

    return bfp()


def _mx() -> str:
    from transforms.functions.block_bodies import mx

    return mx()


def _quantize() -> str:
    from transforms.functions.linear import quantize

    return quantize()


def _dequantize() -> str:
    from transforms.functions.linear import dequantize

    return dequantize()


TWINS: Mapping[str, Twin] = MappingProxyType(
    {
        BFP: Twin(_bfp, ("X",), "Y", _block_attributes(BFP), 0),
        MX: Twin(_mx, ("X",), "Y", _block_attributes(MX), 0),
        LINEAR: Twin(_quantize, ("x", "scale", "zero_point"), "y", {"axis": 0}, 2),
        EXTENDED_DEQUANTIZE: Twin(_dequantize, ("y", "scale", "zero_point"), "x", {"axis": 0}, None),
    }
)


def make_function(
    op: str, domain: str, opset: int, output_type: int = onnx.TensorProto.FLOAT
) -> onnx.FunctionProto:
    """Return the function of one of our operators, for an opset of ONNX from 13 on.

    Below opset 15 it takes tensors of only one type, ``output_type``.
    """
    twin = TWINS[op]
    declared = ", ".join(
        f'{key}: string = "{default}"' if isinstance(default, str) else f"{key}: int = {default}"
        for key, default in twin.attributes.items()
    )
    function = onnx.parser.parse_function(
        f'<domain: "{domain}", opset_import: ["": {opset}]> {op} <{declared}> ({", ".join(twin.inputs)}) => '
        f"({twin.output}) {{ {_for_opset(twin.body(), opset, output_type)} }}"
    )
    function.doc_string = _MARK
    return function


def is_own(function: onnx.FunctionProto) -> bool:
    """Return whether a function was made here, so that readers treat its calls as the operator itself."""
    return function.domain in (DOMAIN, AMD_DOMAIN) and function.name in TWINS and function.doc_string == _MARK


def drop_own(model: onnx.ModelProto) -> None:
    """Remove the functions made here from a model, in place."""
    foreign = [function for function in model.functions if not is_own(function)]
    if len(foreign) < len(model.functions):
        del model.functions[:]
        model.functions.extend(foreign)


def _for_opset(text: str, opset: int, output_type: int) -> str:
    """Return a body rewritten for an opset that defines some operators differently."""
    for axis, name in enumerate(("BLOCK", "GROUP")):
        new = rf"ReduceMax <keepdims = 1> (\1, {name.lower()}_axis)"
        old = rf"ReduceMax <keepdims = 1, axes = [{axis}]> (\1)"
        text = re.sub(rf"MAX_OF_{name}S\((\w+)\)", new if opset >= _AXES_AS_INPUT else old, text)
    new, old = r"CastLike(\1, \2)", rf"Cast <to = {output_type}> (\1)"
    return re.sub(r"CAST_LIKE\((\w+), (\w+)\)", new if opset >= GENERIC_OPSET else old, text)


_LEAST_IR_VERSION = 8
"""First IR version with functions in a model."""

_Calls = list[tuple[onnx.NodeProto, int]]  # nodes with the element type that types them, 0 if unknown


def attach_functions(model: onnx.ModelProto) -> int:
    """Attach the functions of our operators to a model, in place; return how many it has.

    Nodes get the attributes that they leave to defaults, which not every reader of functions applies. An
    operator gets no function, and so needs the library, if the model's opset is below 13, or is 13 or 14 (no
    CastLike) and its tensors do not have one known type; if a node has invalid attributes; and if the model
    already has a function with that name.
    """
    drop_own(model)
    taken = {(function.domain, function.name) for function in model.functions}
    opset = max(
        (imported.version for imported in model.opset_import if imported.domain in ("", "ai.onnx")), default=0
    )
    for (domain, op), calls in _calls(model.graph).items():
        types = {kind for _, kind in calls} if TWINS[op].typing_input is not None else {0}
        is_generic = opset >= GENERIC_OPSET or TWINS[op].typing_input is None
        if opset < FIRST_OPSET or (domain, op) in taken or not all(_is_legal(node) for node, _ in calls):
            continue
        if is_generic or (len(types) == 1 and 0 not in types):
            for node, _ in calls:
                named = {attribute.name for attribute in node.attribute}
                defaults = {key: value for key, value in TWINS[op].attributes.items() if key not in named}
                node.attribute.extend(starmap(onnx.helper.make_attribute, defaults.items()))
            model.functions.append(make_function(op, domain, opset, min(types)))
    if model.functions:
        model.ir_version = max(model.ir_version, _LEAST_IR_VERSION)
    return sum(1 for function in model.functions if (function.domain, function.name) not in taken)


def has_all_functions(model: onnx.ModelProto) -> bool:
    """Return whether a model has a function for each node in our domains."""
    defined = {(function.domain, function.name) for function in model.functions}
    called = {(node.domain, node.op_type) for node, _ in _own_nodes(model.graph, {})}
    return called <= defined


def _calls(graph: onnx.GraphProto) -> dict[tuple[str, str], _Calls]:
    """Return the nodes of our operators in a graph and its bodies, by domain and operator."""
    calls: dict[tuple[str, str], _Calls] = {}
    for node, types in _own_nodes(graph, {}):
        if node.op_type in TWINS:
            place = TWINS[node.op_type].typing_input or 0
            kind = types.get(node.input[place], 0) if place < len(node.input) else 0
            calls.setdefault((node.domain, node.op_type), []).append((node, kind))
    return calls


def _own_nodes(
    graph: onnx.GraphProto, outer: Mapping[str, int]
) -> Iterator[tuple[onnx.NodeProto, Mapping[str, int]]]:
    """Yield the nodes in our domains of a graph and its bodies, with the element types known there.

    Types are by name, and only read if there is a node to yield, or a body: most models have none.
    """
    types: Mapping[str, int] | None = None
    for node in graph.node:
        bodies = [body for attribute in node.attribute for body in bodies_in(attribute)]
        if node.domain not in (DOMAIN, AMD_DOMAIN) and not bodies:
            continue
        if types is None:
            types = _types_in(graph, outer)
        if node.domain in (DOMAIN, AMD_DOMAIN):
            yield node, types
        for body in bodies:
            yield from _own_nodes(body, types)


def _types_in(graph: onnx.GraphProto, outer: Mapping[str, int]) -> dict[str, int]:
    values = (*graph.input, *graph.output, *graph.value_info)
    types = {**outer, **{value.name: value.type.tensor_type.elem_type for value in values}}
    types.update((tensor.name, tensor.data_type) for tensor in graph.initializer)
    return types


def _is_legal(node: onnx.NodeProto) -> bool:
    """Return whether an operator accepts the attributes of its node; the runtime checks the axis."""
    values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    plain = {key: value.decode() if isinstance(value, bytes) else value for key, value in values.items()}
    try:
        format_of(node.op_type, plain)
    except ValueError:
        return False
    return len(node.input) == len(TWINS[node.op_type].inputs) and all(node.input)
