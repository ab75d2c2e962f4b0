"""Oracle: NumPy in float32 with ml_dtypes' rounding to bfloat16 after every operator."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests.helpers import corpus
from transforms import model_io
from transforms.convert_opset import convert_opset
from transforms.convert_type import convert_type
from transforms.model import graph_proto
from transforms.run.run_model import open_model
from transforms.widen_bf16 import widen_bf16

BF16 = TensorProto.BFLOAT16
FLOAT = TensorProto.FLOAT


def bf16(array: np.ndarray) -> np.ndarray:
    """Round to bfloat16, as float32."""
    return np.asarray(array, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def value(name: str, kind: int, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def bf16_weight(name: str, array: np.ndarray) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.asarray(array).astype(ml_dtypes.bfloat16), name)


def model_of(
    nodes: list, inputs: list, outputs: list, weights: list = (), opset: int = 17
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "g", inputs, outputs, list(weights))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.contrib", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def widen(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    graph = graph_proto.import_model(model)
    count = widen_bf16(graph)
    assert widen_bf16(graph) == 0, "a second run has nothing to do"
    widened = graph_proto.export_model(graph)
    onnx.checker.check_model(widened, full_check=True)
    return widened, count


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)


def two_layers(*, typed: bool = True) -> onnx.ModelProto:
    """x -> MatMul -> Add -> Relu -> y with everything bfloat16, inputs and outputs too."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="matmul"),
        helper.make_node("Add", ["a", "c"], ["b"], name="add"),
        helper.make_node("Relu", ["b"], ["y"], name="relu"),
    ]
    weights = [bf16_weight("w", W), bf16_weight("c", np.ones(8))]
    return model_of(nodes, [value("x", BF16, ["n", 8])], [value("y", BF16, ["n", 8])], weights)


def test_the_plain_model_is_refused_by_the_runtime() -> None:
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        run(two_layers(), x=X)


def test_every_node_rounds_once() -> None:
    widened, count = widen(two_layers())
    product = bf16(bf16(X) @ bf16(W))
    assert np.array_equal(run(widened, x=X)[0], np.maximum(bf16(product + 1), 0))
    assert count == 5  # three nodes, one input, one output


def test_names_and_types_of_the_interface() -> None:
    widened, _ = widen(two_layers())
    ends = [*widened.graph.input, *widened.graph.output]
    assert [(v.name, v.type.tensor_type.elem_type) for v in ends] == [("x", FLOAT), ("y", FLOAT)]


def test_new_names_derive_from_the_tensor_and_are_stable() -> None:
    first, second = widen(two_layers())[0], widen(two_layers())[0]
    assert first.SerializeToString() == second.SerializeToString()
    assert {"a_float32", "a_unrounded"} <= {name for node in first.graph.node for name in node.output}


def test_float_model_is_left_alone() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    _, count = widen(model_of(nodes, [value("x", FLOAT, [4])], [value("y", FLOAT, [4])]))
    assert count == 0


def test_one_cast_per_tensor_for_many_consumers() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=BF16),
        helper.make_node("Mul", ["h", "h"], ["s"]),
        helper.make_node("Add", ["s", "h"], ["t"]),
        helper.make_node("Cast", ["t"], ["y"], to=FLOAT),
    ]
    widened, count = widen(model_of(nodes, [value("x", FLOAT, [4, 8])], [value("y", FLOAT, [4, 8])]))
    assert count == 2
    assert sum(node.input[0] == "h" for node in widened.graph.node if node.op_type == "Cast") == 1
    assert np.array_equal(run(widened, x=X)[0], bf16(bf16(bf16(X) ** 2) + bf16(X)))


def test_constant_nodes_and_constant_of_shape() -> None:
    two = bf16_weight("two", [2.0])
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=BF16),
        helper.make_node("Constant", [], ["c"], value=two),
        helper.make_node("Shape", ["h"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["k"], value=bf16_weight("third", [1 / 3])),
        helper.make_node("Mul", ["h", "c"], ["m"]),
        helper.make_node("Add", ["m", "k"], ["a"]),
        helper.make_node("Cast", ["a"], ["y"], to=FLOAT),
    ]
    widened, _ = widen(model_of(nodes, [value("x", FLOAT, [4, 8])], [value("y", FLOAT, [4, 8])]))
    assert np.array_equal(run(widened, x=X)[0], bf16(bf16(X) * 2 + bf16(1 / 3)))


def test_dtype_attribute() -> None:
    nodes = [
        helper.make_node("EyeLike", ["x"], ["e"], dtype=BF16),
        helper.make_node("Cast", ["e"], ["y"], to=FLOAT),
    ]
    widened, count = widen(model_of(nodes, [value("x", FLOAT, [4, 8])], [value("y", FLOAT, [4, 8])]))
    assert np.array_equal(run(widened, x=X)[0], np.eye(4, 8)) and count == 1


def branch(operator: str, name: str) -> onnx.GraphProto:
    """A body that applies an operator to the captured tensor h and the body's own weight."""
    nodes = [helper.make_node(operator, ["h", f"{name}_w"], [f"{name}_y"])]
    weights = [bf16_weight(f"{name}_w", np.full(8, 1 / 3))]
    return helper.make_graph(nodes, name, [], [value(f"{name}_y", BF16, [4, 8])], weights)


@pytest.mark.parametrize(("flag", "operator"), [(True, np.add), (False, np.multiply)])
def test_if_with_captured_tensor(flag: bool, operator: np.ufunc) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=BF16),
        helper.make_node(
            "If", ["flag"], ["r"], then_branch=branch("Add", "yes"), else_branch=branch("Mul", "no")
        ),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    inputs = [value("x", FLOAT, [4, 8]), value("flag", TensorProto.BOOL, [])]
    widened, count = widen(model_of(nodes, inputs, [value("y", BF16, [4, 8])]))
    assert count == 4
    wanted = np.maximum(bf16(operator(bf16(X), bf16(1 / 3))), 0)
    assert np.array_equal(run(widened, x=X, flag=np.array(flag))[0], wanted)


def test_loop_carries_bfloat16() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Mul", ["state", "third"], ["next"]),
            helper.make_node("Add", ["next", "state"], ["trace"]),
        ],
        "body",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("state", BF16, [4, 8])],
        [value("go_on", TensorProto.BOOL, []), value("next", BF16, [4, 8]), value("trace", BF16, [4, 8])],
        [bf16_weight("third", [1 / 3])],
    )
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=BF16),
        helper.make_node("Loop", ["trips", "", "h"], ["last", "traces"], body=body),
    ]
    trips = onnx.numpy_helper.from_array(np.array(3), "trips")
    outputs = [value("last", BF16, [4, 8]), value("traces", BF16, ["t", 4, 8])]
    widened, _ = widen(model_of(nodes, [value("x", FLOAT, [4, 8])], outputs, [trips]))
    state, traces = bf16(X), []
    for _ in range(3):
        following = bf16(state * bf16(1 / 3))
        traces.append(bf16(following + state))
        state = following
    last, trace = run(widened, x=X)
    assert np.array_equal(last, state) and np.array_equal(trace, traces)


def test_scan_body() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["sum", "row"], ["more"]), helper.make_node("Relu", ["more"], ["out"])],
        "body",
        [value("sum", BF16, [8]), value("row", BF16, [8])],
        [value("more", BF16, [8]), value("out", BF16, [8])],
    )
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=BF16),
        helper.make_node("Scan", ["zero", "h"], ["total", "rows"], body=body, num_scan_inputs=1),
    ]
    outputs = [value("total", BF16, [8]), value("rows", BF16, [4, 8])]
    widened, _ = widen(
        model_of(nodes, [value("x", FLOAT, [4, 8])], outputs, [bf16_weight("zero", np.zeros(8))])
    )
    total = np.zeros(8, np.float32)
    for row in bf16(X):
        total = bf16(total + row)
    assert np.array_equal(run(widened, x=X)[0], total)


def test_input_that_is_also_an_output() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    ends = [value("x", BF16, [4, 8])]
    widened, _ = widen(model_of(nodes, ends, [*ends, value("y", BF16, [4, 8])]))
    handed, relu = run(widened, x=X)
    assert np.array_equal(handed, X) and np.array_equal(relu, bf16(np.maximum(X, 0)))


def test_output_that_is_also_consumed() -> None:
    nodes = [helper.make_node("Neg", ["x"], ["m"]), helper.make_node("Abs", ["m"], ["y"])]
    outputs = [value("m", BF16, [4, 8]), value("y", BF16, [4, 8])]
    widened, _ = widen(model_of(nodes, [value("x", BF16, [4, 8])], outputs))
    negated, absolute = run(widened, x=X)
    assert np.array_equal(negated, -bf16(X)) and np.array_equal(absolute, np.abs(bf16(X)))


def test_initializer_that_is_an_output() -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    weight = bf16_weight("w", np.full((4, 8), 1 / 3))
    outputs = [value("y", BF16, [4, 8]), value("w", BF16, [4, 8])]
    widened, _ = widen(model_of(nodes, [value("x", BF16, [4, 8])], outputs, [weight]))
    assert np.array_equal(run(widened, x=X)[1], bf16(np.full((4, 8), 1 / 3)))


def test_operators_of_other_domains_keep_bfloat16() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=BF16),
        helper.make_node("BFPQuantizeDequantize", ["h"], ["q"], domain="ai.onnx.contrib"),
        helper.make_node("Cast", ["q"], ["y"], to=FLOAT),
    ]
    info = [value("q", BF16, [4, 8])]
    model = model_of(nodes, [value("x", FLOAT, [4, 8])], [value("y", FLOAT, [4, 8])])
    model.graph.value_info.extend(info)
    widened, count = widen(model)
    assert count == 0 and [node.op_type for node in widened.graph.node] == [
        "Cast",
        "BFPQuantizeDequantize",
        "Cast",
    ]


def test_unnamed_nodes_and_taken_names() -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Abs", ["a"], ["a_unrounded"]),
        helper.make_node("Neg", ["a_unrounded"], ["y"]),
    ]
    widened, _ = widen(model_of(nodes, [value("x", BF16, [4, 8])], [value("y", BF16, [4, 8])]))
    assert np.array_equal(run(widened, x=X)[0], -np.abs(bf16(X)))


def test_empty_tensor_and_dynamic_shape() -> None:
    widened, _ = widen(two_layers())
    assert run(widened, x=np.zeros((0, 8), np.float32))[0].shape == (0, 8)


def test_optional_input_left_empty() -> None:
    nodes = [helper.make_node("Clip", ["x", "", "top"], ["y"])]
    model = model_of(
        nodes, [value("x", BF16, [4, 8])], [value("y", BF16, [4, 8])], [bf16_weight("top", np.array(0.5))]
    )
    widened, _ = widen(model)
    assert np.array_equal(run(widened, x=X)[0], np.minimum(bf16(X), 0.5))


def test_sequences_are_not_tensors() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=BF16),
        helper.make_node("SequenceConstruct", ["h", "h"], ["pair"]),
        helper.make_node("SequenceLength", ["pair"], ["y"]),
    ]
    model = model_of(nodes, [value("x", FLOAT, [4, 8])], [value("y", TensorProto.INT64, [])])
    graph = graph_proto.import_model(model)
    assert widen_bf16(graph) == 0


def test_nothing_is_printed_of_constants_in_attributes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Standard output belongs to the tools, and graph-surgeon warns of types that NumPy lacks."""
    model = corpus.parse("""(float[N,4] x) => (float[N,4] y) {
        s = Shape(x) c = ConstantOfShape <value = float[1] {1.5}> (s) y = Add(x, c) }""")
    graph = model_io.load(model)
    convert_opset(graph, 22)
    convert_type(graph)
    path = tmp_path / "m.onnx"
    onnx.save(graph_proto.export_model(graph), path)
    found = open_model(path).run({"x": np.ones((2, 4), np.float32)})["y"]
    assert np.array_equal(found, np.full((2, 4), 2.5, np.float32))
    assert capfd.readouterr() == ("", "")
