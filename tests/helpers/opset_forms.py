"""Nodes of operators whose definition has changed, in all attribute forms, in the text of ``onnx.parser``.

A form is there for every definition of its operator that takes it, from opset 7 on. Inputs are called by what
they hold: ``x`` random numbers, ``p`` positive ones, ``u`` small integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import onnx
import onnx.parser

from transforms.graph.schemas import definition

OLDEST, NEWEST = 7, 25

_X3, _Y3, _Y4 = "float[2,3,4] x", "float[A,B,C] y", "float[A,B,C,D] y"
_X4 = "float[2,3,6,7] x"
_FORMS: list[tuple[str, str, int, int]] = []


def _add(
    op: str,
    inputs: str,
    outputs: str,
    *attributes: str,
    init: str = "",
    args: str = "",
    since: int = OLDEST,
    until: int = NEWEST,
) -> None:
    """Add a form for each string of attributes; ``args`` are the inputs and initializers in order."""
    args = args or ", ".join(part.split()[-1] for part in inputs.split(", "))
    made = ", ".join(part.split()[-1] for part in outputs.split(", "))
    for text in attributes or ("",):
        node = f"{made} = {op} {f'<{text}>' if text else ''} ({args})"
        constants = f"<{init}>" if init else ""
        _FORMS.append((op, f"({inputs}) => ({outputs}) {constants} {{ {node} }}", since, until))


def _floats(name: str, *shape: int) -> str:
    numbers = ",".join(f"{np.sin(k):.3f}" for k in range(int(np.prod(shape))))
    return f"float{list(shape)} {name} = {{{numbers}}}"


def _arithmetic() -> None:
    _add("Attention", "float[1,2,3,4] x", "float[A,B,C,D] y", "", "is_causal=1", args="x, x, x", since=23)
    for op in ("ArgMax", "ArgMin"):
        _add(
            op,
            _X3,
            "int64[A,B,C] y",
            "",
            "axis=1",
            "axis=-1",
            "axis=1, select_last_index=1",
            "axis=2, keepdims=1",
        )
        _add(op, _X3, "int64[A,B] y", "axis=2, keepdims=0", "axis=-2, keepdims=0, select_last_index=1")
    for op, since in (("Add", 7), ("Sub", 7), ("Mul", 7), ("Div", 7), ("Pow", 7), ("Max", 8), ("Min", 8)):
        _add(op, "float[2,3] p, float[3] q", "float[2,3] y", since=since)
    for op in ("Mean", "Sum"):
        _add(op, "float[2,3] p, float[3] q", "float[2,3] y", since=8)
    for op in ("Equal", "Greater", "Less"):
        _add(op, "int64[4] u, int64[4] v", "bool[4] y")
    for to, kind in ((3, "int8"), (6, "int32"), (7, "int64"), (9, "bool"), (10, "float16"), (11, "double")):
        _add("Cast", _X3, f"{kind}[2,3,4] y", f"to={to}")
    _add("Cast", _X3, "float8e4m3fn[2,3,4] y", "to=17", "to=17, saturate=0")
    _add("CastLike", _X3, "int32[2,3,4] y", args="x, i", init="int32[1] i = {1}")
    _add(
        "CastLike",
        _X3,
        "float8e4m3fn[2,3,4] y",
        "",
        "saturate=0",
        args="x, f8",
        init="float8e4m3fn[1] f8 = {1}",
    )
    _add("Clip", _X3, _Y3, "", "min=-0.5", "max=0.3", "min=-0.5, max=0.3")
    for args in ("x, low", "x, , high", "x, low, high", "x, high, low"):
        _add("Clip", _X3, _Y3, args=args, init="float low = {-0.5}, float high = {0.3}")
    for op in ("Abs", "Ceil", "Erf", "Exp", "Floor", "Neg", "Relu", "Sigmoid", "Sign", "Tanh", "Identity"):
        _add(op, "float[2,3] x", "float[2,3] y")
    for op in ("LeakyRelu", "Elu", "ThresholdedRelu"):
        _add(op, "float[2,3] x", "float[2,3] y", "", "alpha=0.3")
    _add("CumSum", _X3, _Y3, "", "exclusive=1", "reverse=1, exclusive=1", args="x, a", init="int64 a = {1}")
    _add("Gemm", "float[2,3] x, float[3,4] w, float[4] b", "float[2,4] y", "", "alpha=0.5, beta=2.0")
    _add("Gemm", "float[3,2] x, float[4,3] w, float[2,1] b", "float[2,4] y", "transA=1, transB=1")
    _add("Gemm", "float[2,3] x, float[3,4] w", "float[2,4] y", "", "alpha=0.5")
    _add("DFT", "float[2,8,6,1] x", _Y4, "", "axis=1", "axis=2", "axis=1, onesided=1")
    _add("DFT", "float[2,8,6,2] x", _Y4, "inverse=1", "axis=2, inverse=1")
    _add("DFT", "float[2,8,6,1] x", _Y4, "", "axis=2", args="x, n", init="int64 n = {5}")
    _add("DFT", "float[2,8,6,1] x", _Y4, args="x, , a", init="int64 a = {2}")
    for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"):
        op, p3 = f"Reduce{name}", "float[2,3,4] p"
        _add(op, p3, _Y3, "", "axes=[1]", "axes=[0,2]", "axes=[-1]", "keepdims=1", "axes: ints = []")
        _add(op, p3, "float[A] y", "axes=[-1,0], keepdims=0")
        _add(op, p3, "float y", "keepdims=0")
        _add(op, p3, _Y3, "", "noop_with_empty_axes=1", args="p, a", init="int64[1] a = {1}")
        _add(op, p3, _Y3, "noop_with_empty_axes=1")


def _layers() -> None:
    pools = (
        "kernel_shape=[2,3]",
        "kernel_shape=[2,3], strides=[2,2]",
        "kernel_shape=[3,3], strides=[2,1], pads=[1,0,1,2]",
        'kernel_shape=[2,3], strides=[2,2], auto_pad="SAME_UPPER"',
        'kernel_shape=[2,3], strides=[2,2], auto_pad="SAME_LOWER"',
        'kernel_shape=[2,3], auto_pad="VALID"',
        "kernel_shape=[3,3], strides=[2,2], ceil_mode=1",
        "kernel_shape=[3,3], strides=[3,2], pads=[1,1,1,1], ceil_mode=1",
        "kernel_shape=[2,2], dilations=[2,1]",
        "kernel_shape=[2,2], dilations=[2,3], strides=[2,2], pads=[1,1,0,0], ceil_mode=1",
    )
    _add("AveragePool", _X4, _Y4, *pools, *(f"{pool}, count_include_pad=1" for pool in pools))
    _add("MaxPool", _X4, _Y4, *pools)
    indices = f"{_Y4}, int64[A,B,C,D] i"
    _add("MaxPool", _X4, indices, *pools, *(f"{pool}, storage_order=1" for pool in pools))
    _add("LpPool", _X4, _Y4, *pools, *(f"{pool}, p=1" for pool in pools))
    norm = f"{_floats('s', 3)}, {_floats('b', 3)}, {_floats('m', 3)}, float[3] v = {{0.5, 1.5, 2}}"
    forms = ("", "epsilon=0.01", "epsilon=0.01, momentum=0.5", "spatial=1", "training_mode=0")
    _add("BatchNormalization", _X4, _Y4, *forms, args="x, s, b, m, v", init=norm)
    _add("BatchNormalization", "float[4,3] x", "float[4,3] y", *forms, args="x, s, b, m, v", init=norm)
    convs = ("", "pads=[1,0,1,2]", "strides=[2,1]", 'auto_pad="SAME_UPPER", strides=[2,2]')
    convs += ('auto_pad="SAME_LOWER", strides=[2,2]', 'auto_pad="VALID"', "dilations=[2,1]")
    _add("Conv", _X4, _Y4, *convs, args="x, w", init=_floats("w", 1, 3, 3, 2))
    shaped = ("output_shape=[16,9]", 'output_shape=[16,9], auto_pad="SAME_UPPER"')
    shaped += ('output_shape=[16,9], auto_pad="SAME_LOWER"', "output_padding=[1,0], pads=[1,1,0,1]")
    turned = (*convs, *(f"strides=[3,2], {form}" for form in shaped))
    _add("ConvTranspose", "float[2,2,5,4] x", _Y4, *turned, args="x, w", init=_floats("w", 2, 1, 3, 2))
    grid = "float[1,2,4,5] x, float[1,3,3,2] g"
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            form = f'mode="{mode}", padding_mode="{padding}"'
            _add("GridSample", grid, _Y4, form, f"{form}, align_corners=1", until=19)
    _add("GridSample", grid, _Y4)
    boxes = f"{_floats('r', 2, 4)}, int64[2] i = {{0, 0}}".replace("-", "")
    sizes = "output_height=2, output_width=3"
    rois = ("", f"{sizes}, sampling_ratio=2", f'{sizes}, mode="max"', f"{sizes}, spatial_scale=0.5")
    rois += (f'{sizes}, coordinate_transformation_mode="output_half_pixel"',)
    _add("RoiAlign", "float[1,2,6,6] x", _Y4, *rois, args="x, r, i", init=boxes)
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        _recurrent(op, gates)


def _recurrent(op: str, gates: int) -> None:
    extra = {"LSTM": ", input_forget=1", "GRU": ", linear_before_reset=1", "RNN": ""}[op]
    outputs = "float[A,B,C,D] y, float[E,F,G] h" + (", float[E,F,G] c" if op == "LSTM" else "")
    for direction, count in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
        weights = (
            f"float[{count},{2 * gates},3] w, float[{count},{2 * gates},2] r, float[{count},{4 * gates}] b"
        )
        form = f'hidden_size=2, direction="{direction}"'
        _add(op, f"float[4,2,3] x, {weights}", outputs, form, f"{form}, clip=0.5", form + extra)
    weights = f"float[1,{2 * gates},3] w, float[1,{2 * gates},2] r"
    _add(op, f"float[4,2,3] x, {weights}", _Y4, "hidden_size=2", "hidden_size=2, layout=0")


def _numbers_and_places() -> None:
    grid = "float s = {0.05}, uint8 z = {7}, float[3] t = {0.1,0.2,0.3}, uint8[3] n = {1,2,3}"
    for op, ends in (("QuantizeLinear", ("float", "uint8")), ("DequantizeLinear", ("uint8", "float"))):
        for args, forms in (("s, z", ("", "axis=0")), ("s", ("",)), ("t, n", ("", "axis=1", "axis=-1"))):
            _add(op, f"{ends[0]}[2,3] u", f"{ends[1]}[2,3] y", *forms, args=f"u, {args}", init=grid)
    for op in ("Hardmax", "LogSoftmax", "Softmax"):
        _add(op, _X3, _Y3, "", "axis=0", "axis=1", "axis=2", "axis=-1", "axis=-2", "axis=-3")
        _add(op, "float[3,4] x", "float[3,4] y", "", "axis=0", "axis=1")
        _add(op, "float[5] x", "float[5] y", "axis=0")
        for shape in ("2,0,4", "2,3,0", "0,3,4", "0,3,0"):
            _add(op, f"float[{shape}] x", f"float[{shape}] y", "", "axis=2", "axis=0")
    one, two = "float[1] y", "float[2] y"
    for kind, form in (
        ("float y", "value_float=0.5"),
        ("int64 y", "value_int=3"),
        (two, "value_floats=[0.5,1.0]"),
    ):
        _add("Constant", "float[1] x", kind, form, args=" ")
    for kind, form in (("int64[2] y", "value_ints=[3,4]"), (one, "value=float[1] {2}")):
        _add("Constant", "float[1] x", kind, form, args=" ")
    kept = "float[2,3,4] y"
    _add("Dropout", _X3, kept, "", "ratio=0.3", "seed=3")
    _add("Dropout", _X3, f"{kept}, bool[2,3,4] m", "", "ratio=0.3")
    _add("Dropout", _X3, f"{kept}, float[2,3,4] m", "", "ratio=0.3")
    for args in ("x, r", "x, r, t", "x, , t"):
        _add("Dropout", _X3, kept, args=args, init="float r = {0.4}, bool t = {0}")
    _add(
        "DepthToSpace",
        "float[1,8,2,3] x",
        _Y4,
        "blocksize=2",
        'blocksize=2, mode="DCR"',
        'blocksize=2, mode="CRD"',
    )
    _add("Flatten", _X3, "float[A,B] y", "", "axis=0", "axis=2", "axis=3", "axis=-1", "axis=-2")
    _add("GatherND", _X3, "float[A] y", args="x, i", init="int64[2,3] i = {1,0,-1,0,2,3}")
    _add("GatherND", _X3, "float[A,B] y", "batch_dims=1", args="x, i", init="int64[2,1] i = {1,0}")
    edges = "int64[4] e = {1,1,1,2}, float v = {0.5}"
    pads = ("pads=[1,0,2,1]", "pads=[1,0,2,1], value=0.5", "pads=[-1,0,1,-1]")
    pads += ('pads=[1,1,1,2], mode="reflect"', 'pads=[1,0,2,1], mode="edge"')
    _add("Pad", "float[2,3] x", "float[A,B] y", *pads)
    modes = ("", 'mode="reflect"', 'mode="edge"', 'mode="constant"')
    _add("Pad", "float[2,3] x", "float[A,B] y", *modes, args="x, e", init=edges)
    _add("Pad", "float[2,3] x", "float[A,B] y", args="x, e, v", init=edges)
    _add("Reshape", _X3, "float[A,B] y", "", "allowzero=0", args="x, s", init="int64[2] s = {0,-1}")
    updates = "int64[1,2,2] i = {1,0,0,1}, float[1,2,2] w = {9,8,7,6}"
    _add("Scatter", _X3, _Y3, "", "axis=1", "axis=-1", args="x, i, w", init=updates)
    _add("ScatterElements", _X3, _Y3, "", "axis=1", "axis=-1", args="x, i, w", init=updates)
    reductions = tuple(f'reduction="{name}"' for name in ("none", "add", "mul", "max", "min"))
    _add("ScatterElements", _X3, _Y3, *reductions, args="x, i, w", init=updates)
    rows = "int64[2,2] i = {1,0,0,2}, float[2,4] w = {9,8,7,6,5,4,3,2}"
    _add("ScatterND", _X3, _Y3, "", *reductions, args="x, i, w", init=rows)
    _add("Shape", _X3, "int64[A] y", "", "start=1", "end=-1", "start=-2, end=3")


def _parts() -> None:
    slices = (
        "starts=[0,1], ends=[2,3]",
        "starts=[0,-2], ends=[2,1000]",
        "axes=[1,2], starts=[0,1], ends=[-1,3]",
    )
    _add("Slice", _X3, _Y3, *slices, "axes=[2], starts=[1], ends=[9223372036854775807]")
    places = "int64[2] s = {0,1}, int64[2] e = {1,3}, int64[2] a = {2,1}, int64[2] t = {1,2}"
    _add("Slice", _X3, _Y3, args="x, s, e", init=places)
    _add("Slice", _X3, _Y3, args="x, s, e, a, t", init=places)
    two, three = "float[A,B] y, float[C,D] z", "float[A,B] y, float[C,D] z, float[E,F] w"
    _add(
        "Split", "float[4,6] x", two, "", "axis=1", "axis=-1", "axis=1, split=[2,4]", "axis=1, num_outputs=2"
    )
    _add("Split", "float[4,6] x", two, "axis=1", args="x, s", init="int64[2] s = {2,4}")
    _add("Split", "float[4,6] x", three, "axis=1", "axis=1, split=[1,2,3]", "axis=1, num_outputs=3")
    _add("Squeeze", "float[1,3,1] x", "float[A] y", "", "axes=[0,2]", "axes=[-1,0]")
    _add("Squeeze", "float[1,3,1] x", "float[A,B] y", "axes=[0]", "axes=[-1]")
    _add("Unsqueeze", "float[3] x", "float[A,B] y", "axes=[0]", "axes=[1]", "axes=[-1]")
    _add("Unsqueeze", "float[3] x", _Y3, "axes=[0,2]", "axes=[2,0]", "axes=[-1,0]")
    best = f"{_Y3}, int64[A,B,C] i"
    _add("TopK", _X3, best, "k=2", "k=2, axis=1", "k=1, axis=0")
    sides = ("", "axis=1", "axis=-2", "largest=0", "largest=0, sorted=1, axis=0")
    _add("TopK", _X3, best, *sides, args="x, k", init="int64[1] k = {2}")
    optional = "(float[2] x) => (bool y) { o = Optional(x) y = OptionalHasElement(o) }"
    _FORMS.append(("OptionalHasElement", optional, 15, NEWEST))
    scan = """(float[2,2] x, float[2] s) => (float[2] r, float[A,B] y) { r, y = Scan <num_scan_inputs=1, %s
        body = b (float[2] p, float[2] q) => (float[2] t, float[2] o) { t = Add(p, q) o = Abs(p) }>(s, x) }"""
    for form in ("scan_input_directions=[1],", "scan_output_directions=[1],", "scan_input_axes=[1],", ""):
        _FORMS.append(("Scan", scan % form, 9, NEWEST))
    loop = """(float[2] x) => (float[2] y, float[K,2] z) <int64 n = {3}, bool on = {1}> { y, z = Loop (%s x)
        <body = b (int64 i, bool g, float[2] s) => (bool m, float[2] r, float[2] o) {
            m = Identity(g) r = Add(s, x) o = Exp(r) }> }"""
    for text in ("n, on,", "n, ,"):
        _FORMS.append(("Loop", loop % text, OLDEST, NEWEST))
    branch = """(float[2] x) => (float[A] y) <bool c = {1}> { y = If (c)
        <then_branch = t () => (float[2] p) { q = Unsqueeze <axes=[0]> (x) p = Squeeze <axes=[0]> (q) },
         else_branch = e () => (float[2] n) { n = Neg(x) }> }"""
    _FORMS.append(("If", branch, OLDEST, NEWEST))


def _resizes() -> None:
    for scales in ((1, 1, 2, 2), (1, 1, 0.5, 0.5), (1, 1, 1.7, 2.3), (1, 1, 0.6, 0.35), (1, 1, 1.7, 0.6)):
        init = f"float[4] s = {{{', '.join(map(str, scales))}}}"
        for mode in ('mode="nearest"', 'mode="linear"'):
            _add("Resize", "float[1,2,5,6] x", _Y4, mode, args="x, s", init=init)
            if min(scales) >= 1:  # otherwise ONNX Runtime refuses it
                _add("Upsample", "float[1,2,5,6] x", _Y4, mode, args="x, s", init=init)
                _add("Upsample", "float[1,2,5,6] x", _Y4, f"{mode}, scales={[float(s) for s in scales]}")
            for kind in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"):
                form = f'{mode}, coordinate_transformation_mode="{kind}"'
                _add("Resize", "float[1,2,5,6] x", _Y4, form, args="x, , s", init=init, since=13)
        for kind in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
            form = f'mode="nearest", nearest_mode="{kind}"'
            _add("Resize", "float[1,2,5,6] x", _Y4, form, args="x, r, s", init=f"{init}, float[0] r = {{}}")
        for form in ('mode="cubic"', 'mode="cubic", cubic_coeff_a=-0.5', 'mode="cubic", exclude_outside=1'):
            _add("Resize", "float[1,2,5,6] x", _Y4, form, args="x, r, s", init=f"{init}, float[0] r = {{}}")


for _fill in (_arithmetic, _layers, _numbers_and_places, _parts, _resizes):
    _fill()


@cache
def forms(opset: int) -> Sequence[tuple[str, onnx.ModelProto]]:
    """Return operator and model of each form whose operator has a definition of that opset (7: or older)."""
    return tuple(_forms(opset))


def _forms(opset: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    for op, text, since, until in _FORMS:
        found = definition(op, opset)
        if (
            found is None
            or not since <= opset <= until
            or opset not in (max(found.since_version, OLDEST), since)
        ):
            continue
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> form {text}')
        try:
            onnx.checker.check_model(model, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            continue  # another definition of the operator takes this form
        yield op, model
