"""Oracle: ONNX Runtime's own LSTM, GRU and RNN on numbers that NumPy makes of stored integers and scales."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import ops
from tests.helpers import recurrent
from transforms.features.recurrent.stored_rows import stored_rows
from transforms.graph import walk
from transforms.graph.proto_graphs import each_graph, each_node
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.quantize_recurrent import quantize_recurrent
from transforms.remove_qdq import remove_qdq
from transforms.scheme import preset

FORMS = ("LSTM", "GRU", "RNN")
OF_SUMS = 64 * 2.0**-23
"""Sums of 64 float32 products of about 1: kernels order those of stored weights otherwise."""


def run(model: onnx.ModelProto, *, optimize: bool = True, **feed: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return np.asarray(session.run(None, {"x": recurrent.sound(), **feed})[0])


def stored(source: onnx.ModelProto, **options: object) -> onnx.ModelProto:
    graph = graph_proto.import_model(source)
    count = quantize_recurrent(graph, **options)
    assert count == sum(len(t.dims) == 3 for t in source.graph.initializer if t.name[0] in "wr")
    assert quantize_recurrent(graph, **options) == 0
    model = graph_proto.export_model(graph)
    onnx.checker.check_model(model, full_check=True)
    return model


def arrays_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for g in each_graph(model.graph) for t in g.initializer}


def decoded(model: onnx.ModelProto, name: str, length: int) -> np.ndarray:
    """Return the weight that integers stand for, [D, R, length], by the arrays of the file alone."""
    arrays = arrays_of(model)
    numbers, scale = arrays[f"{name}_quantized"].astype(np.float32), arrays[f"{name}_scale"]
    zeros = arrays.get(f"{name}_zero_point", np.float32(0)).astype(np.float32)
    if numbers.ndim == 2:  # rows of all directions, one below the other
        wide = (numbers - zeros[:, None]) * scale[:, None]
        return wide.reshape(2, -1, length)
    whole = (numbers - zeros) * scale
    return whole.reshape(*whole.shape[:2], -1)[..., :length]


@pytest.mark.parametrize("op", FORMS)
@pytest.mark.parametrize(
    ("dtype", "block", "target"),
    [("int8", 0, ""), ("uint8", 0, ""), ("int4", 32, ""), ("int4", 0, ""), ("int8", 0, "openvino")],
)
def test_layers_compute_with_what_the_integers_stand_for(
    op: str, dtype: str, block: int, target: str
) -> None:
    """With and without optimization, in rows of 40 and 24 numbers: blocks of 32 have a short end."""
    source = recurrent.gated(op)
    model = stored(source, dtype=dtype, block_size=block, target=target)
    expected = onnx.ModelProto.FromString(source.SerializeToString())
    for tensor in expected.graph.initializer:
        if tensor.name in ("w0", "r0"):
            values = decoded(model, tensor.name, tensor.dims[2])
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    for optimize in (True, False):
        found, wanted = (run(one, optimize=optimize) for one in (model, expected))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=OF_SUMS)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_rows_have_scales_of_their_own(dtype: str) -> None:
    """A row of 1000 times the size of the others loses them nothing. Bound: half of 1/7 or 1/127 of a row's
    largest number; the least squared error allows more for a few numbers, not for all together.
    """
    source = recurrent.gated("LSTM")
    weight = next(t for t in source.graph.initializer if t.name == "w0")
    values = numpy_helper.to_array(weight).copy()
    values[0, 5] *= 1000
    weight.CopyFrom(numpy_helper.from_array(values, "w0"))
    found = decoded(stored(source, dtype=dtype), "w0", 40)
    step = np.abs(values).max(-1) / {"int8": 127, "int4": 7}[dtype]
    assert np.all(np.sqrt(np.square(found - values).mean(-1)) <= step / 2)
    assert arrays_of(stored(source, dtype=dtype))["w0_scale"].shape == (2, 96, 1)


def test_runtimes_fold_what_reads_the_integers(tmp_path: Path) -> None:
    """The optimized model of ONNX Runtime has the layer alone, on stored float weights."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(stored(recurrent.gated("GRU")).SerializeToString(), options)
    names = {node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node}
    assert "GRU" in names
    assert names.isdisjoint({"Cast", "Mul", "DequantizeLinear"})


@pytest.mark.parametrize("config", ["W8", "W4", "A8W8", "A16W8", "U8S8", "XINT8", "BFP16", "MX6"])
def test_weights_in_bodies_are_in_the_format_of_the_preset(config: str) -> None:
    """Bodies read weights from outside: each is stored once, in the bits of the preset or on its grid."""
    graph = graph_proto.import_model(recurrent.gated("LSTM", in_body=True))
    quantize_graph(graph, preset(config).by_rule(), None)
    model = graph_proto.export_model(graph)
    arrays = arrays_of(model)
    weights = [name for name in arrays if name.startswith(("w0", "r0")) and arrays[name].size > 1000]
    assert len(weights) == 2, "no copies in the bodies"
    for name in weights:
        fmt = preset(config).format(preset(config).weight)
        assert fmt is not None
        if fmt.is_integer:
            assert arrays[name].dtype == fmt.dtype
        else:
            values = arrays[name]
            np.testing.assert_array_equal(ops.quantize_dequantize(values, fmt, -1), values)
    found, float_ones = (run(one, c=np.array(True)) for one in (model, recurrent.gated("LSTM", in_body=True)))
    assert np.square(found - float_ones).sum() < 0.05 * np.square(float_ones).sum()


def test_what_stays_float() -> None:
    """Excluded layers, small weights, and integers that the scheme wants rounded by nodes."""
    source = recurrent.gated("GRU")
    graph = graph_proto.import_model(source)
    assert quantize_recurrent(graph, exclude=["rec0"]) == 0
    assert quantize_recurrent(graph_proto.import_model(recurrent.gated("RNN", 3, 5, 1))) == 0
    quantize_graph(graph, preset("W8").with_(layers={"GRU": {"weight": "float32"}}), None)
    quantize_graph(graph_proto.import_model(source), preset("W8").with_(keep_weight_nodes=True), None)
    assert all(arrays_of(graph_proto.export_model(graph))[name].dtype == np.float32 for name in ("w0", "r0"))


def test_removal_gives_the_float_weights_back() -> None:
    """As what the integers stand for: no result changes."""
    source = recurrent.gated("LSTM")
    for target in ("", "openvino"):
        model = stored(source, target=target)
        graph = graph_proto.import_model(model)
        layer = next(node for node in walk.nodes(graph) if node.op == "LSTM")
        rows = stored_rows(layer.inputs[1])
        assert rows is not None and rows.format == "int8"
        np.testing.assert_array_equal(rows.values(), decoded(model, "w0", 40))
        assert remove_qdq(graph, nodes=["rec0"]) == 2
        back = graph_proto.export_model(graph)
        assert all(node.op_type not in ("Mul", "DequantizeLinear") for node in each_node(back.graph))
        np.testing.assert_allclose(run(back), run(model), rtol=0, atol=OF_SUMS)


def test_int4_of_the_file_takes_4_bits() -> None:
    """Oracle: the type that ml_dtypes gives the stored array."""
    arrays = arrays_of(stored(recurrent.gated("RNN"), dtype="int4"))
    assert arrays["w0_quantized"].dtype == ml_dtypes.int4
