"""Oracle: ONNX Runtime runs the whole model at once."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

from tests.helpers import build, tunable
from transforms.model import graph_proto
from transforms.run.kept_arrays import ActivationStore
from transforms.run.run_model import open_model
from transforms.run.segmented_model import SegmentedRun

CONV = tunable.conv_net()
DATA = tunable.samples(CONV, 3)
STEPS = ["c1", "c2", "r2", "y"]


def _whole(model: onnx.ModelProto, feed: dict[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    known = {value.name for value in wide.graph.output}
    wide.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    return open_model(graph_proto.import_model(wide)).run(feed, names)


@pytest.mark.parametrize("limit", [None, 0, 10_000])
def test_steps_make_what_the_whole_model_makes(limit: int | None) -> None:
    graph = graph_proto.import_model(CONV)
    with ActivationStore(limit) as store:
        stepped = SegmentedRun(graph, DATA, STEPS, store)
        for name in STEPS:
            found = [one[name] for one in stepped.advance([name])]
            for feed, array in zip(DATA, found, strict=True):
                assert np.allclose(array, _whole(CONV, feed, [name])[name], atol=1e-5)


def test_what_is_forgotten_is_let_go() -> None:
    with ActivationStore() as store:
        stepped = SegmentedRun(graph_proto.import_model(CONV), DATA, STEPS, store)
        for name in STEPS:
            assert len(list(stepped.advance([name]))) == len(DATA)
            stepped.forget(name)
        assert not store._arrays and store._bytes == 0


def test_a_tensor_can_be_asked_for_twice() -> None:
    with ActivationStore() as store:
        stepped = SegmentedRun(graph_proto.import_model(CONV), DATA, STEPS, store)
        first = [one["c2"] for one in stepped.advance(["c2"])]
        second = [one["c2"] for one in stepped.advance(["c2"])]
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_weights_may_change_before_their_layer_runs() -> None:
    graph = graph_proto.import_model(CONV)
    node = next(node for node in graph.nodes if node.name == "dense")
    with ActivationStore() as store:
        stepped = SegmentedRun(graph, DATA, ["f", "y"], store)
        inputs = [one["f"] for one in stepped.advance(["f"])]
        node.inputs[1].values = np.zeros((5, 6), np.float32)
        node.inputs[2].values = np.arange(5, dtype=np.float32)
        outputs = [one["y"] for one in stepped.advance(["y"])]
    assert all(x.any() for x in inputs)
    assert all(np.array_equal(y, np.arange(5, dtype=np.float32)[None]) for y in outputs)


@pytest.mark.parametrize("limit", [None, 0])
def test_a_restart_runs_with_weights_that_changed(limit: int | None) -> None:
    graph = graph_proto.import_model(CONV)
    node = next(node for node in graph.nodes if node.name == "conv")
    with ActivationStore(limit) as store:
        stepped = SegmentedRun(graph, DATA, ["c1", "y"], store)
        before = [one["y"] for one in stepped.advance(["y"])]
        node.inputs[1].values = np.zeros((8, 3, 3, 3), np.float32)
        assert all(np.array_equal(a["y"], b) for a, b in zip(stepped.advance(["y"]), before, strict=True))
        stepped.restart()
        model = graph_proto.export_model(graph)
        for feed, one in zip(DATA, stepped.advance(["y"]), strict=True):
            assert np.allclose(one["y"], _whole(model, feed, ["y"])["y"], atol=1e-5)
        assert not np.allclose(one["y"], before[-1], atol=1e-2)


@pytest.mark.parametrize("changes", [{}, {"bfloat16_as": "cast"}])
def test_tensors_that_arrays_can_not_hold_are_not_kept(changes: dict[str, str]) -> None:
    _, quantized = tunable.pair(CONV, "BF16", DATA, **changes)
    layers = [node.inputs[0].name for node in quantized.nodes if node.op in ("Conv", "ConvTranspose", "Gemm")]
    model = graph_proto.export_model(quantized)
    with ActivationStore() as store:
        stepped = SegmentedRun(quantized, DATA, layers, store)
        for name in layers:
            for feed, one in zip(DATA, stepped.advance([name]), strict=True):
                assert np.allclose(one[name], _whole(model, feed, [name])[name], rtol=2**-7)


def test_bodies_read_what_was_made_before() -> None:
    body = [helper.make_node("Add", ["r", "r"], ["two"], "double")]
    other = [helper.make_node("Neg", ["r"], ["minus"], "negate")]
    branches = {
        "then_branch": helper.make_graph(body, "then", [], [build.value("two", None)]),
        "else_branch": helper.make_graph(other, "else", [], [build.value("minus", None)]),
    }
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Abs", ["r"], ["a"], "abs"),
        helper.make_node("If", ["c"], ["y"], "if", **branches),
    ]
    ends = [build.value("x", ["n", 4]), build.value("c", [], np.bool_)], [build.value("y", None)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", *ends), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    x = np.array([[1, -2, 3, -4]], np.float32)
    feeds = [{"x": x, "c": np.array(choice)} for choice in (True, False)]
    graph: gs.Graph = graph_proto.import_model(model)
    with ActivationStore() as store:
        stepped = SegmentedRun(graph, feeds, ["a", "y"], store)
        assert len(list(stepped.advance(["a"]))) == 2
        found = [one["y"] for one in stepped.advance(["y"])]
    positive = np.maximum(x, 0)
    assert np.array_equal(found[0], 2 * positive) and np.array_equal(found[1], -positive)


@pytest.mark.parametrize("names", [["c1"], ["c1", "r2"], ["c1", "c1"]])
def test_what_is_asked_for_the_last_time_is_let_go_at_once(names: list[str]) -> None:
    """But for what nodes that wait still read, or somebody else still wants."""
    with ActivationStore() as store:
        stepped = SegmentedRun(graph_proto.import_model(CONV), DATA, [*names, "y"], store)
        found = [dict(one) for one in stepped.advance(names, last=True)]
        assert {name for _, name in store._arrays} <= {"r1", "r2", "c1"} - (
            {"c1"} if "r2" in names else set()
        )
        assert all(set(one) == set(names) for one in found)
        assert len(list(stepped.advance(["y"], last=True))) == len(DATA)
        assert not store._arrays and store._bytes == 0


def test_one_of_two_who_want_a_tensor_leaves_it_to_the_other() -> None:
    with ActivationStore() as store:
        stepped = SegmentedRun(graph_proto.import_model(CONV), DATA, ["c2", "c2"], store)
        first, second = ([one["c2"] for one in stepped.advance(["c2"], last=True)] for _ in range(2))
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


SEQUENCE = """<ir_version: 8, opset_import: ["" : 17]> g (float[3,4] x) => (float[P,Q] y)
    <int64 size={2}, int64 zero={0}, int64 one={1}, float[2,2] w={1,2,3,4}> {
    s = SplitToSequence <axis=1>(x, size) e = SequenceEmpty() u = SequenceAt(s, zero) b = MatMul(u, w)
    t = SequenceInsert(s, b) c = MatMul(b, w) v = SequenceAt(t, one) d = Add(c, v) f = SequenceInsert(e, d)
    h = MatMul(d, w) j = SequenceInsert(f, h) y = ConcatFromSequence <axis=1>(j) }"""


@pytest.mark.parametrize("limit", [None, 0])
def test_sequences_live_from_step_to_step(limit: int | None) -> None:
    """An empty one is among them; what is not needed any more is let go, in files too."""
    model = onnx.parser.parse_model(SEQUENCE)
    graph = graph_proto.import_model(model)
    random = np.random.default_rng(0)
    feeds = [{"x": random.standard_normal((3, 4)).astype(np.float32)} for _ in range(3)]
    with ActivationStore(limit) as store:
        stepped = SegmentedRun(graph, feeds, ["u", "b", "c", "h", "y"], store)
        for name in ("u", "b", "c", "h", "y"):
            for feed, one in zip(feeds, stepped.advance([name], last=True), strict=True):
                assert np.allclose(one[name], _whole(model, feed, [name])[name], atol=1e-6)
        assert not store._arrays and store._bytes == 0


def test_layers_before_what_a_sequence_gets_are_not_run_early() -> None:
    """What is put in behind a layer waits for its weight."""
    graph = graph_proto.import_model(onnx.parser.parse_model(SEQUENCE))
    feeds = [{"x": np.ones((3, 4), np.float32)}]
    node = next(node for node in graph.nodes if node.outputs[0].name == "b")
    with ActivationStore() as store:
        stepped = SegmentedRun(graph, feeds, ["u", "y"], store)
        assert len(list(stepped.advance(["u"]))) == 1
        node.inputs[1] = gs.Constant("others", np.zeros((2, 2), np.float32))
        (last,) = stepped.advance(["y"])
        assert np.array_equal(last["y"][:, :2], np.ones((3, 2), np.float32))
