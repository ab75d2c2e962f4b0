"""Oracle: NumPy in float64 on decoded weights. A product of K float32 numbers, summed in any order, is within
K 2^-23 of it, relative to the sum of magnitudes; the bias and the scales add three roundings."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.helpers import blocked_nets, build
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset
from transforms.write_matmul_nbits import write_matmul_nbits

ROUNDINGS = 3


def _written(source: onnx.ModelProto, **changes: object) -> tuple[onnx.ModelProto, onnx.ModelProto, int]:
    """Return a quantized model, the same with MatMulNBits, and how many of these there are."""
    graph = graph_proto.import_model(source)
    quantize_graph(graph, preset("W4").with_(optimize=False, **changes))
    plain = graph_proto.export_model(graph)
    count = write_matmul_nbits(graph, accuracy_level=1)
    assert write_matmul_nbits(graph) == 0
    model = graph_proto.export_model(graph)
    onnx.checker.check_model(model, full_check=True)
    return plain, model, count


def _run(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()  # no fusions of other blocks, which round inputs
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return np.asarray(onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feed)[0])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(33, 200),
    st.sampled_from(["int2", "uint2", "int4", "uint4", "int8", "uint8"]),
    st.sampled_from([16, 32, 64, 128, 256]),
    st.sampled_from(["MatMul", "Gemm", "turned", "biased"]),
    st.integers(1, 5),
    st.integers(0, 99),
)
def test_products_are_those_of_the_decoded_weights(
    outputs: int, inputs: int, weight: str, block: int, form: str, rows: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    shape = (outputs, inputs) if form == "turned" else (inputs, outputs)
    weights = {
        "w": (random.standard_normal(shape) * np.exp(random.standard_normal(shape))).astype(np.float32)
    }
    if form == "biased":
        weights["b"] = random.standard_normal(outputs).astype(np.float32)
    op, attrs = ("MatMul", {}) if form == "MatMul" else ("Gemm", {"transB": int(form == "turned")})
    node = helper.make_node(op, ["x", *weights], ["y"], "product", **attrs)
    ends = build.value("x", ["n", inputs]), build.value("y", ["n", outputs])
    plain, model, count = _written(
        build.model([node], [ends[0]], [ends[1]], weights), weight=weight, block_size=block
    )
    assert count == (inputs >= block)
    ((decoded),) = blocked_nets.decoded(plain).values()
    matrix = (decoded.T if form == "turned" else decoded).astype(np.float64)
    x, b = random.standard_normal((rows, inputs)).astype(np.float32), weights.get("b", np.zeros(outputs))
    if count:
        sizes = np.abs(x).astype(np.float64) @ np.abs(matrix) + np.abs(b)
        assert (
            np.abs(_run(model, {"x": x}) - (x @ matrix + b)) <= (inputs + ROUNDINGS) * 2.0**-23 * sizes
        ).all()


@pytest.mark.parametrize("weight", ["int2", "int4", "uint4"])
def test_what_cannot_be_written_stays(weight: str) -> None:
    plain, model, count = _written(blocked_nets.products(), weight=weight)
    assert count == 3
    operators = [node.op_type for node in model.graph.node]
    assert operators.count("MatMulNBits") == 3
    assert operators.count("DequantizeLinear") == 2  # a factor, and a short sum
    assert [node.name for node in model.graph.node if node.op_type == "MatMulNBits"] == [
        "first",
        "turned",
        "product",
    ]
    x = {"x": np.random.default_rng(0).standard_normal((4, 100)).astype(np.float32)}
    floats = _run(blocked_nets.with_floats(plain), x)
    np.testing.assert_allclose(_run(model, x), floats, atol=1e-5 * np.abs(floats).max())
    assert _written(blocked_nets.convolutions())[2] == _written(blocked_nets.stacks())[2] == 0


@pytest.mark.parametrize("shape", [(40,), (1,), (1, 40), (3, 40), (3, 1)])
def test_a_bias_has_one_number_for_each_output_or_the_gemm_stays(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(3)
    weights = {
        "w": blocked_nets.numbers(random, 40, 40),
        "b": random.standard_normal(shape).astype(np.float32),
    }
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], "biased")
    ends = build.value("x", [3, 40]), build.value("y", [3, 40])
    plain, model, count = _written(build.model([node], ends[:1], ends[1:], weights))
    assert count == (shape == (40,))
    x = {"x": random.standard_normal((3, 40)).astype(np.float32)}
    floats = _run(blocked_nets.with_floats(plain), x)
    np.testing.assert_allclose(_run(model, x), floats, atol=1e-5 * np.abs(floats).max())


def test_a_weight_of_two_products_keeps_its_other_reader() -> None:
    random = np.random.default_rng(2)
    weights = {"w": blocked_nets.numbers(random, 40, 40)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("Gemm", ["h", "w"], ["y"], "second", alpha=2.0),
    ]
    ends = build.value("x", ["n", 40]), build.value("y", ["n", 40])
    plain, model, count = _written(build.model(nodes, [ends[0]], [ends[1]], weights))
    assert count == 1
    assert [node.op_type for node in model.graph.node].count("DequantizeLinear") == 1
    x = {"x": random.standard_normal((3, 40)).astype(np.float32)}
    floats = _run(blocked_nets.with_floats(plain), x)
    np.testing.assert_allclose(_run(model, x), floats, atol=1e-5 * np.abs(floats).max())


@pytest.mark.parametrize("weight", ["int4", "uint4", "int8"])
def test_scales_are_stored_in_float16_where_that_has_them(weight: str) -> None:
    """Those of 4 bits are chosen so; those of 8 bits are the largest number over 127."""
    _, model, _ = _written(blocked_nets.products(), weight=weight)
    stored = {one.name: one.data_type for one in model.graph.initializer}
    casts = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Cast"}
    scales = [node.input[2] for node in model.graph.node if node.op_type == "MatMulNBits"]
    kinds = {stored[casts.get(name, name)] for name in scales}
    assert kinds == {onnx.TensorProto.FLOAT if weight == "int8" else onnx.TensorProto.FLOAT16}


def test_scales_of_both_signs_reach_the_runtime() -> None:
    """Oracle: the largest number of each block has the integer -8, whatever its sign."""
    weights = np.zeros((64, 3), np.float32)
    weights[5], weights[40] = (8, -8, 4), (-2, 2, 1)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    ends = build.value("x", ["n", 64]), build.value("y", ["n", 3])
    _, model, _ = _written(build.model([node], [ends[0]], [ends[1]], {"w": weights}))
    found = _run(model, {"x": np.eye(64, dtype=np.float32)})
    np.testing.assert_array_equal(found, weights)


@pytest.mark.parametrize(
    ("weight", "asked", "level"),
    [
        *(("int4", 1, {4: 1}), ("int8", 1, {8: 1}), ("int4", 4, {4: 4})),
        *(("int2", None, {2: 4, 4: 1}), ("int4", None, {4: 1}), ("int8", None, {8: 4})),
    ],
)
def test_accuracy_level_is_written(weight: str, asked: int | None, level: dict[int, int]) -> None:
    """For numbers of so many bits; of the weights of 2 bits two have 4."""
    graph = graph_proto.import_model(blocked_nets.products())
    quantize_graph(graph, preset("W4").with_(weight=weight))
    write_matmul_nbits(graph, accuracy_level=asked)
    written = [node.attrs for node in graph.nodes if node.op == "MatMulNBits"]
    assert {one["bits"]: one["accuracy_level"] for one in written} == level


def test_other_accuracy_levels_are_refused() -> None:
    with pytest.raises(ValueError, match="accuracy_level is 2, legal are 1, 4"):
        write_matmul_nbits(graph_proto.import_model(blocked_nets.products()), accuracy_level=2)
