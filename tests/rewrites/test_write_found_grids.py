"""Weights kept on the grids that they have. Oracle: the float weights themselves.

Products with rows of the identity are the numbers of a weight as kernels read it: the same ones, or, where
MatMulNBits has a float in place of a minimum, within 1e-6 of the largest of a block.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.helpers.known_grids import GRIDS, Array, act_order, names, zero_points
from transforms.graph.found_grids import FoundWeight
from transforms.model import graph_proto
from transforms.write_found_grids import write_found_grids

_WITH_FLOAT_ZEROS = {"Q4_1", "Q2_K", "Q4_K", "2 bits with a minimum"}
_BY_KERNELS = {name for name in GRIDS if not {"Q5_1", "Q5_K"} & {name} and name[:2] not in ("E4", "E5")} - {
    name for name in GRIDS if "in float16" in name or "in bfloat16" in name
}
_LEVELS = (
    onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
)


def _model(weight: Array, op: str = "MatMul", rank: int = 2, **attrs: int) -> onnx.ModelProto:
    """Return a product of an input by a weight, [K, N] or turned."""
    inputs = weight.shape[1] if attrs.get("transB") else weight.shape[0]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows"] * (rank - 1) + [inputs])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node(op, ["x", "w"], ["y"], "layer", **attrs)
    graph = helper.make_graph([node], "product", [x], [y], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _written(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[FoundWeight]]:
    graph, found = graph_proto.import_model(model), list[FoundWeight]()
    assert write_found_grids(graph, found=found) == 1
    assert write_found_grids(graph) == 0
    written = graph_proto.export_model(graph)
    onnx.checker.check_model(written, full_check=True)
    return written, found


def _read(model: onnx.ModelProto, feed: dict[str, np.ndarray], outputs: int = 1) -> list[np.ndarray]:
    """Return the first outputs of a model in sessions without and with optimization."""
    read = []
    for level in _LEVELS:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        made = session.run(None, feed)
        read.append(np.asarray(made[0] if outputs == 1 else made[:outputs]))
    return read


def _stored_bytes(model: onnx.ModelProto) -> int:
    return sum(len(numpy_helper.to_array(t).tobytes()) for t in model.graph.initializer)


def _check(
    model: onnx.ModelProto,
    weight: Array,
    name: str,
    feed: dict[str, np.ndarray] | None = None,
    *,
    by_kernel: bool = True,
) -> None:
    for read in _read(model, feed or {"x": np.eye(weight.shape[0], dtype=np.float32)}):
        if by_kernel and name in _WITH_FLOAT_ZEROS:
            block = GRIDS[name][1]
            largest = np.abs(weight).reshape(-1, block, weight.shape[1]).max(1).repeat(block, 0)
            assert (np.abs(read - weight) <= 1e-6 * largest).all()
        else:
            np.testing.assert_array_equal(read, weight)


@pytest.mark.parametrize("name", names())
def test_weights_are_read_as_they_were(name: str) -> None:
    """By a MatMul, whose blocks lie along the sum, and by a Gemm that turns its weight."""
    weight = np.ascontiguousarray(GRIDS[name][0](0).T)
    for model in (_model(weight), _model(np.ascontiguousarray(weight.T), "Gemm", transB=1)):
        written, found = _written(model)
        _check(written, weight, name)
        assert len(found) == 1 and found[0].is_whole
        stored = sum(
            np.prod(t.dims) * {2: 1, 1: 4, 10: 2, 3: 1, 7: 8}.get(t.data_type, 1)
            for t in written.graph.initializer
        )
        assert stored < weight.nbytes / 2.5


@pytest.mark.parametrize("name", names())
def test_blocks_along_the_outputs_are_read_as_they_were(name: str) -> None:
    """No kernel has them: DequantizeLinear says every number, minima included."""
    weight = GRIDS[name][0](1)
    written, _ = _written(_model(weight))
    assert ("MatMulNBits" in {node.op_type for node in written.graph.node}) == (
        "per tensor" in name or "MXFP4" in name  # scales of columns have all numbers, powers of two
    )
    _check(written, weight, name, by_kernel=False)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "int8 per channel", "GPTQ 64", "ternary"])
def test_products_by_kernels(name: str) -> None:
    written, _ = _written(_model(np.ascontiguousarray(GRIDS[name][0](0).T)))
    assert [node.op_type for node in written.graph.node if node.op_type != "Cast"] == ["MatMulNBits"]


def test_products_of_one_input_share_its_order() -> None:
    """As query, key and value projections, which GPTQ orders by the same inputs; the other has its own."""
    weights = [act_order(zero_points(4, 64))(0), act_order(zero_points(4, 64))(0) * 2]
    weights.append(act_order(zero_points(4, 128))(1))
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        products (float[N, 512] x) => (float[N, 24] y0, float[N, 24] y1, float[N, 24] y2) {
            y0 = MatMul (x, w0)
            y1 = MatMul (x, w1)
            y2 = MatMul (x, w2)
        }""")
    model.graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(w.T), f"w{i}") for i, w in enumerate(weights)
    )
    graph = graph_proto.import_model(model)
    assert write_found_grids(graph) == 3
    assert [node.op for node in graph.nodes if node.op != "Cast"] == [
        *("Gather", "MatMulNBits", "MatMulNBits", "Gather", "MatMulNBits")
    ]
    for read in _read(graph_proto.export_model(graph), {"x": np.eye(512, dtype=np.float32)}, outputs=3):
        np.testing.assert_array_equal(read, np.stack([w.T for w in weights]))


def test_filters_are_read_as_they_were() -> None:
    random = np.random.default_rng(0)
    scale = random.uniform(0.01, 0.02, (6, 1, 1, 1)).astype(np.float32)
    weight = random.integers(-127, 128, (6, 8, 3, 3)).astype(np.float32) * scale
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 3, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("Conv", ["x", "w"], ["y"], "layer")
    graph = helper.make_graph([node], "filters", [x], [y], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    written, _ = _written(model)
    read = next(node for node in written.graph.node if node.op_type == "DequantizeLinear")
    written.graph.output.append(helper.make_tensor_value_info(read.output[0], TensorProto.FLOAT, None))
    del written.graph.output[0]
    for numbers in _read(written, {"x": np.zeros((1, 8, 3, 3), np.float32)}):
        np.testing.assert_array_equal(numbers, weight)


@pytest.mark.parametrize("name", names("E4M3", "E5M2", "act-order"))
def test_embeddings_and_heads_read_one_table(name: str) -> None:
    """Lookups have every number; heads by a kernel with float zero points within 1e-6."""
    table = GRIDS[name][0](0)
    initializers = [
        numpy_helper.from_array(a, n) for n, a in {"table": table, "head": table.T.copy()}.items()
    ]
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        language (int64[B, N] tokens, float[M, 512] x) => (float[B, N, 512] states, float[M, 24] logits) {
            states = Gather (table, tokens)
            logits = MatMul (x, head)
        }""")
    model.graph.initializer.extend(initializers)
    written, _ = _written(model)
    ops = [node.op_type for node in written.graph.node]
    is_kernel = name in _BY_KERNELS
    assert "GatherBlockQuantized" in ops and ("MatMulNBits" in ops) == is_kernel
    assert _stored_bytes(written) < table.nbytes * (2 if is_kernel else 4) / 5
    feed = {"tokens": np.arange(24).reshape(2, 12), "x": np.eye(512, dtype=np.float32)}
    for read in _read(written, feed):
        np.testing.assert_array_equal(read.reshape(24, 512), table)
    del written.graph.output[0]
    _check(written, np.ascontiguousarray(table.T), name, feed)


def test_random_weights_and_excluded_layers_stay() -> None:
    random = np.random.default_rng(0).standard_normal((512, 24)).astype(np.float32)
    graph = graph_proto.import_model(_model(random))
    assert write_found_grids(graph) == 0 and [node.op for node in graph.nodes] == ["MatMul"]
    graph = graph_proto.import_model(_model(np.ascontiguousarray(GRIDS["Q4_1"][0](0).T)))
    assert write_found_grids(graph, exclude="layer") == 0


def test_level_4_is_for_who_asks() -> None:
    for level in (None, 4):
        graph = graph_proto.import_model(_model(np.ascontiguousarray(GRIDS["Q4_0"][0](0).T)))
        write_found_grids(graph, accuracy_level=level)
        assert graph.nodes[-1].attrs["accuracy_level"] == (level or 1)
