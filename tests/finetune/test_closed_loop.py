"""Recurrent models judged with their own states. Oracle: the recurrence of the network, written in NumPy."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

from tests.helpers import build, recurrent
from transforms.finetune.closed_loop import ClosedLoop
from transforms.finetune.find_states import find_states, is_stream
from transforms.finetune.judged_samples import JudgedSamples
from transforms.finetune.options import FinetuneOptions
from transforms.model import graph_proto

DATA = recurrent.stream()


def graph_of(model: onnx.ModelProto) -> gs.Graph:
    """Return the graph of a model."""
    return graph_proto.import_model(model)


def test_errors_add_up_in_a_loop() -> None:
    """A shift of 0.01 at each step goes to 0.1 with a state of which 0.9 is kept; y is twice the state."""
    loop = ClosedLoop(graph_of(recurrent.leaky()), DATA, {"h": "h_out"}, ["y", "h_out"])
    wrong, right, power = 0.0, 0.0, 0.0
    state = DATA[0]["h"].astype(np.float64)
    weight = recurrent.weight()
    for feed in DATA * 2:
        state = 0.9 * state + feed["x"] @ weight
        right = 0.9 * right + 0.01
        wrong, power = wrong + 8 * right**2, power + float((state**2).sum())
    (found,) = loop.errors(graph_of(recurrent.leaky(shift=0.01)))
    assert found == pytest.approx([wrong / power] * 2, rel=1e-3)
    assert loop.errors(graph_of(recurrent.leaky())).tolist() == [[0, 0]]
    assert right > 0.09


def test_samples_that_are_far_apart_are_held() -> None:
    """The errors are those of samples each of which comes twice."""
    graph, other = graph_of(recurrent.leaky()), graph_of(recurrent.leaky(shift=0.01))
    states, names = {"h": "h_out"}, ["y", "h_out"]
    in_turn, held = ClosedLoop(graph, DATA, states, names, held=True).errors(other).tolist()
    doubled = [feed for feed in DATA for _ in range(2)]
    expected = [
        ClosedLoop(graph, feeds, states, names).errors(other)[0].tolist() for feeds in (DATA, doubled)
    ]
    assert [in_turn, held] == expected and held[0] < 0.9 * in_turn[0]


def test_the_outputs_that_became_worse_in_a_loop_are_named() -> None:
    """A shift a tenth larger is 0.8 dB worse in every output."""
    float_graph, quantized = (graph_of(recurrent.leaky(shift=shift)) for shift in (0, 0.01))
    judged = JudgedSamples(float_graph, quantized, DATA, FinetuneOptions())
    worse = graph_of(recurrent.leaky(shift=0.011))
    assert judged.lost(quantized, judged.each(quantized)) == []
    assert judged.lost(float_graph, judged.each(float_graph)) == []
    assert judged.lost(worse, judged.each(worse)) == ["y", "h_out"]
    assert judged.lost(float_graph, judged.each(float_graph), quantized) == []


def shuffled(data: recurrent.Stream) -> recurrent.Stream:
    """Return samples in another order, in which neighbours are not alike."""
    return [data[i] for i in np.random.default_rng(0).permutation(len(data))]


def test_samples_that_are_held_show_what_samples_in_turn_do_not() -> None:
    """An error of what is kept grows with the state, which is larger then; a shift does not."""
    pair = graph_of(recurrent.leaky()), graph_of(recurrent.leaky(shift=0.0042))
    other = graph_of(recurrent.leaky(keep=0.904))
    for data, lost in ((shuffled(DATA), ["y", "h_out"]), (DATA, [])):
        judged = JudgedSamples(*pair, data, FinetuneOptions())
        assert judged.lost(other, judged.each(other)) == lost


def test_a_stream_is_known_by_neighbours_that_are_alike() -> None:
    """Of the state 0.9 is kept, which is the correlation of neighbours; what does not change has none."""
    data = [{**feed, "one": np.ones((1, 2), np.float32)} for feed in recurrent.stream(200)]
    assert is_stream(data) and not is_stream(shuffled(data))
    assert not is_stream([{"x": feed["x"], "one": feed["one"]} for feed in data])


@pytest.mark.parametrize(
    ("count", "in_order", "in_blocks"),
    [(8, True, True), (29, False, True), (30, True, True), (30, False, False)],
)
def test_samples_of_a_model_with_states_are_held_out_in_blocks(
    count: int, in_order: bool, in_blocks: bool
) -> None:
    """Unless they are many and neighbours are not alike."""
    data = recurrent.stream(count + 4)
    graph = graph_of(recurrent.leaky())
    judged = JudgedSamples(graph, graph, data if in_order else shuffled(data), FinetuneOptions())
    assert judged.options.in_blocks == in_blocks


def test_samples_of_a_model_without_states_are_not_held_out_in_blocks() -> None:
    graph = graph_of(recurrent.leaky(state="c_12", back="add_7"))
    data = [{"x": feed["x"], "c_12": 0 * feed["h"]} for feed in DATA]
    assert not JudgedSamples(graph, graph, data, FinetuneOptions()).options.in_blocks


@pytest.mark.parametrize(
    ("fed", "shift", "by_probes"), [("h", 0.005, False), ("c_12", 0.005, True), ("c_12", 0.02, False)]
)
def test_what_probes_alone_refuse(fed: str, shift: float, by_probes: bool) -> None:
    """Outputs are harmed on no sample, and there are no states: others may be why a model is refused."""
    graph, quantized, other = (graph_of(recurrent.leaky(shift=x, state=fed)) for x in (0, 0.01, shift))
    data = DATA if fed == "h" else [{"x": feed["x"], fed: 0 * feed["h"]} for feed in DATA]
    judged = JudgedSamples(graph, quantized, data, FinetuneOptions())
    assert judged.lose_by_probes([judged.each(other)]) == by_probes


@pytest.mark.parametrize(
    ("state", "back"), [("h", "h_out"), ("in_state", "out_state"), ("past.h", "present.h"), ("c_12", "add_7")]
)
def test_states_are_found_by_name_or_by_their_numbers(state: str, back: str) -> None:
    model = recurrent.leaky(state=state, back=back)
    assert find_states(graph_of(model), recurrent.stream(state=state)) == {state: back}


def test_a_state_is_fed_what_came_back() -> None:
    """The numbers that are fed have another magnitude, and no name belongs to them."""
    data = [{"x": feed["x"], "c_12": 0 * feed["h"]} for feed in DATA]
    assert find_states(graph_of(recurrent.leaky(state="c_12", back="add_7")), data) == {}


def test_a_model_without_another_input_has_no_states() -> None:
    ends = [build.value(name, [1, 4]) for name in ("x", "x_out")]
    model = build.model([helper.make_node("Relu", ["x"], ["x_out"], "relu")], ends[:1], ends[1:])
    assert find_states(graph_of(model), [{"x": np.ones((1, 4), np.float32)}] * 3) == {}
