"""Channels that are rotated between the layer that makes them and the one that reads them.

Oracle: ONNX Runtime in double precision on the model before, with a bound for weights that are rounded to
float32 once. The derivation is that of ``bound``.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from ops.rotations import rotate
from tests.benchmarks.transformer import Size, transformer
from tests.helpers import conversion, plans
from tests.helpers.attention import (
    ATTENTION,
    HEAD,
    MIXED,
    SCORED_HEADS,
    SCORES,
    SPLIT,
    VALUES,
    WEIGHTS,
)
from tests.helpers.output_error import OutputError
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.channels.rotate_channels import HeadFinder
from transforms.graph.selection import select
from transforms.model import graph_proto
from transforms.move_outliers import move_outliers
from transforms.pipelines.quantize_graph import Quantized, quantize_graph
from transforms.rotate_channels import rotate_channels
from transforms.scheme import Scheme, preset
from transforms.scheme.outlier_move import OutlierMove

Constants = dict[str, NDArray[np.float64]]

OWN: plans.Weights = {
    **{"wt": (12, 12), "ot": (4, 12), "oc": (4,), "f": (12, 8), "fb": (1, 8), "i": (8, 4), "one": (1,)},
    "o2": (12, 4),
    "ax": np.int64([3]),
}
TAKES = {
    "attention": ATTENTION,
    "queries, keys and values of one layer": HEAD.format(SPLIT + SCORED_HEADS, MIXED),
    "Gemm": """(float[10,12] x) => (float[10,4] y) {
        m = Gemm<transB = 1, alpha = 0.5, beta = 2.0>(x, wt, b) h = Identity(m)
        y = Gemm<transB = 1>(h, ot, oc) }""",
    "factors of one matrix": """(float[2,5,12] x) => (float[2,5,4] y) {
        m = MatMul(x, f) h = Add(m, fb) y = MatMul(h, i) }""",
}
OWN_SCORES = SCORES.replace("i0 = MatMul(x, k) j = Reshape(i0, heads)", "j = Reshape(n, heads)")
LEAVES = {
    "an output": ATTENTION.replace("y) {", "y, float[2,5,12] n) {"),
    "a curve": ATTENTION.replace("l = Reshape(n", "u = Relu(n) l = Reshape(u"),
    "two readers": ATTENTION.replace(
        "y = MatMul(h, o)", "z = MatMul(h, o) r1 = Tanh(h) r2 = MatMul(r1, o2) y = Add(z, r2)"
    ),
    "a shared weight": ATTENTION.replace("MatMul(x, k)", "MatMul(x, w)"),
    "a shared bias": ATTENTION.replace("i0 = MatMul(x, k)", "z = Add(x, b) i0 = MatMul(z, k)"),
    "one number added to all": ATTENTION.replace("Add(b, m)", "Add(one, m)"),
    "keys are values": HEAD.format(VALUES + OWN_SCORES, MIXED),
    "heads summed": ATTENTION.replace(
        "d = Tr", "c2 = ReduceSum<keepdims = 1>(c, ax) c3 = Add(c, c2) d = Tr"
    ).replace("perm = [0, 2, 1, 3]>(c)", "perm = [0, 2, 1, 3]>(c3)"),
    "a weight that is computed": ATTENTION.replace("m = MatMul(x, w)", "ww = Tanh(w) m = MatMul(x, ww)"),
}
UNIT = 2.0**-24  # of rounding to float32


def doubled(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with all its numbers in double precision."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    del found.graph.value_info[:]
    for tensor in (*found.graph.input, *found.graph.output):
        if tensor.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            tensor.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for tensor in found.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return found


def rows(model: onnx.ModelProto) -> Constants:
    """Return random input in double precision."""
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(3).standard_normal(shape)}


def rotated(text: str, **chosen: object) -> tuple[onnx.ModelProto, onnx.ModelProto, int]:
    """Return a model, the one with ``h`` rotated, and what the rewrite returned."""
    source = plans.model(text, WEIGHTS | OWN)
    graph = model_io.load(source)
    before = graph_proto.export_model(graph)
    exclude = select(graph, **chosen) if chosen else None  # type: ignore[arg-type]
    count, changed = conversion.rewritten(graph, lambda graph: rotate_channels(graph, ["h"], exclude=exclude))
    assert count or changed == before
    return before, changed, count


def norms(model: onnx.ModelProto) -> dict[str, float]:
    """Return the norms of the constants of a model, those of a matrix Frobenius's."""
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return {name: float(np.linalg.norm(array.astype(np.float64))) for name, array in arrays.items()}


def bound(model: onnx.ModelProto, x: NDArray[np.float64]) -> float:
    """Return how much a row of the output may differ.

    A row is p (x W + b) O with a row p of scores, whose sum is 1. Rounding W, b and O once changes them by
    UNIT of their norms at most, and rotations keep norms: |dy| <= 2 UNIT (|x| |W| + |b|) |O|, up to UNIT
    squared. The factor of b (beta) is 2 at most.
    """
    sizes = norms(model)
    largest = np.linalg.norm(x, axis=-1).max()
    weight = sizes.get("w", sizes.get("w3", sizes.get("wt", sizes.get("f"))))
    offset = sizes.get("b", sizes.get("b3", sizes.get("fb")))
    read = sizes.get("o", sizes.get("ot", sizes.get("i")))
    assert weight and offset and read
    return 2 * UNIT * (float(largest) * weight + 2 * offset) * read * 1.001


@pytest.mark.parametrize("text", TAKES.values(), ids=TAKES.keys())
def test_the_model_stays_the_same(text: str) -> None:
    source, changed, count = rotated(text)
    assert count == 1
    feed = rows(source)
    before, after = (conversion.run(doubled(model), feed)["y"] for model in (source, changed))
    difference = np.linalg.norm(before - after, axis=-1).max()
    assert 0 < difference <= bound(source, feed["x"])
    assert [node.op_type for node in changed.graph.node] == [node.op_type for node in source.graph.node]
    assert np.linalg.norm(before, axis=-1).min() > 1e4 * bound(source, feed["x"])


@pytest.mark.parametrize("text", LEAVES.values(), ids=LEAVES.keys())
def test_the_model_is_not_touched(text: str) -> None:
    assert rotated(text)[2] == 0


@pytest.mark.parametrize("operator", ["MatMul", "Transpose"])
def test_excluded_nodes_stay(operator: str) -> None:
    assert rotated(ATTENTION, op_types=[operator])[2] == 0


def test_each_head_is_rotated_for_itself() -> None:
    """Three heads of four channels: the weight of a channel of the first goes into the first alone."""
    source, changed, _ = rotated(ATTENTION)
    before, after = (
        next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "w")
        for model in (source, changed)
    )
    matrix = rotate(np.eye(4))
    wanted = np.concatenate([part @ matrix for part in np.split(before.astype(np.float64), 3, 1)], 1)
    np.testing.assert_allclose(after, wanted, rtol=0, atol=UNIT * np.abs(wanted).max())


def test_outliers_that_are_rotated_count_as_moved() -> None:
    graph = model_io.load(plans.model(ATTENTION, WEIGHTS | OWN))
    assert move_outliers(graph, {"h": OutlierMove(rotated=True), "none": OutlierMove(rotated=True)}) == 1
    assert graph_proto.export_model(graph) == rotated(ATTENTION)[1]


@pytest.mark.parametrize("scheme", ["A8W8", "U8S8"])
def test_outlying_values_are_rotated_if_the_outputs_gain(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three value channels are 30 times the others, and count as much: 20.8 and 22.2 dB without rotations,
    26.0 and 27.5 dB with them.
    """
    model = outlying_values()
    graph, done, gained = quantized(model, scheme)
    assert done.scheme is not None
    assert done.changes["tensors with outliers rotated into all channels"]
    again, _, _ = quantized(model, done.scheme)
    assert graph_proto.export_model(again) == graph_proto.export_model(graph)
    monkeypatch.setattr(HeadFinder, "heads", lambda *_: {})
    plain = quantized(model, scheme)[2]
    assert gained > plain + 3


def quantized(model: onnx.ModelProto, scheme: str | Scheme) -> tuple[gs.Graph, Quantized, float]:
    """Return the model quantized with 8 samples, what was done, and its SNR in dB on 20 others."""
    random = np.random.default_rng(5)
    ids = random.integers(0, 200, (28, 1, 20))
    feeds = [{"input_ids": one, "attention_mask": np.ones_like(one)} for one in ids]
    graph = graph_proto.import_model(model)
    if isinstance(scheme, str):
        scheme = preset(scheme).by_rule().with_(move_outliers=True)
    done = quantize_graph(graph, scheme, CalibrationData(feeds[:8]), keep_float=True)
    assert done.float_graph is not None
    error = OutputError(done.float_graph, feeds[8:]).each(graph).relative
    return graph, done, float(-10 * np.log10(error))


def outlying_values() -> onnx.ModelProto:
    """Return a transformer of two layers, each with three value channels that are 30 times the others."""
    model = transformer(Size(layers=2, width=64, heads=4, vocabulary=200, positions=32), seed=1)
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor).copy()
        if values.ndim == 2 and "embed" not in tensor.name:
            values *= 8
        if "value." in tensor.name:
            layer = int(tensor.name.split("layer.")[1][0])
            values[..., np.random.default_rng(1 + layer).choice(64, 3, replace=False)] *= 30
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return model
