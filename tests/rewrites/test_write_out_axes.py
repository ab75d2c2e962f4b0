"""Oracle: ONNX Runtime without optimization on the model before, bit for bit; onnx's full checker."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import corpus
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.convert_bf16 import Bf16Options, convert_bf16
from transforms.graph import walk
from transforms.lift_constants import lift_constants
from transforms.lower_opset import lower_opset
from transforms.model.graph_proto import export_model
from transforms.optimize import optimize
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.scheme import preset
from transforms.write_out_axes import write_out_axes

CONSTANTS = """<int64[2] last = {3, 2}, int64[2] minus = {-1, -2}, int64[4] all = {0, 1, 3, 2},
    int64[1] one = {1},
    int64[4] p = {1, 2, 0, 1}, int64[8] q = {0, 0, 1, 2, 0, 0, 2, 1}, int64[2] r = {1, 0}, float v = {0.5},
    float[2] up = {2.0, 1.5}, float[4] roi = {0.1, 0.2, 0.9, 0.8}, int64[2] sizes = {10, 3}>"""
CROP = 'coordinate_transformation_mode = "tf_crop_and_resize"'
NODES = (
    "Pad (a, p, , last)",
    "Pad (a, p, v, minus)",
    'Pad <mode = "reflect"> (a, p, , minus)',
    'Pad <mode = "edge"> (a, q, , all)',
    'Pad <mode = "wrap"> (a, r, , one)',
    "Resize <axes = [3, 2]> (a, , up)",
    'Resize <axes = [-1, 2], mode = "linear", antialias = 1> (a, , up)',
    f'Resize <axes = [2, 3], mode = "linear", {CROP}> (a, roi, up)',
    "Resize <axes = [2, 3]> (a, roi, up)",
    'Resize <axes = [3, 2], mode = "linear"> (a, , , sizes)',
    "CenterCropPad <axes = [3, 2]> (a, sizes)",
    "CenterCropPad <axes = [-1, -3]> (a, sizes)",
)
PLAIN = RunOptions(optimize=False)


def between_transposes(
    node: str, *, shape: str = "2,6,8,3", more: str = "", opset: int = 19
) -> onnx.ModelProto:
    text = f"""(float[{shape}] x{more}) => (float[A,B,C,D] y) {CONSTANTS} {{
        a = Transpose <perm = [0, 3, 1, 2]> (x) b = {node} y = Transpose <perm = [0, 2, 3, 1]> (b) }}"""
    return corpus.parse(text, opset=19)


def loaded(model: onnx.ModelProto) -> gs.Graph:
    graph = model_io.load(model)
    lift_constants(graph)
    return graph


def holds(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> None:
    """The model is written without axes, once, and computes the same in all sessions."""
    expected = open_model(model_io.load(model), PLAIN).run(feed)["y"]
    graph = loaded(model)
    assert write_out_axes(graph) == 1 and write_out_axes(graph) == 0
    written = export_model(graph)
    onnx.checker.check_model(written, full_check=True)
    np.testing.assert_array_equal(open_model(graph, PLAIN).run(feed)["y"], expected)
    np.testing.assert_array_equal(open_model(graph).run(feed)["y"], expected)
    optimize(graph)
    np.testing.assert_array_equal(open_model(graph, PLAIN).run(feed)["y"], expected)


@pytest.mark.parametrize("node", NODES)
def test_between_transposes(node: str) -> None:
    model = between_transposes(node)
    holds(model, corpus.feeds(model))


@pytest.mark.parametrize("node", [node for node in NODES if "aspect" not in node])
def test_free_sizes_are_those_of_the_run(node: str) -> None:
    model = between_transposes(node, shape="N,H,W,C")
    holds(model, {"x": np.random.default_rng(3).random((2, 6, 8, 3), np.float32)})


@pytest.mark.parametrize(
    ("node", "more", "values"),
    (
        ("Pad (a, given, , last)", "int64[4]", [1, 2, 0, 1]),
        ("Resize <axes = [3, 2]> (a, , , given)", "int64[2]", [10, 3]),
        ("CenterCropPad <axes = [-1, 1]> (a, given)", "int64[2]", [10, 3]),
        ("Pad (a, p, , given)", "int64[2]", [3, -2]),
        ("Pad (a, p, v, given)", "int32[2]", [-4, 1]),
    ),
)
@pytest.mark.parametrize("shape", ("2,6,8,3", "N,6,8,3"))
def test_what_is_computed_is_put_in_its_places(node: str, more: str, values: list[int], shape: str) -> None:
    feed = {
        "x": np.random.default_rng(3).random((2, 6, 8, 3), np.float32),
        "given": np.array(values, more.partition("[")[0]),
    }
    holds(between_transposes(node, shape=shape, more=f", {more} given"), feed)


@pytest.mark.parametrize(
    ("node", "more"),
    (
        ("Resize <axes = [3, 2]> (a, , given)", ", float[2] given"),
        ('Resize <axes = [2, 3], keep_aspect_ratio_policy = "not_larger"> (a, , , sizes)', ""),
        ("CenterCropPad <axes = [-1, 1]> (a, given)", ", int32[2] given"),
        ("Pad (a, q)", ""),
        ("Resize (a, , given)", ", float[4] given"),
    ),
)
def test_what_cannot_be_written_out_stays_as_it_is(node: str, more: str) -> None:
    graph = loaded(between_transposes(node, more=more))
    before = export_model(graph)
    assert write_out_axes(graph) == 0
    assert export_model(graph) == before


@pytest.mark.parametrize("maker", ("Identity (last)", "Add (minus, one)", "Cast <to = 6> (last)"))
def test_axes_that_nodes_make_of_constants(maker: str) -> None:
    text = f"""(float[2,6,8,3] x) => (float[A,B,C,D] y) {CONSTANTS} {{
        s = {maker} a = Transpose <perm = [0, 3, 1, 2]> (x) b = Pad <mode = "edge"> (a, p, , s)
        y = Transpose <perm = [0, 2, 3, 1]> (b) }}"""
    model = corpus.parse(text, opset=19)
    holds(model, corpus.feeds(model))


def test_scales_of_shapes_and_nodes_in_bodies() -> None:
    text = f"""(float[1,2,4,6] x, bool t) => (float[A,B,C,D] y) {CONSTANTS} {{
        y = If (t) <then_branch = then () => (float[E,F,G,H] b) {{
            s = Shape <start = 2> (x) f = Cast <to = 1> (s) g = Div(f, f) h = Add(g, g)
            b = Resize <axes = [2, 3]> (x, , h) }}, else_branch = other () => (float[E,F,G,H] c) {{
            c = Pad(x, p, , last) }}> }}"""
    model = corpus.parse(text, opset=19)
    graph = loaded(model)
    names = [node.name for node in walk.nodes(graph)]
    assert write_out_axes(graph) == 2
    assert set(names) <= {node.name for node in walk.nodes(graph)}
    onnx.checker.check_model(export_model(graph), full_check=True)
    for choice in (True, False):
        feed = {"x": np.random.default_rng(3).random((1, 2, 4, 6), np.float32), "t": np.array(choice)}
        expected = open_model(model_io.load(model), PLAIN).run(feed)["y"]
        np.testing.assert_array_equal(open_model(graph).run(feed)["y"], expected)


def test_a_pad_without_axes_exists_in_older_opsets() -> None:
    model = between_transposes("Pad (a, p, , last)")
    graph = loaded(model)
    write_out_axes(graph)
    assert lower_opset(graph, 13) == 1
    feed = corpus.feeds(model)
    expected = open_model(model_io.load(model), PLAIN).run(feed)["y"]
    np.testing.assert_array_equal(open_model(graph).run(feed)["y"], expected)


@pytest.mark.parametrize("optimized", (True, False))
def test_conversions_write_axes_out(optimized: bool) -> None:
    model = between_transposes("Pad (a, p, , last)")
    graph, feed = loaded(model), corpus.feeds(model)
    convert_bf16(graph, Bf16Options(optimize=optimized))
    expected = open_model(model_io.load(model), PLAIN).run(feed)["y"]
    step = 2.0**-8  # of bfloat16
    np.testing.assert_allclose(open_model(graph).run(feed)["y"], expected, rtol=step)


@pytest.mark.parametrize("node", ("Pad (a, p, , last)", "Resize <axes = [3, 2]> (a, , , sizes)"))
def test_between_layers_of_integers(node: str) -> None:
    text = f"""(float[1,1,8,8] x) => (float[A,B,C,D] y) {CONSTANTS[:-1]}, float[1,2,1,1] k = {{0.5, 2}}> {{
        a = Conv(x, kernel) b = {node} y = Conv(b, k) }}"""
    model = corpus.parse(text, opset=19)
    graph, feed = model_io.load(model), corpus.feeds(model)
    quantize_graph(graph, preset("U8S8"), CalibrationData([feed]))
    found, expected = (open_model(g).run(feed)["y"] for g in (graph, model_io.load(model)))
    few = 0.05 * np.abs(expected).max()
    assert np.abs(found - expected).max() < few, "a few steps of 1/127 of the largest"
