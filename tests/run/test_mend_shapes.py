"""Oracle: what ONNX Runtime makes of the samples."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from transforms.graph.typed import Graph, info_of
from transforms.model import graph_proto
from transforms.run import mend_shapes as module
from transforms.run.mend_shapes import mend_shapes

FEEDS = [{"x": np.ones((4, batch, 2), np.float32)} for batch in (3, 2)]


def _graph(state: str) -> Graph:
    """Return a model whose LSTM declares its state as an exporter does that traced a batch of 1."""
    weight = f"{{{', '.join(['0.1, 0.2'] * 8)}}}"
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[T,B,2] x) => (float{state} h)
        <float[1,8,2] w = {weight}, float[1,8,2] r = {weight}> {{ y, h = LSTM <hidden_size=2>(x, w, r) }}"""
    return graph_proto.import_model(parser.parse_model(text))


def test_a_size_that_a_run_contradicts_is_cleared_and_noted() -> None:
    graph = _graph("[1,1,2]")
    assert mend_shapes(graph, FEEDS) == 1
    assert list(graph.outputs[0].shape) == [1, None, 2]
    assert info_of(graph).notes == ["The declared shape of 'h' was wrong: [1, 1, 2], a run makes [1, 3, 2]"]
    sizes = graph_proto.export_model(graph).graph.output[0].type.tensor_type.shape.dim
    assert [size.dim_value for size in sizes] == [1, 0, 2]


def test_a_second_time_nothing_is_left_to_mend() -> None:
    graph = _graph("[1,1,2]")
    mend_shapes(graph, FEEDS)
    assert mend_shapes(graph, FEEDS) == 0 and len(info_of(graph).notes) == 1


def test_another_rank_is_cleared() -> None:
    """Of an operator of another domain onnx infers nothing."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[T,B,2] x) => (float[3] y)
        { y = com.microsoft.Gelu(x) }"""
    graph = graph_proto.import_model(parser.parse_model(text))
    assert mend_shapes(graph, FEEDS) == 1 and list(graph.outputs[0].shape) == [None] * 3


def test_what_runs_make_stays_declared() -> None:
    graph = _graph("[1,3,2]")
    assert mend_shapes(graph, FEEDS[:1]) == 0 and list(graph.outputs[0].shape) == [1, 3, 2]


@pytest.mark.parametrize("state", ["[1,B,2]", "[1,S,2]"])
def test_a_model_whose_sizes_follow_is_not_run(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(module, "InstrumentedModel")
    assert mend_shapes(_graph(state), FEEDS) == 0
