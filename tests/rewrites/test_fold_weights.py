"""Oracle: ml_dtypes' rounding of the weights, and the results before folding, bit for bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import TensorProto, numpy_helper

from tests.helpers import build, conversion, corpus
from tests.helpers.spread import spread
from transforms import model_io
from transforms.fold_weights import fold_weights
from transforms.graph import walk
from transforms.insert_bf16_qdq import insert_bf16_qdq
from transforms.insert_cast import insert_cast
from transforms.model import graph_proto


@pytest.mark.parametrize(("name", "insert"), spread(corpus.MODELS, (insert_cast, insert_bf16_qdq), of=2))
def test_no_number_changes(name: str, insert: object) -> None:
    model = corpus.build(name)
    feeds = corpus.feeds(model)
    graph = model_io.load(model)
    insert(graph)
    expected = conversion.run(graph_proto.export_model(graph), feeds)
    before = sum(1 for _ in walk.nodes(graph))
    count = fold_weights(graph)
    assert sum(1 for _ in walk.nodes(graph)) == before - count
    folded = graph_proto.export_model(graph)
    onnx.checker.check_model(folded, full_check=True)
    assert conversion.same(conversion.run(folded, feeds), expected)
    assert fold_weights(graph) == 0


@pytest.mark.parametrize("width", (4, 256))
@pytest.mark.parametrize("special", (0.1, np.nan, np.inf, 3.4e38, 1e-45))
def test_stored_bits(width: int, special: float) -> None:
    model = build.dense(width)
    weight = numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight[0, 0] = special
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "weight0"))
    graph = model_io.load(model)
    insert_cast(graph)
    assert fold_weights(graph) == 1
    (stored,) = graph_proto.export_model(graph).graph.initializer
    assert (stored.name, stored.data_type) == ("weight0", TensorProto.BFLOAT16)
    found = numpy_helper.to_array(stored)
    assert np.array_equal(
        found.astype(np.float32), weight.astype(ml_dtypes.bfloat16).astype(np.float32), equal_nan=True
    )


def test_float_is_kept_where_something_else_reads_it() -> None:
    graph = model_io.load(corpus.build("resize"))
    insert_cast(graph)
    assert fold_weights(graph) == 1
    kept = {t.name: t.values.dtype for t in walk.constants(graph)}
    assert kept == {"scales": np.float32, "scales_bf16": ml_dtypes.bfloat16}


def test_weight_that_is_an_output_stays() -> None:
    model = corpus.build("weight is output")
    graph = model_io.load(model)
    insert_cast(graph)
    fold_weights(graph)
    found = conversion.run(graph_proto.export_model(graph), {"x": np.zeros(2, np.float32)})
    assert found["w"].tobytes() == np.array([0.1, 0.2], np.float32).tobytes()


def pair(scale: float, zero_point: np.ndarray, computed: bool = False) -> gs.Graph:
    w, one = gs.Constant("w", np.array([0.1], np.float32)), gs.Constant("s", np.array(scale, np.float32))
    zero = gs.Constant("z", zero_point)
    low, high = gs.Variable("low", TensorProto.BFLOAT16, [1]), gs.Variable("y", np.float32, [1])
    source = gs.Variable("x", np.float32, [1]) if computed else w
    nodes = [
        gs.Node(
            "ExtendedQuantizeLinear", inputs=[source, one, zero], outputs=[low], domain="ai.onnx.contrib"
        ),
        gs.Node(
            "ExtendedDequantizeLinear", inputs=[low, one, zero], outputs=[high], domain="ai.onnx.contrib"
        ),
    ]
    return gs.Graph(nodes, outputs=[high], opset=17)


def test_only_neutral_pairs_of_constants_are_folded() -> None:
    zero = np.array(0, ml_dtypes.bfloat16)
    assert fold_weights(pair(1, zero)) == 1
    assert fold_weights(pair(2, zero)) == 0
    assert fold_weights(pair(1, np.array(1, ml_dtypes.bfloat16))) == 0
    assert fold_weights(pair(1, np.array(0, np.int8))) == 0
    assert fold_weights(pair(1, zero, computed=True)) == 0
