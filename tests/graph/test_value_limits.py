"""Oracle: the definitions of the operators, and what ONNX Runtime makes of large inputs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.helpers import plans
from transforms import model_io
from transforms.graph import walk
from transforms.graph.value_limits import NONE, limits_of
from transforms.run.run_model import open_model

INF = math.inf

CASES = {
    "y = Sigmoid(x)": (0, 1),
    "y = Softmax(x)": (0, 1),
    "y = Tanh(x)": (-1, 1),
    "y = Relu(x)": (0, INF),
    "y = LogSoftmax(x)": (-INF, 0),
    "y = HardSwish(x)": (-0.3751, INF),
    "y = Mish(x)": (-0.3089, INF),
    "s = Sigmoid(x) y = Mul(x, s)": (-0.2785, INF),
    "s = Sigmoid(x) y = Mul(s, x)": (-0.2785, INF),
    "s = Sigmoid(x) y = Mul(s, s)": NONE,
    "y = Clip(x, low, high)": (-0.5, 2),
    "y = Clip(x, low)": (-0.5, INF),
    "y = Clip(x, , high)": (-INF, 2),
    "s = Sigmoid(x) t = Transpose<perm = [1, 0]>(s) y = Identity(t)": (0, 1),
    "s = Sigmoid(x) t = Tanh(x) y = Concat<axis = 0>(s, t)": (-1, 1),
    "s = Sigmoid(x) y = Concat<axis = 0>(s, x)": NONE,
    "s = Sigmoid(x) y = Add(s, s)": NONE,
    "y = Identity(x)": NONE,
    "y = Neg(x)": NONE,
}
WEIGHTS: plans.Weights = {"low": np.float32(-0.5), "high": np.float32(2)}


@pytest.mark.parametrize("body", CASES)
def test_limits_of_operators(body: str) -> None:
    text = f"(float[4,4] x) => (float[a,b] y) {{ {body} }}"
    used = {name: value for name, value in WEIGHTS.items() if name in body}
    graph = model_io.load(plans.model(text, used))
    low, high = limits_of(walk.tensors(graph)["y"])
    assert (low, high) == CASES[body]
    made = open_model(graph).run({"x": np.random.default_rng(1).normal(0, 50, (4, 4)).astype(np.float32)})[
        "y"
    ]
    assert low <= made.min() and made.max() <= high


@pytest.mark.parametrize(
    ("call", "limits"),
    [
        ("y, h = GRU<hidden_size = 3>(x, w3, r3)", (-1, 1)),
        ("y, h = GRU<hidden_size = 3>(x, w3, r3, , , begin)", NONE),
        ("y, h = RNN<hidden_size = 3>(x, w1, r1, , , begin)", (-1, 1)),
        ('y, h = RNN<hidden_size = 3, activations = ["Relu"]>(x, w1, r1)', NONE),
        ("y, h, c = LSTM<hidden_size = 3>(x, w4, r4, , , begin, begin)", (-1, 1)),
        ("h, s, y = LSTM<hidden_size = 3>(x, w4, r4)", NONE),
    ],
)
def test_limits_of_recurrent_operators(call: str, limits: tuple[float, float]) -> None:
    """What is between -1 and 1 stays so from any state; a state of a GRU goes on to its output."""
    weights = {name: (1, int(name[1]) * 3, 2 if name[0] == "w" else 3) for name in ("w1", "w3", "w4")}
    weights |= {f"r{n}": (1, n * 3, 3) for n in (1, 3, 4)} | {"begin": (1, 1, 3)}
    used = {name: shape for name, shape in weights.items() if name in call}
    shape = "a,b,c" if call.startswith("h") else "a,b,c,d"
    graph = model_io.load(plans.model(f"(float[5,1,2] x) => (float[{shape}] y) {{ {call} }}", used))
    assert limits_of(walk.tensors(graph)["y"]) == limits


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_the_least_numbers_of_activations_are_close(approximate: str) -> None:
    text = f"""(float[4000] x) => (float[4000] g, float[4000] m, float[4000] h, float[4000] w)
        {{ g = Gelu<approximate = "{approximate}">(x) m = Mish(x) h = HardSwish(x)
        s = Sigmoid(x) w = Mul(x, s) }}"""
    graph = model_io.load(plans.model(text, {}, opset=20))
    made = open_model(graph).run({"x": np.linspace(-6, 2, 4000, dtype=np.float32)})
    for name, array in made.items():
        assert 0 <= array.min() - limits_of(walk.tensors(graph)[name])[0] < 2e-4
