"""Rules for rarer operators, optional values, and patterns that tools put together."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.attack.graphs.elementwise import partner
from tests.attack.graphs.layers import image
from tests.attack.graphs.moves import Rule
from tests.attack.graphs.scope import Rejected, Scope


def einsum(s: Scope) -> None:
    text = s.case.one_of(
        ("ij,jk->ik", "bij,bjk->bik", "bij,bkj->bik", "ij->ji", "bij->b", "ii->i", "i,j->ij", "...ij,jk")
    )
    sizes = {letter: int(s.case.rng.integers(1, 5)) for letter in "ijkb"}
    terms = text.split("->")[0].split(",")
    names = [s.float([sizes[c] for c in term.replace("...", "b")]) for term in terms]
    if len({s.of(name).dtype for name in names}) > 1:
        raise Rejected("two types")
    s.add("Einsum", names, equation=text)


def grid_sample(s: Scope) -> None:
    x = image(s, 2)
    n = s.of(x).shape[0]
    grid = s.constant(np.asarray(s.case.rng.uniform(-1.1, 1.1, [n, 3, 4, 2]), s.of(x).dtype))
    newer = s.case.opset >= 20
    modes = ("linear", "nearest", "cubic") if newer else ("bilinear", "nearest", "bicubic")
    padding = s.case.one_of((None, "zeros", "border", "reflection"))
    s.add(
        "GridSample",
        [x, grid],
        mode=s.case.one_of(modes),
        padding_mode=padding,
        align_corners=s.case.one_of((None, 1)),
    )


def regions(s: Scope) -> None:
    x = image(s, 2)
    h, w = s.of(x).shape[2:]
    if s.case.opset < 10 or s.case.chance(0.3):
        rois = s.constant(np.asarray([[0, 0, 0, w - 1, h - 1], [0, 1, 0, w - 1, h - 2]], s.of(x).dtype))
        s.add("MaxRoiPool", [x, rois], pooled_shape=[2, 2])
        return
    rois = s.constant(np.asarray([[0, 0.3, w - 1, h - 1], [0.5, 0, w - 2, h - 1.5]], s.of(x).dtype))
    at = s.constant(np.asarray([0, 0]))
    mode = s.case.one_of((None, "avg", "max"))
    s.add("RoiAlign", [x, rois, at], mode=mode, output_height=2, output_width=2, sampling_ratio=2)


def unpool(s: Scope) -> None:
    x = s.input(s.case.numbers([1, 2, 4, 4], s.case.main))
    y, at = s.add("MaxPool", [x], 2, kernel_shape=[2, 2], strides=[2, 2])
    s.add("MaxUnpool", [y, at], kernel_shape=[2, 2], strides=[2, 2])


def assorted(s: Scope) -> None:
    kind = s.case.one_of(("Det", "Col2Im", "CenterCropPad", "AffineGrid", "HannWindow", "NMS", "DFT"))
    if kind == "Det":
        s.add(kind, [s.float(s.case.one_of(([3, 3], [2, 3, 3])))])
    elif kind == "Col2Im":
        s.add(kind, [s.float([1, 8, 4]), s.integers([3, 3]), s.integers([2, 2])])
    elif kind == "CenterCropPad":
        s.add(kind, [s.float(rank=2), s.integers([3, 2])], axes=s.case.one_of((None, [1, 0])))
    elif kind == "AffineGrid":
        s.add(kind, [s.float([1, 2, 3]), s.integers([1, 1, 2, 3])], align_corners=s.case.one_of((None, 1)))
    elif kind == "HannWindow":
        s.add(
            "Mul",
            [s.add(kind, [s.integers(5)], periodic=s.case.one_of((None, 0))), s.float([5], dtype=np.float32)],
        )
    elif kind == "NMS":
        boxes = s.constant(np.sort(s.case.rng.random([1, 4, 4])).astype(np.float32)[..., [0, 1, 2, 3]])
        scores = s.float([1, 2, 4], dtype=np.float32)
        s.add("NonMaxSuppression", [boxes, scores, s.integers([2])])
    else:
        s.add(kind, [s.float([1, 4, 1])], inverse=s.case.one_of((None, 1)))


def attention(s: Scope) -> None:
    heads, t, d = (int(i) for i in s.case.rng.integers(1, 4, 3))
    q, k, v = (s.float([1, heads, t, d], dtype=s.case.main) for _ in range(3))
    s.add("Attention", [q, k, v], is_causal=s.case.one_of((None, 1)), scale=s.case.one_of((None, 0.3)))


def optional(s: Scope) -> None:
    """A tensor into an Optional and out of it; the two nodes run together, for no array stands between."""
    if s.case.opset < 15:
        raise Rejected("no Optional here")
    x = s.float()
    held = s.case.names.tensor("o")
    into = helper.make_node("Optional", [x], [held], s.case.names.node("Optional", s.node_names))
    y = s.case.names.tensor()
    op = s.case.one_of(("OptionalGetElement", "OptionalGetElement", "OptionalHasElement"))
    out = helper.make_node(op, [held], [y], s.case.names.node(op, s.node_names))
    s.nodes += [into, out]
    s.values[y] = s.of(x) if op == "OptionalGetElement" else np.asarray(True)


def twins(s: Scope) -> None:
    """Several layers on one input, as of Q, K and V."""
    x = s.float(least=2, dtype=s.case.main)
    array = s.of(x)
    k, n = array.shape[-1], max(s.case.size(), 1)
    if not array.size:
        raise Rejected("empty")
    names = []
    for _ in range(int(s.case.rng.integers(2, 4))):
        y = s.add(
            "MatMul", [x, s.constant(np.asarray(s.case.rng.standard_normal([k, n]) / k**0.5, array.dtype))]
        )
        names.append(s.add("Add", [y, s.weight([n], array.dtype)]) if s.case.chance(0.5) else y)
    if s.case.chance(0.6):
        s.add(s.case.one_of(("Add", "Mul")), names[:2])


def composed_norm(s: Scope) -> None:
    """LayerNorm as exporters of old opsets write it."""
    x = s.float(least=2, dtype=s.case.main)
    array = s.of(x)
    if not array.size or array.shape[-1] < 2:
        raise Rejected("too small")
    last = {"axes": [-1] if s.case.opset >= 11 else [array.ndim - 1]}

    def mean(name: str) -> str:
        if s.case.opset < 18:
            return str(s.add("ReduceMean", [name], **last))
        return str(s.add("ReduceMean", [name, s.constant(np.asarray([-1]))]))

    def number(value: float) -> str:
        return s.constant(np.asarray(value, array.dtype))

    centred = s.add("Sub", [x, mean(x)])
    square = s.add("Mul", [centred, centred]) if s.case.chance(0.4) else s.add("Pow", [centred, number(2)])
    deviation = s.add("Sqrt", [s.add("Add", [mean(square), number(1e-3)])])
    y = s.add("Div", [centred, deviation])
    y = s.add("Mul", [y, s.weight(array.shape[-1:], array.dtype)])
    s.add("Add", [y, s.weight(array.shape[-1:], array.dtype)])


def composed_activation(s: Scope) -> None:
    """GELU, HardSwish and Swish from their parts."""
    x = s.float(dtype=s.case.main)

    def number(value: float) -> str:
        return s.constant(np.asarray(value, s.of(x).dtype))

    kind = s.case.one_of(("gelu", "hardswish", "swish"))
    if kind == "gelu":
        e = s.add("Erf", [s.add("Div", [x, number(2**0.5)])])
        y = s.add("Mul", [x, s.add("Add", [e, number(1)])])
        s.add("Mul", [y, number(0.5)])
    elif kind == "swish":
        s.add("Mul", [x, s.add("Sigmoid", [x])])
    else:
        gate = s.add("HardSigmoid", [x], alpha=1 / 6, beta=0.5)
        s.add("Mul", [x, gate])


def residual(s: Scope) -> None:
    x = s.float(dtype=s.case.main)
    y = s.add(s.case.one_of(("Relu", "Tanh", "Neg")), [x])
    s.add("Add", [y, x])
    s.add("Mul", [y, partner(s, y)])


RULES: dict[Rule, float] = {
    einsum: 1, grid_sample: 0.6, regions: 0.5, unpool: 0.3, assorted: 0.8, attention: 0.6,
    optional: 0.5, twins: 1.2, composed_norm: 1.5, composed_activation: 1.2, residual: 1,
}  # fmt: skip
