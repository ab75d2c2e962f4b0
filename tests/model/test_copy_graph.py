"""Copies of graphs. Oracle: the model that a graph is exported to, and what an import of that makes."""

from __future__ import annotations

import time
import timeit
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from tests.benchmarks.chain_models import chain
from tests.helpers import build, corpus
from transforms.graph import walk
from transforms.model.copy_graph import copy_graph
from transforms.model.graph_proto import export_model, import_model


def bytes_of(graph: gs.Graph) -> bytes:
    return export_model(graph).SerializeToString(deterministic=True)


def users(graph: gs.Graph) -> list[tuple[str, list[str]]]:
    found = (tensor for inner in walk.graphs(graph) for tensor in walk.tensors(inner).values())
    return [(tensor.name, [node.name for node in tensor.outputs]) for tensor in found]


@pytest.mark.parametrize("name", corpus.MODELS)
def test_is_what_an_import_of_the_export_is(name: str) -> None:
    graph = import_model(corpus.build(name))
    before = bytes_of(graph)
    copy = copy_graph(graph)
    again = import_model(export_model(graph))
    assert bytes_of(copy) == before
    assert users(copy) == users(again)
    for inner in walk.graphs(copy):
        inner.nodes.clear()
        inner.outputs.clear()
    assert bytes_of(graph) == before


@pytest.mark.parametrize("name", corpus.MODELS)
def test_shares_nothing_but_weights(name: str) -> None:
    graph = import_model(corpus.build(name))
    copy = copy_graph(graph)
    parts = [
        {
            id(one)
            for inner in walk.graphs(each)
            for one in (*inner.nodes, *walk.tensors(inner).values(), inner)
        }
        for each in (graph, copy)
    ]
    assert not parts[0] & parts[1]
    weights = zip(walk.constants(graph), walk.constants(copy), strict=True)
    assert all(one._values is other._values for one, other in weights)


def test_lists_of_nodes_and_shapes_are_its_own() -> None:
    graph = import_model(build.dense(layers=2))
    graph.nodes[0].attrs |= {"sizes": [1, 2], "value": gs.Constant("value", np.ones(2, np.float32))}
    before = bytes_of(graph)
    copy = copy_graph(graph)
    copy.nodes[0].attrs["sizes"].append(3)
    copy.nodes[0].attrs["value"].values = np.zeros(2, np.float32)
    copy.nodes[0].attrs["other"] = 1
    copy.nodes[0].outputs[0].shape[0] = 7
    copy.nodes[1].inputs[0] = copy.inputs[0]
    copy.inputs[0].name = "renamed"
    assert bytes_of(graph) == before != bytes_of(copy)


def test_a_node_of_graph_surgeon_equals_itself_alone() -> None:
    graph = import_model(build.dense(layers=1))
    made = [gs.Variable(name, np.float32) for name in "ab"]
    graph.nodes += [gs.Node("Relu", inputs=[graph.outputs[0]], outputs=[one]) for one in made]
    first, second = copy_graph(graph).nodes[-2:]
    assert first != second and first == first


def test_is_faster_than_an_import() -> None:
    """In the best of five times, which no collection of garbage is a part of."""
    graph = import_model(chain("own", 300))
    ways = (copy_graph, lambda graph: import_model(export_model(graph)))
    times = [min(timeit.repeat(partial(copy, graph), timer=time.process_time, number=1)) for copy in ways]
    assert times[0] * 2 < times[1]
