"""Oracles: ml_dtypes and NumPy for what is stored; one small model run for what the nodes make of it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs
import pytest

import ops
from tests.helpers import plans
from tests.helpers.quantization import EXTENDED, random, scheme
from transforms.graph import dtypes
from transforms.plan.qdq_writer import QdqWriter, rounded
from transforms.plan.quant_spec import QuantSpec
from transforms.scheme import Scheme

STANDARD = ("QuantizeLinear", "DequantizeLinear")
PARAMETERS = np.array(0.5, np.float32), np.array(3, np.int8)


def writer(chosen: str | Scheme = "A8W8") -> tuple[QdqWriter, gs.Graph]:
    graph = plans.graph("(float[N,4] x) => (float[N,4] y) { y = MatMul(x, w) }", {"w": (4, 4)})
    return QdqWriter(graph, scheme(chosen)), graph


def step(format: str, axis: int | None = None) -> QuantSpec:
    return QuantSpec(ops.FORMATS[format], axis)


def parameters(format: str) -> tuple[np.ndarray, np.ndarray]:
    return np.array(0.5, np.float32), np.array(1, ops.FORMATS[format].dtype)


@pytest.mark.parametrize(
    ("format", "operators", "domain"),
    (
        *((name, STANDARD, None) for name in ("int4", "uint4", "int8", "uint8", "int16", "uint16")),
        *((name, EXTENDED, ops.DOMAIN) for name in ("int32", "uint32")),
    ),
)
def test_integers_are_two_nodes_with_one_scale_and_zero_point(
    format: str, operators: tuple[str, str], domain: str | None
) -> None:
    written, graph = writer()
    x = graph.inputs[0]
    first, second = written.put(x, step(format), parameters(format), None)
    assert (first.op, second.op) == operators and first.domain == second.domain == domain
    assert first.inputs[0] is x and second.inputs[0] is first.outputs[0]
    assert [id(t) for t in first.inputs[1:]] == [id(t) for t in second.inputs[1:]]
    scale, zero_point = first.inputs[1:]
    assert (scale.name, zero_point.name) == ("x_scale", "x_zero_point")
    assert (first.outputs[0].name, second.outputs[0].name) == ("x_quantized", "x_dequantized")
    assert first.outputs[0].dtype == ops.FORMATS[format].dtype
    assert second.outputs[0].shape == x.shape and dtypes.is_type(second.outputs[0], dtypes.FLOAT)
    assert first.attrs == second.attrs == {}
    assert written.domains == {domain or ""}


def test_the_last_node_makes_the_target() -> None:
    for chosen in ("int8", "bfloat16", "mx9"):
        written, graph = writer()
        given = parameters(chosen) if chosen == "int8" else None
        target = gs.Variable("target")
        nodes = written.put(graph.inputs[0], step(chosen, 1), given, target)
        assert nodes[-1].outputs[0] is target


def test_float_types_share_scale_and_zero_point() -> None:
    written, graph = writer()
    tensors = [graph.inputs[0], graph.outputs[0]]
    nodes = [node for t in tensors for node in written.put(t, step("bfloat16"), None, None)]
    assert {node.op for node in nodes} == set(EXTENDED)
    assert len({id(t) for node in nodes for t in node.inputs[1:]}) == 2
    other = written.put(tensors[0], step("float16"), None, None)
    assert other[0].inputs[2].dtype == np.float16 and other[0].inputs[1] is not nodes[0].inputs[1]
    assert nodes[0].inputs[2].values.dtype == ml_dtypes.bfloat16
    assert dtypes.is_type(nodes[0].outputs[0], dtypes.BFLOAT16)


def test_domains_are_those_of_the_scheme() -> None:
    chosen = scheme("A8W8", domain=ops.AMD_DOMAIN, qdq_domain="com.microsoft")
    written, graph = writer(chosen)
    x = graph.inputs[0]
    for format, given in (("int8", PARAMETERS), ("int32", parameters("int32")), ("mx9", None)):
        written.put(x, step(format, 1), given, None)
    assert written.domains == {"com.microsoft", ops.AMD_DOMAIN}


def test_a_block_format_is_one_node_with_its_attributes() -> None:
    written, graph = writer()
    (node,) = written.put(graph.inputs[0], step("mx6", 1), None, None)
    assert (node.op, node.domain) == (ops.FORMATS["mx6"].op, ops.DOMAIN)
    assert node.attrs == {**ops.FORMATS["mx6"].attributes, "axis": 1}
    assert node.outputs[0].name == "x_mx6"


def test_names_are_new_each_time() -> None:
    written, graph = writer()
    nodes = [n for _ in range(3) for n in written.put(graph.inputs[0], step("int8"), PARAMETERS, None)]
    names = [tensor.name for node in nodes for tensor in (*node.inputs[1:], *node.outputs)]
    assert len({*names}) == 4 * 3 and len({node.name for node in nodes}) == 6


@pytest.mark.parametrize("axis", (None, 0, 1))
@pytest.mark.parametrize("format", ("int4", "uint4", "int8", "int16", "int32"))
def test_integers_are_stored(format: str, axis: int | None) -> None:
    written, graph = writer()
    w = graph.nodes[0].inputs[1]
    scale = np.array([0.5, 0.25, 2, 1], np.float32) if axis is not None else np.array(0.25, np.float32)
    zero_point = np.ones(scale.shape, ops.FORMATS[format].dtype)
    target, (node,) = written.store(w, step(format, axis), (scale, zero_point), keep_node=False)
    assert node.op.endswith("DequantizeLinear") and node.outputs[0] is target
    assert node.attrs == ({} if axis is None else {"axis": axis})
    along = scale[:, None] if axis == 0 else scale
    row = ops.FORMATS[format]
    expected = np.clip(np.rint(w.values / along) + 1, row.lowest, row.highest).astype(row.dtype)
    stored = np.asarray(node.inputs[0].values)
    assert np.array_equal(stored.astype(int), expected.astype(int))
    assert node.inputs[0].name == "w_quantized"


def test_float_types_are_stored_narrow_and_saturated() -> None:
    values = np.array([1 + 2**-9, 7e4, -np.inf, 1e-30], np.float32)
    for format, expected in (
        ("bfloat16", values.astype(ml_dtypes.bfloat16)),
        ("float16", np.array([1 + 2**-9, 65504, -65504, 0], np.float16)),
    ):
        written, _ = writer()
        _, (node,) = written.store(gs.Constant("w", values), step(format), None, keep_node=False)
        assert node.op == EXTENDED[1]
        assert node.inputs[0].values.dtype == expected.dtype
        assert np.array_equal(node.inputs[0].values, expected)


@pytest.mark.parametrize("axis", (0, 1))
def test_blocks_are_stored_without_a_node(axis: int) -> None:
    written, graph = writer()
    w = graph.nodes[0].inputs[1]
    target, nodes = written.store(w, step("mxfp4", axis), None, keep_node=False)
    assert nodes == [] and target.values.dtype == np.float32
    assert np.array_equal(target.values, ops.quantize_dequantize(w.values, "mxfp4", axis))
    assert np.array_equal(rounded(target.values, step("mxfp4", axis), None), target.values)
    assert written.domains == set()


@pytest.mark.parametrize("format", ("int8", "int4", "int32", "bfloat16", "mx9"))
def test_a_weight_with_nodes_stays_float(format: str) -> None:
    written, graph = writer()
    w = graph.nodes[0].inputs[1]
    before = w.values.copy()
    given = None if format in ("bfloat16", "mx9") else parameters(format)
    target, nodes = written.store(w, step(format, 1), given, keep_node=True)
    assert nodes[0].inputs[0] is w and np.array_equal(w.values, before)
    assert nodes[-1].outputs[0] is target
    assert len(nodes) == (1 if format == "mx9" else 2)


def test_a_bias_is_dequantized_by_onnx_itself() -> None:
    """Runtimes fuse a layer with biases of int32 only where ONNX's own operator makes their floats."""
    for domain in ("", "com.microsoft"):
        written, _ = writer(scheme("A8W8", qdq_domain=domain))
        bias = gs.Constant("b", random(4))
        scale = np.array([0.5, 0.25, 2, 1], np.float32) * np.float32(2.0**-20)
        given = scale, np.zeros(4, np.int32)
        target, (node,) = written.store_bias(bias, step("int32", 0), given)
        assert (node.op, node.domain, node.attrs) == ("DequantizeLinear", domain or None, {"axis": 0})
        assert node.outputs[0] is target
        assert np.array_equal(node.inputs[0].values, np.rint(bias.values / scale).astype(np.int32))
        assert written.domains == {domain}
