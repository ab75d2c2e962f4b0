"""A model that is a chain, before and after its quantization, as SVG: what came in, what was folded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import ModelProto, NodeProto, TensorProto

INK, SOFT, LINE, PAGE, FILL = "#1c2127", "#59626d", "#c3c9d0", "#fbfbf9", "#b9cfe4"
WIDTH, ROW, TOP = 830, 76, 84
_LEFT, _RIGHT, _BOX = 150, 520, 190
_ROUNDS = {"QuantizeLinear", "DequantizeLinear", "Cast"}


@dataclass(frozen=True)
class Link:
    """A node of the chain, with its stored weights and the types that its input is rounded to."""

    name: str
    operator: str
    weights: tuple[str, ...]
    rounded: tuple[str, ...]


def drawing(before: ModelProto, after: ModelProto, title: str) -> str:
    """Return both chains side by side, one row for each node of the first."""
    rows = [link for link in _chain(before) if link.name]
    kept = {link.name: link for link in _chain(after)}
    height = TOP + ROW * len(rows) + 46
    parts = [_text(_LEFT, 34, "float32", INK, 17), _text(_RIGHT, 34, title, INK, 17)]
    for i, row in enumerate(rows):
        y = TOP + i * ROW
        parts += [*_box(_LEFT, y, row), _wire(_LEFT, y)]
        if row.name in kept:
            parts += [*_box(_RIGHT, y, kept[row.name]), _wire(_RIGHT, y), *_pill(y, kept[row.name].rounded)]
        else:
            parts += [f'<path d="M{_RIGHT} {y - ROW + 38}V{y + 38}" stroke="{SOFT}"/>']
            parts += [_text(_RIGHT + 14, y + 24, f"{row.name} is folded into its layer", SOFT, 13, "start")]
    y = TOP + len(rows) * ROW
    last = kept.get("", Link("", "", (), ()))
    parts += [_wire(_LEFT, y), _wire(_RIGHT, y), *_pill(y, last.rounded)]
    parts += [_text(x, y + 24, before.graph.output[0].name, SOFT, 13) for x in (_LEFT, _RIGHT)]
    return card(WIDTH, height, "".join(parts), f"digits.onnx in float32 and in {title}")


def card(width: int, height: int, content: str, title: str) -> str:
    """Return a drawing on a background of its own: it reads as well on a light page as on a dark one."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'role="img" aria-label="{title}" font-family="system-ui, Helvetica, Arial, sans-serif">'
        f'<rect x="1" y="1" width="{width - 2}" height="{height - 2}" rx="8" fill="{PAGE}" stroke="{LINE}"/>'
        f"{content}</svg>\n"
    )


def _chain(model: ModelProto) -> Iterator[Link]:
    """Yield the nodes from the first input on; what rounds the output comes last, without a name."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:  # what rounds a stored weight stands for the weight
        if node.op_type in _ROUNDS and node.input[0] in stored:
            stored[node.output[0]] = stored[node.input[0]]
    value, rounded = model.graph.input[0].name, []
    while reader := next((n for n in model.graph.node if n.input[0] == value), None):
        if reader.op_type in _ROUNDS:
            rounded += _type(reader, stored)
        else:
            weights = [stored[name] for name in reader.input[1:] if name in stored]
            if reader.op_type == "BatchNormalization":
                weights = weights[:1]
            yield Link(reader.name, reader.op_type, tuple(map(_words, weights)), tuple(rounded))
            rounded = []
        value = reader.output[0]
    yield Link("", "", (), tuple(rounded))


def _type(node: NodeProto, stored: dict[str, TensorProto]) -> list[str]:
    """Return the narrow type that a node rounds to; nothing for the node that goes back."""
    if node.op_type == "QuantizeLinear":
        return [_name(stored[node.input[2]].data_type)]
    if node.op_type == "Cast" and node.attribute[0].i != TensorProto.FLOAT:
        return [_name(node.attribute[0].i)]
    return []


def _words(tensor: TensorProto) -> str:
    return f"{_name(tensor.data_type)} {' x '.join(map(str, tensor.dims))}"


def _name(data_type: int) -> str:
    return onnx.helper.tensor_dtype_to_np_dtype(data_type).name


def _box(x: float, y: float, link: Link) -> list[str]:
    """Draw a node, with its weights at its right."""
    left = x - _BOX / 2
    parts = [
        f'<rect x="{left}" y="{y}" width="{_BOX}" height="38" rx="6" fill="#ffffff" stroke="{INK}"/>',
        f'<text x="{x}" y="{y + 24}" fill="{INK}" font-size="14" text-anchor="middle">{link.operator} '
        f'<tspan fill="{SOFT}" font-size="12">{link.name}</tspan></text>',
    ]
    step = 16 if len(link.weights) > 1 else 0
    for i, words in enumerate(link.weights):
        parts.append(_text(left + _BOX + 10, y + 24 - step / 2 + step * i, words, SOFT, 12, "start"))
    return parts


def _pill(y: float, types: tuple[str, ...]) -> list[str]:
    """Draw on the wire above a row that values are rounded there."""
    if not types:
        return []
    words = f"to {types[0]} and back"
    return [
        f'<rect x="{_RIGHT - 66}" y="{y - 32}" width="132" height="18" rx="9" fill="{FILL}"/>',
        _text(_RIGHT, y - 19, words, INK, 12),
    ]


def _wire(x: float, y: float) -> str:
    return f'<path d="M{x} {y - ROW + 38}V{y - 1}m-4 -6l4 6l4 -6" fill="none" stroke="{SOFT}"/>'


def _text(x: float, y: float, words: str, color: str, size: int, anchor: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" fill="{color}" font-size="{size}" text-anchor="{anchor}">{words}</text>'
