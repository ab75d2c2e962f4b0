"""ONNX functions of standard operators that decode packed weights and that runtimes can fold.

One function serves all weights of a format. It looks numbers up in tables: ONNX Runtime does not fold
DequantizeLinear, which would run each time, and int8 has no -0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.parser
from numpy.typing import NDArray

from ops.formats import BFP, FORMATS, MX, Format, format_of
from transforms.features.packed.code_layout import BlockLayout, Codes, codes_in_bytes, plane_widths
from transforms.features.packed.codes import codes_of
from transforms.features.packed.lanes import COLUMNS, ROWS, Lanes, shift_width
from transforms.functions import DOMAIN

FIRST_OPSET = 13

_PREFIX, _PATCHED, _NEXT, _IS = "Unpack_", "_patched", "__", "_is_"
_MARK = "onnx-narrow: packed weights in standard operators"
_NUMBERS = {
    BFP: (
        *("bit_width", "block_size", "bfp_method", "sub_block_size", "sub_block_shift_bits"),
        "use_compiler_version_cpu_kernel",
    ),
    MX: ("element_dtype", "block_size"),
}
"""The attributes that determine the values of codes."""


def op_of(fmt: Format, *, patched: bool, form: str = "") -> str:
    """Return the name of a format's function; ``patched``: some numbers are stored beside the codes.

    ``form``: the inputs have the shapes of :mod:`transforms.features.packed.lanes`, in rows or columns.
    """
    deciding = {key: fmt.attributes[key] for key in _NUMBERS[fmt.op] if key in fmt.attributes}
    plain = format_of(fmt.op, deciding)
    assert plain is not None, "a block format"
    words = plain.name.replace(" ", _NEXT).replace("=", _IS)
    return f"{_PREFIX}{words}{_PATCHED if patched else ''}{form}"


def format_of_op(op: str) -> tuple[Format, bool] | None:
    """Return the format of a function name and whether it is patched, or None for another function."""
    if not op.startswith(_PREFIX):
        return None
    form = form_of_op(op)
    words = op.removeprefix(_PREFIX).removesuffix(form).removesuffix(_PATCHED)
    kind, *pairs = words.split(_NEXT)
    try:
        texts = dict(pair.partition(_IS)[::2] for pair in pairs)
        attributes = {key: int(text) if text.isdecimal() else text for key, text in texts.items()}
        fmt = FORMATS.get(words) or format_of(kind, attributes)
    except ValueError:
        return None
    if fmt is None or fmt.op not in _NUMBERS or codes_of(fmt) is None:
        return None
    patched = op.removesuffix(form).endswith(_PATCHED)
    return (fmt, patched) if op_of(fmt, patched=patched, form=form) == op else None


def form_of_op(op: str) -> str:
    """Return the form at the end of a function name, or ""."""
    return next((form for form in (ROWS, COLUMNS) if op.endswith(form)), "")


def input_names(fmt: Format, *, patched: bool) -> tuple[str, ...]:
    """Return the names of the function's inputs in order, which also name the tensors."""
    codes = codes_of(fmt)
    assert codes is not None, "asked before"
    planes = [f"codes{width}" for width in plane_widths(codes.bits)]
    shifts = ["shifts"] if codes.shift_bits else []
    return (*planes, "exponents", *shifts, *(("places", "others") if patched else ()))


def make_unpacker(fmt: Format, opset: int, *, patched: bool, form: str = "") -> onnx.FunctionProto:
    """Return the function that decodes the weights of a format, for an opset of ONNX from 13 on.

    Attributes of a call: ``shape`` of the result; ``cut``, the same as [outer, length, inner] with blocks
    along the length; ``blocks`` and ``groups``, whole blocks and sub-blocks as [outer, number, elements,
    inner]. A function for a ``form`` reads the shape alone. ValueError for a format that has no such form.
    """
    codes = codes_of(fmt)
    assert codes is not None, "asked before"
    lanes = Lanes.of(codes, group_of(fmt), form) if form else None
    if form and lanes is None:
        raise ValueError(f"{fmt.name} has no lanes")
    names = ", ".join(input_names(fmt, patched=patched))
    attributes = ", ".join(attribute_names(fmt))
    text = _START_OF_LANES + _in_lanes(codes) if lanes else _START + _index(codes) + _scaled(codes)
    function = onnx.parser.parse_function(
        f'<domain: "{DOMAIN}", opset_import: ["": {opset}]> {op_of(fmt, patched=patched, form=form)} '
        f"<{attributes}> ({names}) => (W) {{ {text}{_PATCH if patched else _DONE} }}"
    )
    body = list(function.node)
    del function.node[:]
    function.node.extend([*_constants(_tables_of_lanes(lanes) if lanes else _tables(codes)), *body])
    function.doc_string = _MARK
    return function


def attribute_names(fmt: Format) -> tuple[str, ...]:
    """Return the attributes of a call."""
    codes = codes_of(fmt)
    groups = ("groups",) if codes is not None and codes.shift_bits else ()
    return ("shape", "cut", "blocks", *groups)


def group_of(fmt: Format) -> int:
    """Return the number of elements with the same shift, 1 without shifts."""
    return int(fmt.attributes.get("sub_block_size", 1))


def call_attributes(fmt: Format, layout: BlockLayout) -> dict[str, list[int]]:
    """Return the attributes of a call, see :func:`make_unpacker`."""
    values = {
        "shape": layout.shape,
        "cut": layout.cut,
        "blocks": layout.wide(layout.block),
        "groups": layout.wide(layout.group),
    }
    return {name: list(values[name]) for name in attribute_names(fmt)}


def format_of_own(function: onnx.FunctionProto) -> tuple[Format, bool] | None:
    """Return the format of a function identical to ours and whether it is patched, or None."""
    opset = max((entry.version for entry in function.opset_import if entry.domain == ""), default=0)
    named_format = format_of_op(function.name) if function.domain == DOMAIN else None
    if named_format is None or opset < FIRST_OPSET:
        return None
    try:
        expected = make_own(function.name, opset)
    except ValueError:
        return None
    return named_format if expected == function else None


def make_own(op: str, opset: int) -> onnx.FunctionProto:
    """Return the function for a name; raise ValueError for a name without a format."""
    named_format = format_of_op(op)
    if named_format is None:
        raise ValueError(f"'{op}' is no function of a format")
    return make_unpacker(named_format[0], opset, patched=named_format[1], form=form_of_op(op))


_START = """
zero = Constant <value_ints = [0]> ()
one = Constant <value_ints = [1]> ()
two = Constant <value_ints = [2]> ()
three = Constant <value_ints = [3]> ()
rest = Constant <value_ints = [-1]> ()
shape_given = Constant <value_ints: ints = @shape> ()
cut_given = Constant <value_ints: ints = @cut> ()
outer = Slice (cut_given, zero, one)
length = Slice (cut_given, one, two)
inner = Slice (cut_given, two, three)
fibres = Concat <axis = 0> (outer, rest, inner)
outer_length = Mul (outer, length)
count = Mul (outer_length, inner)
"""

_DONE = "W = Reshape (product, shape_given)"

_PATCH = """
flat_product = Reshape (product, rest)
patched = ScatterElements <axis = 0> (flat_product, places, others)
W = Reshape (patched, shape_given)
"""


def _index(codes: Codes) -> str:
    """Return lines that join codes from their planes and look up their values."""
    lines, index, low = [], "", 0
    for width in plane_widths(codes.bits):
        name = f"codes{width}"
        lines.append(_plane(name, width, "count"))
        if index:
            place = f"{name}_place = Constant <value = int32 {{{2**low}}}> ()\n"
            lines.append(f"{place}{name}_high = Mul ({name}_flat, {name}_place)\n")
            lines.append(f"{name}_sum = Add ({index}, {name}_high)\n")
        index, low = f"{name}_sum" if index else f"{name}_flat", low + width
    lines.append(f"numbers_flat = Gather (values, {index})\nnumbers = Reshape (numbers_flat, cut_given)\n")
    return "".join(lines)


def _plane(name: str, width: int, count: str) -> str:
    """Return lines that expand a plane to one integer for each of ``count`` codes."""
    wide = f"{name}_wide = Cast <to = 6> ({name})\n"
    if width == 8:
        return wide + f"{name}_flat = Reshape ({name}_wide, rest)\n"
    return f"""{wide}{name}_rows = Gather (codes_in_bytes{width}, {name}_wide)
{name}_all = Reshape ({name}_rows, rest)
{name}_cut = Slice ({name}_all, zero, {count})
{name}_flat = Cast <to = 6> ({name}_cut)
"""


def _scaled(codes: Codes) -> str:
    """Return lines that multiply numbers by their powers of two."""
    powers = f"""blocks_given = Constant <value_ints: ints = @blocks> ()
exponents_wide = Cast <to = 6> (exponents)
powers = Gather (powers_of, exponents_wide)
{_spread("powers", "blocks_given")}"""
    if not codes.shift_bits:
        return powers + "product = Mul (numbers, powers_each)\n"
    return f"""{powers}groups_given = Constant <value_ints: ints = @groups> ()
group_sizes = Constant <value_ints = [1, 1, 0, 1]> ()
is_kept = Cast <to = 9> (group_sizes)
groups_or_one = Where (is_kept, groups_given, one)
group_count = ReduceProd <keepdims = 1> (groups_or_one)
{_plane("shifts", shift_width(codes), "group_count")}shift_powers_flat = Gather (shift_powers_of, shifts_flat)
shift_powers = Reshape (shift_powers_flat, groups_or_one)
{_spread("shift_powers", "groups_given")}shifted = Mul (numbers, shift_powers_each)
product = Mul (shifted, powers_each)
"""


def _spread(name: str, blocks: str) -> str:
    """Return lines that repeat the entry of each block for each of its elements."""
    return f"""{name}_wide = Expand ({name}, {blocks})
{name}_fibres = Reshape ({name}_wide, fibres)
{name}_each = Slice ({name}_fibres, zero, length, one)
"""


_START_OF_LANES = """
shape_given = Constant <value_ints: ints = @shape> ()
rest = Constant <value_ints = [-1]> ()
exponents_wide = Cast <to = 6> (exponents)
powers = Gather (powers_of, exponents_wide)
"""


def _in_lanes(codes: Codes) -> str:
    """Return lines that multiply numbers by powers, in the shapes of the bytes."""
    first, *second = [f"codes{width}" for width in plane_widths(codes.bits)]
    lines, index, powers = f"low = Cast <to = 6> ({first})\n", "low", "powers"
    if second:
        lines += f"high_wide = Cast <to = 6> ({second[0]})\nhigh = Gather (offsets, high_wide)\n"
        lines, index = lines + "index = Add (low, high)\n", "index"
    if codes.shift_bits:
        lines += (
            "shifts_wide = Cast <to = 6> (shifts)\nshift_powers = Gather (shift_powers_of, shifts_wide)\n"
        )
        lines, powers = lines + "powers_each = Mul (powers, shift_powers)\n", "powers_each"
    return f"{lines}numbers = Gather (values, {index})\nproduct = Mul (numbers, {powers})\n"


def _tables_of_lanes(lanes: Lanes) -> dict[str, NDArray[np.generic]]:
    tables: dict[str, NDArray[np.generic]] = {"values": lanes.values(), "powers_of": lanes.codes.powers}
    if len(lanes.planes) > 1:
        tables["offsets"] = lanes.offsets()
    if lanes.shifts:
        tables["shift_powers_of"] = lanes.shift_powers()
    return tables


def _tables(codes: Codes) -> dict[str, NDArray[np.generic]]:
    tables: dict[str, NDArray[np.generic]] = {"values": codes.values, "powers_of": codes.powers}
    widths = {*plane_widths(codes.bits), *((shift_width(codes),) if codes.shift_bits else ())}
    tables |= {f"codes_in_bytes{width}": codes_in_bytes(width) for width in sorted(widths - {8})}
    if codes.shift_bits:
        tables["shift_powers_of"] = codes.shift_powers
    return tables


def _constants(tables: Mapping[str, NDArray[np.generic]]) -> list[onnx.NodeProto]:
    """Return the nodes of a function that hold its tables."""
    return [
        onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(array))
        for name, array in tables.items()
    ]
