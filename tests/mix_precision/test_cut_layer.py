"""Layers cut out of quantized models. Oracle: the whole model, in which the tensors around the layer are
shown: on what the layer reads there, the layer alone makes the same, to the last bit."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

from tests.helpers import build, mixing, tunable
from transforms.mix_precision.candidates import layers_of
from transforms.mix_precision.cut_layer import cut_layer, float_raw, layer_ends
from transforms.mix_precision.mixed_model import MixedModel
from transforms.model import graph_proto
from transforms.run.instrumented_model import InstrumentedModel
from transforms.runtime.session import open_session
from transforms.scheme import preset


def clipped() -> onnx.ModelProto:
    """A Conv with a Clip, and one whose result a Relu and the output read."""
    weights = {"w1": mixing.normal(3, 3, 1, 1), "w2": mixing.normal(3, 3, 1, 1, seed=1)}
    weights |= {"low": np.array(-1, np.float32), "high": np.array(1, np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], "one"),
        helper.make_node("Clip", ["c1", "low", "high"], ["k1"], "clip"),
        helper.make_node("Conv", ["k1", "w2"], ["y"], "two"),
        helper.make_node("Relu", ["y"], ["z"], "relu"),
    ]
    ends = [build.value(name, ["n", 3, 4, 4]) for name in "xyz"]
    return build.model(nodes, ends[:1], ends[1:], weights)


def branching() -> onnx.ModelProto:
    """A Conv whose result a Relu in one branch of an If reads, and nothing else."""
    branches = {}
    for op in ("Relu", "Neg"):
        made = helper.make_node(op, ["c"] if op == "Relu" else ["x"], [op], op)
        branches[op] = helper.make_graph([made], op, [], [build.value(op, None)])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "one"),
        helper.make_node("ReduceSum", ["x"], ["sum"], "sum", keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"], "positive"),
        helper.make_node(
            "If", ["positive"], ["y"], "if", then_branch=branches["Relu"], else_branch=branches["Neg"]
        ),
    ]
    ends = [build.value(name, ["n", 3, 4, 4]) for name in "xy"]
    weights = {"w": mixing.normal(3, 3, 1, 1), "zero": np.zeros((), np.float32)}
    return build.model(nodes, ends[:1], ends[1:], weights)


MODELS = {
    "branching": branching(),
    "conv": tunable.conv_net(),
    "matmul": tunable.matmul_net(),
    "attention": mixing.attention(),
    "clipped": clipped(),
}
ENDS = {
    "branching": {"one": "c"},
    "conv": {"conv": "r1", "depthwise": "r2", "transposed": "r3", "dense": "y"},
    "matmul": {"first": "r1", "second": "y"},
    "attention": {"query": "q", "key": "k", "value": "z", "scores": "s", "context": "c", "output": "y"},
    "clipped": {"one": "k1", "two": "y"},
}


def ends_of(mixed: MixedModel) -> dict[str, dict[str, frozenset[str]]]:
    return {name: layer_ends(mixed.graph, nodes) for name, nodes in layers_of(mixed.graph).items()}


@pytest.mark.parametrize("model", MODELS)
def test_a_layer_ends_with_what_is_fused_with_it(model: str) -> None:
    mixed, _ = mixing.prepared(MODELS[model], preset("A16W8"), [], tunable.samples(MODELS[model], 1))
    assert {name: [*ends] for name, ends in ends_of(mixed).items()} == {
        name: [end] for name, end in ENDS[model].items()
    }


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("scheme", "label"),
    [("A16W8", None), ("A16W8", "int8"), ("A8W8", "float32"), ("BF16", "mx6"), ("U8S8", None)],
)
def test_a_layer_alone_makes_what_it_makes_in_the_model(model: str, scheme: str, label: str | None) -> None:
    feeds, labels = tunable.samples(MODELS[model], 1), [label] if label else []
    mixed, names = mixing.prepared(MODELS[model], preset(scheme), labels, feeds)
    whole = mixed.build(dict.fromkeys(names, mixing.rule(label)) if label else {}, finished=False)
    for name, ends in ends_of(mixed).items():
        cut = cut_layer(name, whole.graph, whole.raw, ends)
        assert cut.name == name
        onnx.checker.check_model(graph_proto.export_model(cut), full_check=True)
        same_as_in(whole.graph, {t.name: str(whole.raw[t.name].name) for t in cut.inputs}, cut, feeds)


def test_a_layer_of_the_float_model_is_cut_as_well() -> None:
    feeds = tunable.samples(MODELS["conv"], 1)
    mixed, _ = mixing.prepared(MODELS["conv"], preset("A16W8"), [], feeds)
    raw = float_raw(mixed.graph)
    for name, ends in ends_of(mixed).items():
        cut = cut_layer(name, mixed.graph, raw, ends)
        assert [t.name for t in cut.outputs] == [ENDS["conv"][name]]
        same_as_in(mixed.graph, {t.name: t.name for t in cut.inputs}, cut, feeds)


def same_as_in(whole: gs.Graph, inputs: dict[str, str], cut: gs.Graph, feeds: mixing.Feeds) -> None:
    """Assert that a layer alone makes what it makes in a model; ``inputs``: their names there."""
    outputs = [str(tensor.name) for tensor in cut.outputs]
    there = [name.removesuffix("_cut") for name in outputs]  # of a name that an input has
    found = InstrumentedModel(whole, [*inputs.values(), *there], mixing.SIMULATED).run(feeds[0])
    feed = {name: found[place] for name, place in inputs.items()}
    made = open_session(cut, mixing.SIMULATED).run(feed)
    assert mixing.same([made], [{name: found[place] for name, place in zip(outputs, there, strict=True)}])
