"""Oracle: the float model, fed with inputs and weights that ml_dtypes rounded."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.helpers import build, conversion, corpus
from tests.helpers.rounded import bf16
from transforms import model_io
from transforms.graph import walk
from transforms.graph.selection import select
from transforms.lift_constants import lift_constants
from transforms.model import graph_proto
from transforms.simulate_bf16 import simulate_bf16
from transforms.widen_float16 import widen_float16

UNLIKE = {"resize", "resize computed", "shape arithmetic", "scale by size", "quantized", "half input"}
"""What the oracle rounds and a conversion does not, or the other way round: see the tests below."""


def rounded_by_hand(model: onnx.ModelProto) -> onnx.ModelProto:
    result = onnx.ModelProto.FromString(model.SerializeToString())
    graphs = [result.graph]
    while graphs:
        graph = graphs.pop()
        graphs += [
            attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")
        ]
        for tensor in graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(bf16(numpy_helper.to_array(tensor)), tensor.name))
    return result


@pytest.mark.parametrize("name", sorted(corpus.MODELS.keys() - UNLIKE))
def test_weights_and_inputs_alone_are_rounded(name: str) -> None:
    graph = model_io.load(corpus.build(name))
    lift_constants(graph)
    lifted = graph_proto.export_model(graph)
    feeds = corpus.feeds(lifted)
    count = simulate_bf16(graph)
    assert simulate_bf16(graph) == 0
    simulated = graph_proto.export_model(graph)
    onnx.checker.check_model(simulated, full_check=True)
    found = conversion.run(simulated, feeds)
    expected = conversion.run(rounded_by_hand(lifted), {key: bf16(value) for key, value in feeds.items()})
    handed_on = {value.name for value in lifted.graph.output} & (feeds.keys() | {"w", "held", "p"})
    assert conversion.same(*({k: v for k, v in d.items() if k not in handed_on} for d in (found, expected)))
    assert (count > 0) or name in ("output of a cast", "branches of constants alone")
    casts = [node for node in walk.nodes(graph) if node.op == "Cast" and node.attrs["to"] == 16]
    assert len(casts) <= len(feeds)


@pytest.mark.parametrize("width", (4, 256))
def test_weights_on_the_grid_are_not_counted(width: int) -> None:
    graph = model_io.load(build.dense(width, layers=3))
    assert simulate_bf16(graph) == 4
    graph = model_io.load(rounded_by_hand(build.dense(width, layers=3)))
    assert simulate_bf16(graph) == 1, "the input alone"


def test_scales_stay_and_other_uses_read_a_copy() -> None:
    graph = model_io.load(corpus.build("resize"))
    simulate_bf16(graph)
    values = {tensor.name: tensor.values for tensor in walk.constants(graph)}
    assert values["scales"].tobytes() == np.array([1, 1, 2.3, 2.3], np.float32).tobytes()
    assert values["scales_bf16"].tobytes() == bf16(values["scales"]).tobytes()


def test_excluded_nodes_keep_their_weights() -> None:
    graph = model_io.load(corpus.build("shared weight"))
    assert simulate_bf16(graph, exclude=select(graph, op_types=["Mul"])) == 2
    names = {node.op: [tensor.name for tensor in node.inputs] for node in graph.nodes}
    assert (names["Mul"][1], names["Add"][1]) == ("w", "w_bf16")
    graph = model_io.load(corpus.build("shared weight"))
    assert simulate_bf16(graph, exclude=select(graph, names=[], op_types=["Mul", "Add", "Sub"])) == 0


@pytest.mark.parametrize("keep", (True, False))
def test_half_inputs_are_rounded_behind_their_cast(keep: bool) -> None:
    graph = model_io.load(build.dense(8, dtype=np.float16))
    widen_float16(graph, keep_io_types=keep)
    assert simulate_bf16(graph, keep_io_types=keep) == 2
    assert simulate_bf16(graph, keep_io_types=keep) == 0
    low = [tensor.name for node in graph.nodes for tensor in node.outputs if tensor.dtype == 16]
    assert len(low) == (1 if keep else 0)
    assert (graph.inputs[0].dtype == np.float16) is keep
