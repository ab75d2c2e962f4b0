"""Oracle: the table's rows rounded by NumPy, exact for those that are read, and what ONNX Runtime makes of a
DequantizeLinear of the whole table."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from ops.pair_sums import bound_pairs
from tests.helpers import build
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.conversion.convert_bf16 import Bf16Options, convert_bf16
from transforms.graph.proto_graphs import each_graph
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.precision.switched_layers import SwitchedLayers
from transforms.scheme import Scheme, preset

ROWS, WIDTH = 300, 64


def language(head: str = "tied", rows: int = ROWS) -> onnx.ModelProto:
    """Return a model whose head is the table, turned or by a Gemm, or none; rows differ in size."""
    random = np.random.default_rng(0)
    table = random.standard_normal((rows, WIDTH)) * np.exp(random.standard_normal((rows, 1)))
    arrays = {"table": table.astype(np.float32), "w": random.standard_normal((WIDTH, WIDTH), np.float32) / 8}
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["states"], "lookup"),
        helper.make_node("LayerNormalization", ["states", "ones", "zeros"], ["plain"], "norm"),
        helper.make_node("MatMul", ["plain", "w"], ["mixed"], "mix"),
    ]
    arrays |= {"ones": np.ones(WIDTH, np.float32), "zeros": np.zeros(WIDTH, np.float32)}
    if head == "tied":
        nodes.append(helper.make_node("Transpose", ["table"], ["turned"], "turn", perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["mixed", "turned"], ["logits"], "head"))
    elif head == "gemm":
        nodes.append(helper.make_node("Gemm", ["mixed", "table"], ["logits"], "head", transB=1))
    ends = [
        build.value("states", [7, WIDTH]),
        build.value("logits" if head else "mixed", [7, rows if head else WIDTH]),
    ]
    return build.model(nodes, [build.value("tokens", [7], np.int64)], ends, arrays)


def samples(rows: int = ROWS) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    return [{"tokens": random.integers(-rows, rows, 7)} for _ in range(4)]


def quantized(model: onnx.ModelProto, scheme: Scheme, rows: int = ROWS) -> onnx.ModelProto:
    graph = graph_proto.import_model(model)
    quantize_graph(graph, scheme.by_rule(), CalibrationData(samples(rows)))
    return graph_proto.export_model(graph)


def run(
    model: onnx.ModelProto, feed: dict[str, np.ndarray], *, optimize: bool = False
) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [output.name for output in model.graph.output]
    return dict(zip(names, session.run(names, feed), strict=True))


def arrays(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    tensors = (one for graph in each_graph(model.graph) for one in graph.initializer)
    return {one.name: numpy_helper.to_array(one) for one in tensors}


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("head", "rows"), [("tied", ROWS), ("gemm", ROWS), ("", ROWS), ("tied", 90), ("gemm", 90)]
)
def test_a_table_is_stored_once_in_int8(head: str, rows: int, per_channel: bool) -> None:
    source = language(head, rows)
    model = quantized(source, preset("A8W8").with_(per_channel=per_channel), rows)
    onnx.checker.check_model(model, full_check=True)
    table, stored = arrays(source)["table"], arrays(model)
    assert [a.size for a in stored.values() if a.ndim == 2 and a.shape != (WIDTH, WIDTH)] == [table.size]
    (name,) = (name for name, array in stored.items() if array.size == table.size)
    assert stored[name].shape == table.shape and stored[name].dtype == np.int8
    step = np.abs(table).max(axis=1, keepdims=True) / np.float32(127)
    if head:  # that of the layer, which weighs errors, and whose sums are exact on every processor
        turned = {node.input[0]: node.output[0] for node in model.graph.node if node.op_type == "Transpose"}
        layers = [node for node in model.graph.node if node.op_type == "DequantizeLinear"]
        (step,) = (stored[node.input[1]] for node in layers if node.input[0] == turned.get(name, name))
        step = step.reshape(-1, 1)
    numbers = np.clip(np.rint(table / step), -128, 127).astype(np.int8)
    expected = (bound_pairs(numbers, (1,)) if head else numbers).astype(np.float32) * step
    for optimize in (False, True):
        for feed in samples(rows):
            found = run(model, feed, optimize=optimize)
            np.testing.assert_array_equal(found["states"], expected[feed["tokens"]])


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ("A8W8", {"exclude_nodes": ("lookup",)}),
        ("A8W8", {"tensors": {"table": "float32"}}),
        ("A8W8", {"target": "tensorrt"}),
        ("A8W8", {"keep_weight_nodes": True}),
        ("XINT8", {}),
        ("W8", {}),
        ("MX9", {}),
        ("INT32", {}),
    ],
)
def test_tables_that_stay(config: str, changes: dict[str, object]) -> None:
    source = language("")
    model = quantized(source, preset(config).with_(**changes))
    np.testing.assert_array_equal(arrays(model)["table"], arrays(source)["table"])


def test_a_small_table_stays() -> None:
    """255 x 64 float32 numbers are less than 64 KiB."""
    graph = graph_proto.import_model(language("", 255))
    quantize_graph(graph, preset("A8W8").by_rule(), CalibrationData(samples(255)))
    assert arrays(graph_proto.export_model(graph))["table"].dtype == np.float32


@pytest.mark.parametrize("head", ["tied", "gemm"])
@pytest.mark.parametrize("format", ["with_cast", "customqdq", "bf16", "BF16", "FP16"])
@pytest.mark.parametrize("rows", [ROWS, 90])
def test_a_table_is_stored_once_in_16_bits(format: str, head: str, rows: int) -> None:
    source = language(head, rows)
    if format.isupper():
        model = quantized(source, preset(format), rows)
    else:
        graph = graph_proto.import_model(source)
        convert_bf16(graph, Bf16Options(format))
        model = graph_proto.export_model(graph)
    large = [t for t in model.graph.initializer if np.prod(t.dims) == rows * WIDTH]
    half = onnx.TensorProto.FLOAT16 if format == "FP16" else onnx.TensorProto.BFLOAT16
    assert [tensor.data_type for tensor in large] == [half]


def test_layers_are_switched_behind_a_table() -> None:
    """Lookups are layers, which report names and searches put back to float."""
    source = language()
    graphs = [graph_proto.import_model(one) for one in (source, quantized(source, preset("A8W8")))]
    model = SwitchedLayers(*graphs)
    assert "lookup" in [part.name for part in model.parts]
    feed = samples()[0]
    np.testing.assert_array_equal(model.run(feed, ())["states"], run(source, feed)["states"])


def test_in_the_body_of_an_if() -> None:
    """The table is captured: the lookup inside reads int8, too."""
    inner = helper.make_graph(
        [helper.make_node("Gather", ["table", "tokens"], ["rows"], "lookup")],
        "then",
        [],
        [build.value("rows", [7, WIDTH])],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["zeros"], ["none"])], "else", [], [build.value("none", [7, WIDTH])]
    )
    table = np.random.default_rng(0).standard_normal((ROWS, WIDTH), np.float32)
    weights = {"table": table, "zeros": np.zeros((7, WIDTH), np.float32), "w": table[:WIDTH]}
    nodes = [
        helper.make_node("If", ["on"], ["states"], "if", then_branch=inner, else_branch=other),
        helper.make_node("MatMul", ["states", "w"], ["y"], "product"),
    ]
    inputs = [build.value("on", [], np.bool_), build.value("tokens", [7], np.int64)]
    graph = graph_proto.import_model(build.model(nodes, inputs, [build.value("y", [7, WIDTH])], weights))
    feeds = [{"on": np.array(True), **feed} for feed in samples()]
    quantize_graph(graph, preset("A8W8").by_rule(), CalibrationData(feeds))
    model = graph_proto.export_model(graph)
    onnx.checker.check_model(model, full_check=True)
    assert [a.dtype for a in arrays(model).values() if a.size == table.size] == [np.int8]
    run(model, feeds[0])
