"""A graph as a model. Oracle: graph-surgeon's own exporter, byte for byte."""

from __future__ import annotations

import time

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from numpy.typing import DTypeLike

from tests.benchmarks.chain_models import chain
from tests.helpers import build, corpus
from transforms.graph.lazy_values import Computed
from transforms.model.export_graph import export_graph
from transforms.model.graph_proto import import_model


def bytes_of(model: onnx.ModelProto) -> bytes:
    return model.SerializeToString(deterministic=True)


def assert_same(graph: gs.Graph) -> None:
    assert bytes_of(export_graph(graph)) == bytes_of(gs.export_onnx(graph, do_type_check=False))


@pytest.mark.parametrize("name", corpus.MODELS)
def test_models_as_they_are_and_with_inferred_types(name: str) -> None:
    assert_same(gs.import_onnx(corpus.build(name)))
    assert_same(import_model(corpus.build(name)))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.bool_, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_constants_of_all_kinds(dtype: DTypeLike, shape: tuple[int, ...]) -> None:
    graph = gs.import_onnx(build.dense(layers=1))
    values = np.zeros(shape, dtype)
    graph.nodes[0].inputs[1] = gs.Constant("w", values)
    assert_same(graph)
    graph.nodes[0].inputs[1] = gs.Constant("w", Computed(shape, dtype, lambda: values))
    assert_same(graph)


def test_types_names_and_attributes_that_are_rare() -> None:
    graph = gs.import_onnx(build.dense(layers=2))
    node = graph.nodes[0]
    node.attrs |= {"whole": 3, "sure": True, "part": 0.5, "words": ["a"], "kind": np.float32}
    node.attrs["tensor"] = gs.Constant("value", np.ones(2, np.float32))
    node.name, node.domain, graph.doc_string, graph.ir_version = "", "some.domain", "words", None
    node.inputs.append(gs.Variable.empty())
    for tensor, shape in zip((node.outputs[0], graph.inputs[0]), ((), (None, "N", 16)), strict=True):
        tensor.shape = shape
    graph.outputs[0].dtype = graph.outputs[0].shape = None
    other = gs.Variable("sequence", np.float32, None, "sequence_type")
    graph.nodes.append(gs.Node("SequenceEmpty", outputs=[other]))
    assert_same(graph)


def test_a_name_of_two_tensors_stands_for_the_last() -> None:
    graph = gs.import_onnx(build.dense(layers=1))
    graph.nodes[0].outputs[0].name = graph.nodes[0].inputs[0].name
    assert_same(graph)


def test_is_faster() -> None:
    graph = import_model(chain("own", 3000))
    seconds = dict[object, list[float]]()
    for export in (gs.export_onnx, export_graph) * 3:
        start = time.process_time()
        export(graph)
        seconds.setdefault(export, []).append(time.process_time() - start)
    assert min(seconds[export_graph]) < 0.7 * min(seconds[gs.export_onnx])
