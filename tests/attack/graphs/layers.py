"""Rules for layers: products, convolutions, pools, recurrent layers, normalizations, resizing."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.attack.graphs.moves import Rule
from tests.attack.graphs.scope import Rejected, Scope


def matmul(s: Scope) -> None:
    x = s.float(least=1)
    array = s.of(x)
    k, n = array.shape[-1], s.case.size()
    scale = 1 / max(k, 1) ** 0.5
    if array.ndim > 2 and s.case.chance(0.4):
        other = s.float([*array.shape[:-2], k, n], dtype=array.dtype)
    elif s.case.chance(0.15):
        other = s.weight([k], array.dtype, scale)
    else:
        other = s.weight([k, n], array.dtype, scale)
    y = s.add("MatMul", [x, other] if s.case.chance(0.9) or array.ndim != 2 else _left(s, x))
    if s.case.chance(0.4) and s.of(y).ndim:
        bias = s.weight(s.of(y).shape[-1:], array.dtype)
        s.add("Add", [y, bias] if s.case.chance(0.7) else [bias, y])


def _left(s: Scope, x: str) -> list[str]:
    """A product with the weight on the left."""
    array = s.of(x)
    return [s.weight([s.case.size(), array.shape[0]], array.dtype), x]


def gemm(s: Scope) -> None:
    x = s.float(rank=2)
    array = s.of(x)
    turn = {key: s.case.one_of((None, 0, 1)) for key in ("transA", "transB")}
    m, k = array.shape[::-1] if turn["transA"] else array.shape
    n = max(s.case.size(), 1)
    weight = s.weight([n, k] if turn["transB"] else [k, n], array.dtype, 1 / max(k, 1) ** 0.5)
    scales = {key: float(s.case.rng.uniform(0.3, 1.5)) for key in ("alpha", "beta") if s.case.chance(0.4)}
    bias = []
    if s.case.opset < 11 or s.case.chance(0.7):
        bias = [s.weight(s.case.one_of(([n], [1, n], [m, n], [m, 1], [1], [])), array.dtype)]
    s.add("Gemm", [x, weight, *bias], **turn, **scales)


def image(s: Scope, dims: int = 0) -> str:
    """Return a tensor of samples, channels and 1 to 3 axes of space."""
    dims = dims or s.case.one_of((1, 2, 2, 2, 3))
    found = None if s.case.chance(0.3) else s.pick(lambda v: isinstance(v, np.ndarray) and _is_image(v, dims))
    if found:
        return found
    n, c = (int(i) for i in s.case.rng.integers(1, 4, 2))
    array = s.case.numbers([n, c, *(int(i) for i in s.case.rng.integers(3, 8 - dims, dims))], s.case.main)
    return s.input(array)


def _is_image(value: np.ndarray, dims: int) -> bool:
    sizes = value.shape[2:]
    return (
        value.dtype.kind == "f" and value.ndim == dims + 2 and bool(value.size) and min(sizes, default=1) > 1
    )


def window(s: Scope, sizes: tuple[int, ...], *, dilate: bool = True) -> dict[str, Any]:
    """Return attributes of a window that moves over axes of these sizes."""
    dims = len(sizes)
    kernel = [int(s.case.rng.integers(1, min(4, size) + 1)) for size in sizes]
    found: dict[str, Any] = {"kernel_shape": kernel}
    if s.case.chance(0.5):
        found["strides"] = [int(i) for i in s.case.rng.integers(1, 3, dims)]
    kind = s.case.one_of(("none", "pads", "pads", "auto"))
    if kind == "pads":
        found["pads"] = [int(s.case.rng.integers(0, k)) for k in (*kernel, *kernel)]
    elif kind == "auto":
        found["auto_pad"] = s.case.one_of(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    if dilate and kind != "auto" and s.case.chance(0.3):
        found["dilations"] = [
            s.case.one_of((1, 2)) if k < size // 2 else 1 for k, size in zip(kernel, sizes, strict=True)
        ]
    return found


def conv(s: Scope) -> None:
    x = image(s)
    array = s.of(x)
    channels = array.shape[1]
    attrs = window(s, array.shape[2:])
    group = s.case.one_of([g for g in range(1, channels + 1) if channels % g == 0])
    out = group * int(s.case.rng.integers(1, 4))
    weight = s.weight([out, channels // group, *attrs["kernel_shape"]], array.dtype, 0.4)
    bias = [s.weight([out], array.dtype)] if s.case.chance(0.6) else []
    if s.case.chance(0.3):
        del attrs["kernel_shape"]
    y = s.add("Conv", [x, weight, *bias], group=group if group > 1 or s.case.chance(0.3) else None, **attrs)
    _after_conv(s, y, out)


def _after_conv(s: Scope, y: str, channels: int) -> None:
    if s.case.chance(0.3):
        batch_norm(s, y)
    elif s.case.chance(0.2):
        s.add(s.case.one_of(("Relu", "Sigmoid", "LeakyRelu")), [y])
    elif s.case.chance(0.2):
        dims = [channels, *(1 for _ in s.of(y).shape[2:])]
        s.add(s.case.one_of(("Add", "Mul")), [y, s.weight(dims, s.of(y).dtype)])


def conv_transpose(s: Scope) -> None:
    x = image(s)
    array = s.of(x)
    dims, channels = array.ndim - 2, array.shape[1]
    group = s.case.one_of([g for g in range(1, channels + 1) if channels % g == 0])
    kernel = [int(i) for i in s.case.rng.integers(1, 4, dims)]
    attrs: dict[str, Any] = (
        {"strides": [int(i) for i in s.case.rng.integers(1, 3, dims)]} if s.case.chance(0.6) else {}
    )
    kind = s.case.one_of(("none", "pads", "auto", "output_padding", "output_shape"))
    if kind == "pads":
        attrs["pads"] = [int(s.case.rng.integers(0, k)) for k in (*kernel, *kernel)]
    elif kind == "auto":
        attrs["auto_pad"] = s.case.one_of(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif kind == "output_padding" and attrs:
        attrs["output_padding"] = [int(s.case.rng.integers(0, step)) for step in attrs["strides"]]
    elif kind == "output_shape":
        steps = attrs.get("strides", [1] * dims)
        pairs = zip(array.shape[2:], steps, strict=True)
        attrs["output_shape"] = [size * step for size, step in pairs]
    per_group = int(s.case.rng.integers(1, 4))
    weight = s.weight([channels, per_group, *kernel], array.dtype, 0.4)
    bias = [s.weight([per_group * group], array.dtype)] if s.case.chance(0.5) else []
    y = s.add("ConvTranspose", [x, weight, *bias], group=group if group > 1 else None, **attrs)
    if s.case.chance(0.2):
        batch_norm(s, y)


def batch_norm(s: Scope, x: str | None = None) -> None:
    x = x or image(s)
    array = s.of(x)
    count = [array.shape[1]]
    draw = s.case.rng
    scale, shift, mean = (s.constant(np.asarray(draw.normal(1, 0.3, count), array.dtype)) for _ in range(3))
    variance = s.constant(np.asarray(draw.uniform(0.3, 2, count), array.dtype))
    s.add("BatchNormalization", [x, scale, shift, mean, variance], epsilon=s.case.one_of((None, 1e-3)))


def other_norm(s: Scope) -> None:
    x = image(s)
    array = s.of(x)
    channels = array.shape[1]
    kind = s.case.one_of(("instance", "group", "lrn"))
    if kind == "lrn":
        s.add(
            "LRN",
            [x],
            size=s.case.one_of((1, 3)),
            alpha=s.case.one_of((None, 0.1)),
            bias=s.case.one_of((None, 2.0)),
        )
        return
    weights = [s.weight([channels], array.dtype), s.weight([channels], array.dtype)]
    if kind == "instance":
        s.add("InstanceNormalization", [x, *weights], epsilon=s.case.one_of((None, 1e-3)))
    else:
        groups = s.case.one_of([g for g in range(1, channels + 1) if channels % g == 0])
        s.add("GroupNormalization", [x, *weights], num_groups=groups)


def recurrent(s: Scope) -> None:
    op, gates = s.case.one_of((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    x = s.float(rank=3)
    array = s.of(x)
    time, batch, width = array.shape
    if not array.size:
        raise Rejected("nothing to run over")
    hidden = int(s.case.rng.integers(1, 4))
    direction = s.case.one_of((None, "forward", "reverse", "bidirectional"))
    d = 2 if direction == "bidirectional" else 1
    inputs = [x, s.weight([d, gates * hidden, width], array.dtype, 0.4)]
    inputs += [s.weight([d, gates * hidden, hidden], array.dtype, 0.4)]
    inputs += [s.weight([d, 2 * gates * hidden], array.dtype, 0.3) if s.case.chance(0.5) else ""]
    if s.case.chance(0.4):
        lengths = s.constant(np.asarray(s.case.rng.integers(1, time + 1, batch), np.int32))
        states = [s.float([d, batch, hidden], dtype=array.dtype) for _ in range(2 if op == "LSTM" else 1)]
        inputs += [lengths, *states]
        if op == "LSTM" and s.case.chance(0.5):
            inputs += [s.weight([d, 3 * hidden], array.dtype, 0.3)]
    while not inputs[-1]:
        inputs.pop()
    extra: dict[str, Any] = {"linear_before_reset": s.case.one_of((None, 0, 1))} if op == "GRU" else {}
    if op == "RNN" and s.case.chance(0.4):
        extra["activations"] = [s.case.one_of(("Relu", "Sigmoid", "Tanh"))] * d
    if s.case.chance(0.2):
        extra["clip"] = 0.8
    outputs = 3 if op == "LSTM" else 2
    s.add(op, inputs, outputs, hidden_size=hidden, direction=direction, **extra)


def resize(s: Scope) -> None:
    x = image(s, 2)
    array = s.of(x)
    scales = np.asarray([1, 1, *s.case.rng.choice([0.5, 0.7, 1, 1.5, 2, 2.3], 2)], np.float32)
    mode = s.case.one_of(("nearest", "linear", *(("cubic",) if s.case.opset >= 11 else ())))
    if s.case.opset < 11:
        if s.case.opset < 9:
            s.add("Upsample", [x], mode=mode, scales=[max(float(i), 1.0) for i in scales])
            return
        op = "Upsample" if s.case.opset < 10 else "Resize"
        given = scales.clip(1) if op == "Upsample" else scales
        s.add(op, [x, s.constant(given, plain=True)], mode=mode)
        return
    places = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"]
    place = s.case.one_of((None, *places, *(("half_pixel_symmetric",) if s.case.opset >= 19 else ())))
    attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": place}
    if mode == "nearest":
        nearest = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        attrs["nearest_mode"] = s.case.one_of((None, *nearest))
    elif mode == "cubic":
        attrs |= {
            "cubic_coeff_a": s.case.one_of((None, -0.5)),
            "exclude_outside": s.case.one_of((None, 0, 1)),
        }
    elif s.case.opset >= 18 and s.case.chance(0.3):
        attrs["antialias"] = 1
    _add_resize(s, x, array, scales, attrs)


def _add_resize(s: Scope, x: str, array: np.ndarray, scales: np.ndarray, attrs: dict[str, Any]) -> None:
    crop = attrs["coordinate_transformation_mode"] == "tf_crop_and_resize"
    ends = np.array([0, 0, 0.1, 0.2, 1, 1, 0.9, 0.8], np.float32)
    empty = s.constant(np.zeros(0, np.float32), plain=True) if s.case.opset < 13 else ""
    roi = s.constant(ends, plain=True) if crop else empty
    if crop:
        attrs["extrapolation_value"] = s.case.one_of((None, 0.4))
    if s.case.chance(0.4):
        sizes = [int(size * scale) for size, scale in zip(array.shape, scales, strict=True)]
        if s.case.opset >= 18 and s.case.chance(0.3):
            attrs["keep_aspect_ratio_policy"] = s.case.one_of(("stretch", "not_larger", "not_smaller"))
        s.add("Resize", [x, roi, empty, s.integers(sizes)], **attrs)
    elif s.case.opset >= 18 and s.case.chance(0.3):
        roi = s.constant(ends[[2, 3, 6, 7]], plain=True) if crop else roi
        s.add("Resize", [x, roi, s.constant(scales[2:], plain=True)], axes=[2, 3], **attrs)
    else:
        s.add("Resize", [x, roi, s.constant(scales, plain=True)], **attrs)


RULES: dict[Rule, float] = {
    matmul: 7, gemm: 4, conv: 6, conv_transpose: 2, batch_norm: 1.5, other_norm: 1.5, recurrent: 1.2,
    resize: 2,
}  # fmt: skip
