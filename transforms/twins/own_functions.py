"""The functions that stand for our operators: how they are made, and how they are recognized."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import onnx
import onnx.parser

from ops.formats import ATTRIBUTES, BFP, LINEAR, MX
from ops.registration import AMD_DOMAIN, DOMAIN
from transforms.twins import bfp, linear, mx

DEQUANTIZE = "ExtendedDequantizeLinear"
FIRST_OPSET = 13
GENERIC_OPSET = 15
"""From here on one function serves all types: there is CastLike."""

_AXES_AS_INPUT = 18
_MARK = "onnx-narrow: a native operator in standard operators"


class Twin(NamedTuple):
    """An operator of ours: body, inputs, output, attributes with defaults, the input that gives the type."""

    body: Callable[[], str]
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, int | str]
    typing_input: int | None


def _block_attributes(op: str) -> dict[str, int | str]:
    return {**{key: known.default for key, known in ATTRIBUTES[op].items()}, "axis": 1}


TWINS: Mapping[str, Twin] = MappingProxyType(
    {
        BFP: Twin(bfp.body, ("X",), "Y", _block_attributes(BFP), 0),
        MX: Twin(mx.body, ("X",), "Y", _block_attributes(MX), 0),
        LINEAR: Twin(linear.quantize, ("x", "scale", "zero_point"), "y", {"axis": 0}, 2),
        DEQUANTIZE: Twin(linear.dequantize, ("y", "scale", "zero_point"), "x", {"axis": 0}, None),
    }
)


def make_function(
    op: str, domain: str, opset: int, output_type: int = onnx.TensorProto.FLOAT
) -> onnx.FunctionProto:
    """Return the function of an operator of ours, which imports an opset of ONNX from 13 on.

    Below opset 15 it takes tensors of one type only, ``output_type``.
    """
    twin = TWINS[op]
    declared = ", ".join(_declared(key, default) for key, default in twin.attributes.items())
    function = onnx.parser.parse_function(
        f'<domain: "{domain}", opset_import: ["": {opset}]> {op} <{declared}> ({", ".join(twin.inputs)}) => '
        f"({twin.output}) {{ {_for_opset(twin.body(), opset, output_type)} }}"
    )
    function.doc_string = _MARK
    return function


def is_own(function: onnx.FunctionProto) -> bool:
    """Return whether a function was made here, for readers to take its calls for the operator itself."""
    return function.domain in (DOMAIN, AMD_DOMAIN) and function.name in TWINS and function.doc_string == _MARK


def drop_own(model: onnx.ModelProto) -> None:
    """Remove the functions that were made here from a model, in place."""
    kept = [function for function in model.functions if not is_own(function)]
    if len(kept) < len(model.functions):
        del model.functions[:]
        model.functions.extend(kept)


def _declared(key: str, default: int | str) -> str:
    return f'{key}: string = "{default}"' if isinstance(default, str) else f"{key}: int = {default}"


def _for_opset(text: str, opset: int, output_type: int) -> str:
    """Return a body in which the operators that other opsets define otherwise are written for one."""
    for axis, name in enumerate(("BLOCK", "GROUP")):
        new = rf"ReduceMax <keepdims = 1> (\1, {name.lower()}_axis)"
        old = rf"ReduceMax <keepdims = 1, axes = [{axis}]> (\1)"
        text = re.sub(rf"MAX_OF_{name}S\((\w+)\)", new if opset >= _AXES_AS_INPUT else old, text)
    new, old = r"CastLike(\1, \2)", rf"Cast <to = {output_type}> (\1)"
    return re.sub(r"CAST_LIKE\((\w+), (\w+)\)", new if opset >= GENERIC_OPSET else old, text)
