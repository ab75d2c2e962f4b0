"""Recurrent models judged with their own states. Oracle: the recurrence of the network, written in NumPy."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import helper

from tests.helpers import build, recurrent
from transforms.finetune.find_states import find_states
from transforms.finetune.held_out import HeldOutJudge
from transforms.finetune.options import FinetuneOptions
from transforms.model import graph_proto

DATA = recurrent.stream()


def graph_of(model: onnx.ModelProto) -> gs.Graph:
    """Return the graph of a model."""
    return graph_proto.import_model(model)


def test_errors_add_up_in_a_loop() -> None:
    """A shift of 0.01 at each step goes to 0.1 with a state of which 0.9 is kept; y is twice the state."""
    float_graph, shifted = graph_of(recurrent.leaky()), graph_of(recurrent.leaky(shift=0.01))
    data = DATA[:16]
    judge = HeldOutJudge(float_graph, shifted, data, FinetuneOptions())
    wrong, right, power = 0.0, 0.0, 0.0
    state = data[0]["h"].astype(np.float64)
    weight = recurrent.weight()
    for feed in data * 2:
        state = 0.9 * state + feed["x"] @ weight
        right = 0.9 * right + 0.01
        wrong, power = wrong + 8 * right**2, power + float((state**2).sum())
    assert right > 0.09
    assert judge.before.every.relative == pytest.approx(wrong / power, rel=1e-3)
    assert judge.errors(float_graph).every.relative == 0


def test_a_model_that_is_worse_in_a_loop_is_not_accepted() -> None:
    """An error that grows with the state is small on samples that hold the state of the float model."""
    float_graph, quantized = graph_of(recurrent.leaky()), graph_of(recurrent.leaky(shift=0.01))
    judge = HeldOutJudge(float_graph, quantized, DATA, FinetuneOptions())
    gains = [judge.compare(judge.errors(graph_of(recurrent.leaky(shift=s)))) for s in (0.008, 0.02)]
    assert judge.accepts(gains[0]) and not gains[0].is_regression
    assert not judge.accepts(gains[1]) and gains[1].is_regression


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
