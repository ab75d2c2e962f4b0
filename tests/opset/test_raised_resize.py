"""Oracle: ONNX Runtime's own Resize of opset 10 and Upsample, bit for bit."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.helpers import conversion
from transforms import model_io
from transforms.convert_opset import convert_opset
from transforms.graph import walk
from transforms.model import graph_proto

_SCALES = (0.3, 0.37, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 1.77, 2.0, 2.3, 3.0)


def _parse(text: str, opset: int) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> main {text}')


def _raise(model: onnx.ModelProto, version: int = 13) -> onnx.ModelProto:
    graph = model_io.load(model)
    assert convert_opset(graph, version) == 1
    raised = graph_proto.export_model(graph)
    onnx.checker.check_model(raised, full_check=True)
    return raised


def _assert_same(model: onnx.ModelProto, raised: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    assert conversion.same(conversion.run(raised, feeds), conversion.run(model, feeds))


def _image(*shape: int, dtype: object = np.float32) -> np.ndarray:
    return (np.random.default_rng(4).standard_normal(shape) * 9).astype(dtype)


@pytest.mark.parametrize("mode", ("nearest", "linear"))
@pytest.mark.parametrize("kind", ("float", "uint8", "int32"))
def test_constant_scales_up_down_and_mixed(mode: str, kind: str) -> None:
    """All pairs of scales, those that leave a size as it is among them, in one model."""
    pairs = [pair for pair in product(_SCALES, repeat=2) if 1.0 not in pair or mode == "linear"]
    nodes = " ".join(f'y{i} = Resize <mode = "{mode}"> (x, s{i})' for i in range(len(pairs)))
    ends = ", ".join(f"{kind}[A{i},B{i},C{i},D{i}] y{i}" for i in range(len(pairs)))
    scales = ", ".join(f"float[4] s{i} = {{1, 1, {a}, {b}}}" for i, (a, b) in enumerate(pairs))
    model = _parse(f"({kind}[1,2,3,5] x) => ({ends}) <{scales}> {{ {nodes} }}", 10)
    dtype = {"float": np.float32, "uint8": np.uint8, "int32": np.int32}[kind]
    _assert_same(model, _raise(model), {"x": np.abs(_image(1, 2, 3, 5, dtype=dtype))})


@pytest.mark.parametrize("version", (13, 18, 22))
@pytest.mark.parametrize("mode", ("nearest", "linear"))
def test_upsample_of_both_definitions(mode: str, version: int) -> None:
    for scales in ("1.0, 1.0, 2.0, 2.0", "1.0, 1.0, 1.5, 2.3"):
        text = "(float[1,2,4,5] x) => (float[A,B,C,D] y)"
        seven = _parse(f'{text} {{ y = Upsample <mode = "{mode}", scales = [{scales}]> (x) }}', 7)
        nine = _parse(f'{text} <float[4] s = {{{scales}}}> {{ y = Upsample <mode = "{mode}"> (x, s) }}', 9)
        for model in (seven, nine):
            raised = _raise(model, version)
            assert [node.op_type for node in raised.graph.node if node.op_type != "Constant"] == ["Resize"]
            _assert_same(model, raised, {"x": _image(1, 2, 4, 5)})


def test_scales_made_of_shapes() -> None:
    """From 3 x 5 up, down, up along one axis and down along the other, and with one size kept."""
    text = """(float[1,2,H,W] x, float[I,J] like) => (float[A,B,C,D] y) <float[2] ones = {1, 1}> {
        s = Shape(x) wanted = Shape(like) have = Slice <axes = [0], starts = [2], ends = [4]> (s)
        a = Cast <to = 1> (wanted) b = Cast <to = 1> (have) q = Div(a, b)
        scales = Concat <axis = 0> (ones, q) y = Resize <mode = "nearest"> (x, scales) }"""
    model = _parse(text.replace("Slice <axes = [0], starts = [2], ends = [4]> (s)", "Gather(s, two)"), 10)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 3]), "two"))
    raised = _raise(model)
    for height, width in product((2, 3, 4, 6, 7, 9), repeat=2):
        feeds = {"x": _image(1, 2, 3, 5), "like": np.zeros((height, width), np.float32)}
        _assert_same(model, raised, feeds)


def test_scales_that_constants_make_are_constants() -> None:
    text = """(float[1,2,3,5] x) => (float[A,B,C,D] y) {
        one = Constant <value = float[2] {1, 1}> () two = Constant <value = float[2] {2, 1.5}> ()
        scales = Concat <axis = 0> (one, two) y = Resize <mode = "nearest"> (x, scales) }"""
    model = _parse(text, 10)
    raised = _raise(model)
    (resize,) = [node for node in raised.graph.node if node.op_type == "Resize"]
    assert {a.name: a.s for a in resize.attribute}["nearest_mode"] == b"floor"
    _assert_same(model, raised, {"x": _image(1, 2, 3, 5)})


def test_scales_that_are_an_input() -> None:
    text = '(float[1,1,3,4] x, float[4] s) => (float[A,B,C,D] y) { y = Resize <mode = "%s"> (x, s) }'
    reason = r"Resize 'y': its scales 's' are neither constant nor computed from shapes$"
    with pytest.raises(model_io.ModelError, match=reason):
        convert_opset(model_io.load(_parse(text % "nearest", 10)), 13)
    linear = _parse(text % "linear", 10)
    feeds = {"x": _image(1, 1, 3, 4), "s": np.array([1, 1, 1.3, 0.6], np.float32)}
    _assert_same(linear, _raise(linear), feeds)


def test_in_bodies_and_functions() -> None:
    """In both branches of an If, with a scale of the graph around it, in a body in a body, and inlined."""
    body = """(float[1,1,4,4] x) => (float[A,B,C,D] y) <bool c = {1}, float[4] s = {1, 1, 1.5, 0.4}> {
        y = If (c) <then_branch = t () => (float[A,B,C,D] p) {
                p = If (c) <then_branch = u () => (float[A,B,C,D] q) { q = Resize <mode = "nearest"> (x, s) },
                            else_branch = v () => (float[A,B,C,D] r) {
                                r = Resize <mode = "linear"> (x, s) }> },
            else_branch = e () => (float[A,B,C,D] n) { n = Resize <mode = "nearest"> (x, s) }> }"""
    model = _parse(body, 10)
    raised = _raise(model)
    _assert_same(model, raised, {"x": _image(1, 1, 4, 4)})
    names = [tensor.name for node in walk.nodes(model_io.load(raised)) for tensor in node.outputs]
    assert len(names) == len(set(names)), "none hides one of the graph around it"
    function = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 10, "f": 1]>
        main (float[1,1,4,4] x) => (float[A,B,C,D] y) <float[4] s = {1, 1, 1.5, 2}> { y = f.Up(x, s) }
        <domain: "f", opset_import: ["": 10]> Up (a, b) => (c) { c = Resize <mode = "nearest"> (a, b) }""")
    _assert_same(function, _raise(function), {"x": _image(1, 1, 4, 4)})


def test_a_function_of_another_opset_is_refused() -> None:
    """The onnx package does not inline it, and whoever raises the model would raise the function, too."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 12, "f": 1]>
        main (float[1,1,4,4] x) => (float[A,B,C,D] y) <float[4] s = {1, 1, 1.5, 2}> { y = f.Up(x, s) }
        <domain: "f", opset_import: ["": 10]> Up (a, b) => (c) { c = Resize <mode = "nearest"> (a, b) }""")
    with pytest.raises(model_io.ModelError, match=r"Up 'y': a local function of opset 10, not 12$"):
        convert_opset(model_io.load(model), 13)


@pytest.mark.parametrize("scales", ("1, 1, 2, 2", "1, 1, 1.5, 1.7", "1, 1, 0.5, 0.75"))
def test_a_layer_and_a_resize_keep_every_bit(scales: str, tmp_path: Path) -> None:
    """Before, half_pixel and round_prefer_floor moved pixels: 5.6 dB in all formats."""
    text = f"""(float[1,3,8,8] x) => (float[A,B,C,D] y) <float[4] s = {{{scales}}}> {{
        a = Conv(x, w) y = Resize <mode = "nearest"> (a, s) }}"""
    model = _parse(text, 10)
    model.graph.initializer.append(onnx.numpy_helper.from_array(_image(4, 3, 3, 3), "w"))
    feeds = {"x": _image(1, 3, 8, 8)}
    _assert_same(model, _raise(model), feeds)
    (expected,) = conversion.run(model, feeds).values()
    results = {}
    for name in ("with_cast", "customqdq"):
        converted = conversion.convert(model, tmp_path, "--format", name)
        (results[name],) = conversion.run(converted, feeds).values()
    (results["bf16"],) = conversion.run_wrapped(
        conversion.convert(model, tmp_path, "--format", "bf16"), feeds
    ).values()
    assert np.array_equal(results["with_cast"], results["customqdq"])
    for found in results.values():
        assert np.linalg.norm(found - expected) < np.linalg.norm(expected) / 100, "better than 40 dB"


def test_empty_scales_of_the_graph_around_are_left_out() -> None:
    """From opset 13 on the checker takes an empty tensor, seen from a body, for scales."""
    text = """(float[1,2,3,5] x, bool c) => (float[A,B,C,D] y)
        <float[0] none = {}, int64[4] sizes = {1, 2, 4, 4}> { y = If (c) <
            then_branch = a () => (float[A,B,C,D] p) { p = Resize <mode = "linear"> (x, none, none, sizes) },
            else_branch = b () => (float[A,B,C,D] q) { q = Identity (x) }> }"""
    model = _parse(text, 12)
    raised = _raise(model)
    bodies = [attribute.g for attribute in raised.graph.node[0].attribute]
    (resize,) = [node for body in bodies for node in body.node if node.op_type == "Resize"]
    assert list(resize.input)[2] == ""
    for chosen in (True, False):
        _assert_same(model, raised, {"x": _image(1, 2, 3, 5), "c": np.array(chosen)})
