"""Oracle: models whose outputs are known to be results, caches or states."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from transforms.graph.state_outputs import state_outputs


def model(outputs: dict[str, list], inputs: dict[str, list]) -> gs.Graph:
    read = [gs.Variable(name, np.float32, shape) for name, shape in inputs.items()]
    made = [gs.Variable(name, np.float32, shape) for name, shape in outputs.items()]
    nodes = [gs.Node("Relu", f"n{i}", {}, [read[0]], [tensor]) for i, tensor in enumerate(made)]
    return gs.Graph(nodes, read, made, opset=17)


@pytest.mark.parametrize(
    ("outputs", "inputs", "states"),
    [
        (
            {"logits": [1, 4, 9], "present.0.key": [1, 2, "n", 8]},
            {"ids": [1, 4], "past.0.key": [1, 2, "m", 8]},
            ["present.0.key"],
        ),
        (
            {"enh": [1, 257, 2], "conv_cache_out": [2, 1, 16]},
            {"mix": [1, 257, 2], "conv_cache": [2, 1, 16]},
            ["conv_cache_out"],
        ),
        ({"prob": [1, 1], "stateN": [2, 1, 128]}, {"input": [1, 512], "state": [2, 1, 128]}, ["stateN"]),
        ({"image": [1, 3, 8, 8]}, {"noisy": [1, 3, 8, 8]}, []),
        ({"last_hidden_state": [1, 7, 384]}, {"ids": [1, 7]}, []),
        ({"state": [2, 1, 4]}, {"x": [1, 4], "state_in": [2, 1, 4]}, []),  # no result would be left
    ],
)
def test_names_tell(outputs: dict[str, list], inputs: dict[str, list], states: list[str]) -> None:
    assert state_outputs(model(outputs, inputs)) == states


def test_the_last_states_of_an_lstm_are_states_whatever_their_names() -> None:
    x, h = gs.Variable("x", np.float32, [1, 1, 4]), gs.Variable("in3", np.float32, [1, 1, 4])
    y, last, out = (gs.Variable(name, np.float32, [1, 1, 4]) for name in ("y", "l", "b"))
    lstm = gs.Node("LSTM", "lstm", {"hidden_size": 4}, [x], [y, last])
    nodes = [lstm, gs.Node("Identity", "i", {}, [last], [out])]
    a = gs.Variable("a", np.float32, [1, 1, 4])
    nodes.append(gs.Node("Relu", "r", {}, [y], [a]))
    assert state_outputs(gs.Graph(nodes, [x, h], [a, out], opset=17)) == ["b"]
