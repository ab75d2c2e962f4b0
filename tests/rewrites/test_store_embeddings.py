"""Oracle: rows decoded by NumPy, exact for those that are read. A product of K float32 numbers, summed in any
order, is within K 2^-23 of that of the decoded rows, relative to the sum of magnitudes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tests.helpers import build
from transforms import model_io
from transforms.graph.selection import select
from transforms.model import graph_proto
from transforms.optimize import optimize
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import preset
from transforms.store_embeddings import store_embeddings, tie_embeddings


def _language(
    rows: int = 40,
    width: int = 64,
    head: str = "tied",
    *,
    extra: list[onnx.NodeProto] | None = None,
    weights: dict[str, np.ndarray] | None = None,
    index: type = np.int64,
) -> onnx.ModelProto:
    """Return a model that reads rows of ``table``, mixes them by ``w`` and multiplies by a head, if any."""
    random = np.random.default_rng(rows + width)
    table = random.standard_normal((rows, width)).astype(np.float32)
    arrays = {"table": table, "w": random.standard_normal((width, width)).astype(np.float32) / 8}
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["states"], "lookup"),
        helper.make_node("MatMul", ["states", "w"], ["mixed"], "mix"),
    ]
    ends = [build.value("states", ["b", "t", width]), build.value("mixed", ["b", "t", width])]
    if head == "tied":
        nodes.append(helper.make_node("Transpose", ["table"], ["turned"], "turn", perm=[1, 0]))
    elif head == "copy":
        arrays["turned"] = np.ascontiguousarray(table.T)
    elif head.startswith("gemm"):
        arrays["flat"], arrays["bias"] = np.array([-1, width]), random.standard_normal(rows, np.float32)
        arrays["own"] = table.copy()
        factors = ["rows", "own" if head == "gemm of a copy" else "table"]
        nodes.append(helper.make_node("Reshape", ["mixed", "flat"], ["rows"], "flatten"))
        nodes.append(helper.make_node("Gemm", [*factors, "bias"], ["logits"], "head", transB=1))
        ends.append(build.value("logits", ["n", rows]))
    if head in ("tied", "copy"):
        nodes.append(helper.make_node("MatMul", ["mixed", "turned"], ["logits"], "head"))
        ends.append(build.value("logits", ["b", "t", rows]))
    inputs = [build.value("tokens", ["b", "t"], index)]
    return build.model([*nodes, *(extra or [])], inputs, ends, {**arrays, **(weights or {})})


def _run(model: onnx.ModelProto, tokens: np.ndarray, *, optimized: bool = False) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [output.name for output in model.graph.output]
    return dict(zip(names, session.run(names, {"tokens": tokens}), strict=True))


def _arrays(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}


def _decoded(model: onnx.ModelProto) -> np.ndarray:
    """Return the float32 rows that the bytes of a model stand for, by the zero points that lookups are given.

    Without them the CUDA provider takes 0, and the CPU provider the middle (onnxruntime issue 31692).
    """
    arrays = _arrays(model)
    (node,) = (node for node in model.graph.node if node.op_type == "GatherBlockQuantized")
    attrs = {one.name: one.i for one in node.attribute}
    data = arrays[node.input[0]].astype(np.int64)
    if attrs["bits"] == 4:
        data = np.stack([data & 15, data >> 4], -1).reshape(len(data), -1)
    cast = {one.output[0]: one.input[0] for one in model.graph.node if one.op_type == "Cast"}
    scale = arrays[cast.get(node.input[2], node.input[2])].astype(np.float32)
    (fill,) = (one for one in model.graph.node if one.output[0] == node.input[3])
    (byte,) = numpy_helper.to_array(fill.attribute[0].t)
    zeros = {8: [byte], 4: [byte & 15, byte >> 4]}[attrs["bits"]]
    assert arrays[fill.input[0]].tolist() == [len(data), -(-scale.shape[1] * attrs["bits"] // 8)]
    return (data - np.resize(zeros, scale.shape[1]).repeat(attrs["block_size"]).astype(np.int64)).astype(
        np.float32
    ) * np.repeat(scale, attrs["block_size"], 1)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 60),
    st.sampled_from([16, 48, 64, 160]),
    st.sampled_from(["int8", "int4"]),
    st.sampled_from(["tied", "copy", "gemm", "gemm of a copy", ""]),
    st.sampled_from([np.int64, np.int32]),
    st.booleans(),
)
def test_rows_and_head_are_those_of_the_stored_numbers(
    rows: int, width: int, dtype: str, head: str, index: type, optimized: bool
) -> None:
    source = _language(rows, width, head, index=index)
    graph = graph_proto.import_model(source)
    assert tie_embeddings(graph) == ("copy" in head) and tie_embeddings(graph) == 0
    assert store_embeddings(graph, dtype, accuracy_level=1) == 1 and store_embeddings(graph, dtype) == 0
    model = graph_proto.export_model(graph)
    onnx.checker.check_model(model, full_check=True)
    operators = [node.op_type for node in model.graph.node]
    assert operators.count("MatMulNBits") == bool(head) and "Transpose" not in operators
    table = _decoded(model)
    tokens = np.random.default_rng(0).integers(-rows, rows, (2, 5)).astype(index)
    found = _run(model, tokens, optimized=optimized)
    np.testing.assert_array_equal(found["states"], table[tokens])
    whole = _arrays(source)["table"]
    step = np.abs(whole).max() / (127 if dtype == "int8" else 7)
    assert np.abs(table - whole).max() <= step, "a step: searches may cut off the largest number"
    if head:
        mixed = found["mixed"].astype(np.float64)
        bias = _arrays(source)["bias"] if "gemm" in head else np.float32(0)
        bound = (width + 4) * 2.0**-23 * (np.abs(mixed) @ np.abs(table.T.astype(np.float64)) + np.abs(bias))
        logits = found["logits"].reshape(*mixed.shape[:-1], rows)
        assert (np.abs(logits - mixed @ table.T - bias) <= bound).all()


def test_one_table_is_stored() -> None:
    """Of 200 x 64 numbers: 12,800 bytes, 2 for each of 200 scales, and shapes of blocks and zero points."""
    graph = graph_proto.import_model(_language(200, 64, "copy"))
    tie_embeddings(graph)
    store_embeddings(graph)
    sizes = {name: array.nbytes for name, array in _arrays(graph_proto.export_model(graph)).items()}
    assert sum(sizes.values()) - sizes["w"] == 200 * 64 + 200 * 2 + (3 + 2) * 8


def test_a_copy_that_differs_in_one_number_is_not_tied() -> None:
    model = _language(head="copy")
    (turned,) = (one for one in model.graph.initializer if one.name == "turned")
    array = numpy_helper.to_array(turned).copy()
    array[-1, -1] += 1
    turned.CopyFrom(numpy_helper.from_array(array, "turned"))
    assert tie_embeddings(graph_proto.import_model(model)) == 0


def test_only_the_largest_and_tied_tables_are_stored() -> None:
    """Positions, as of a rotary embedding, stay float."""
    places = np.random.default_rng(0).standard_normal((30, 64)).astype(np.float32)
    extra = [
        helper.make_node("Gather", ["places", "tokens"], ["where"], "place"),
        helper.make_node("Add", ["states", "where"], ["placed"], "add"),
    ]
    graph = graph_proto.import_model(_language(extra=extra, weights={"places": places}))
    graph.outputs.append(graph.tensors()["placed"])
    assert store_embeddings(graph) == 1
    assert [node.op for node in graph.nodes if node.name == "place"] == ["Gather"]
    assert store_embeddings(graph) == 0


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ([helper.make_node("Relu", ["table"], ["more"], "reader")], "'reader', a Relu, reads it"),
        ([helper.make_node("Transpose", ["table"], ["more"], "turn2", perm=[1, 0])], "'turn2'"),
    ],
)
def test_tables_that_others_read_stay(
    extra: list[onnx.NodeProto], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = _language(extra=extra)
    model.graph.output.append(build.value("more", None))
    with caplog.at_level("DEBUG"):
        assert store_embeddings(graph_proto.import_model(model)) == 0
    assert reason in caplog.text


@pytest.mark.parametrize("name", ["lookup", "head"])
def test_excluded_nodes_keep_their_table(name: str, caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_proto.import_model(_language())
    with caplog.at_level("DEBUG"):
        assert store_embeddings(graph, exclude=select(graph, names=[name])) == 0
    assert f"'{name}' is excluded" in caplog.text


def test_rows_without_whole_blocks_stay(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        assert store_embeddings(graph_proto.import_model(_language(width=24))) == 0
    assert "rows of 24 numbers have no blocks of 16" in caplog.text


def test_errors() -> None:
    with pytest.raises(ValueError, match="embeddings cannot be stored in 'int5', legal are int8, int4"):
        store_embeddings(graph_proto.import_model(_language()), "int5")


@pytest.mark.parametrize("rows", [40, 400])
@pytest.mark.parametrize("keep", [True, False])
def test_optimizing_may_keep_the_transpose_of_a_table(keep: bool, rows: int) -> None:
    model = _language(rows, 64)
    graph = model_io.load(model)
    optimize(graph, keep_tied=keep)
    assert [node.op for node in graph.nodes].count("Transpose") == keep
    tokens = np.arange(6).reshape(2, 3)
    expected, found = (_run(one, tokens) for one in (model, graph_proto.export_model(graph)))
    np.testing.assert_allclose(found["logits"], expected["logits"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [90, 400])
@pytest.mark.parametrize("head", ["tied", "gemm"])
def test_weights_alone_keep_a_tied_table_once(head: str, rows: int) -> None:
    source = _language(rows, 64, head)
    graph = model_io.load(source)
    quantize_graph(graph, preset("W4"))
    matrices = [array.size for array in _arrays(graph_proto.export_model(graph)).values() if array.ndim == 2]
    assert sum(size == rows * 64 for size in matrices) == 1
    assert store_embeddings(graph) == 1
    logits = [
        _run(one, np.arange(6).reshape(2, 3))["logits"] for one in (source, graph_proto.export_model(graph))
    ]
    assert np.linalg.norm(logits[1] - logits[0]) < 0.2 * np.linalg.norm(logits[0])
