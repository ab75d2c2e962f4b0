"""Oracle: NumPy's clip to the range of bfloat16, whose largest number has the bits 0x7F7F0000."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import conversion, corpus
from transforms import model_io
from transforms.graph.selection import select
from transforms.insert_cast import insert_cast
from transforms.model import graph_proto
from transforms.saturate_activations import saturate_activations

LIMIT = np.uint32(0x7F7F0000).view(np.float32)
HUGE = np.float32(3.4e38)


def clips(graph: gs.Graph) -> int:
    return graph_proto.export_model(graph).SerializeToString().count(b"Clip")


@pytest.mark.parametrize("name", corpus.MODELS)
def test_results_within_the_range_stay(name: str) -> None:
    model = corpus.build(name)
    feeds = corpus.feeds(model)
    graph = model_io.load(model)
    count = saturate_activations(graph)
    exported = graph_proto.export_model(graph)
    onnx.checker.check_model(exported, full_check=True)
    assert conversion.same(conversion.run(exported, feeds), conversion.run(model, feeds))
    assert clips(graph) >= count


@pytest.mark.parametrize("name", corpus.MODELS)
def test_second_run_and_casts_after_it(name: str) -> None:
    graph = model_io.load(corpus.build(name))
    saturate_activations(graph)
    assert saturate_activations(graph) == 0
    insert_cast(graph)
    assert saturate_activations(graph) == 0
    assert insert_cast(graph) == 0
    onnx.checker.check_model(graph_proto.export_model(graph), full_check=True)


def test_every_rounded_tensor_is_clipped() -> None:
    """x and t go beyond the range and would become infinite by rounding."""
    model = corpus.parse("(float[1] x) => (float[1] y, float[1] t) { t = Neg(x) y = Abs(t) }")
    graph = model_io.load(model)
    assert saturate_activations(graph) == 3
    insert_cast(graph)
    found = conversion.run(graph_proto.export_model(graph), {"x": np.array([HUGE])})
    assert (found["y"], found["t"]) == (LIMIT, -LIMIT)
    found = conversion.run(graph_proto.export_model(graph), {"x": np.array([-np.inf], np.float32)})
    assert found["t"] == LIMIT


def test_excluded_nodes_and_bfloat16_inputs() -> None:
    text = "(float[1] x) => (float[1] y) { [a] p = Neg(x) [b] q = Abs(p) [c] y = Exp(q) }"
    graph = model_io.load(corpus.parse(text))
    assert saturate_activations(graph, exclude=select(graph, names=["a", "b"])) == 2, "q and y"
    graph = model_io.load(corpus.parse(text))
    assert saturate_activations(graph, keep_io_types=False) == 3, "p, q and y"
    graph = model_io.load(corpus.parse(text))
    assert saturate_activations(graph, exclude=select(graph, names=["*"])) == 0


def test_old_opsets_are_refused() -> None:
    graph = model_io.load(corpus.build("relu only", opset=11))
    with pytest.raises(ValueError, match="from opset 12 on, the model has 11"):
        saturate_activations(graph)
