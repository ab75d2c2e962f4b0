"""Oracle: the integers of the float model, and the nodes listed here by the tensor that they make."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import plans
from transforms.conversion.convert_bf16 import Bf16Options, convert_bf16
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.exact_steps import RULES, exact_steps
from transforms.run.run_model import open_model
from transforms.scheme import preset

CONSTANTS = """<float full = {32767.0}, float low = {-32768.0}, float high = {32767.0}, float half = {0.5},
    int64[1] shape = {-1}>"""
FORMS = {
    "sound": ("m = Mul(x, full) r = Round(m) c = Clip(r, low, high) y = Cast <to=5> (c)", "mrcy"),
    "pixels": ("m = Mul(x, full) a = Add(m, half) v = Reshape(a, shape) y = Cast <to=2> (v)", "mavy"),
    "of a layer": ("t = Tanh(x) c = Clip(t, low, high) y = Cast <to=6> (c)", "cy"),
    "no step": ("t = Tanh(x) y = Cast <to=6> (t)", ""),
    "to a truth": ("m = Mul(x, half) y = Cast <to=9> (m)", ""),
    "two numbers": ("t = Tanh(x) m = Mul(x, t) y = Cast <to=6> (m)", ""),
}


def _text(name: str) -> str:
    body, _ = FORMS[name]
    kind = {"5": "int16", "2": "uint8", "6": "int32", "9": "bool"}[body.split("<to=")[1][0]]
    return f"(float[N] x) => ({kind}[M] y) {CONSTANTS} {{ {body} }}"


@pytest.mark.parametrize("name", FORMS)
def test_the_steps_before_integers(name: str) -> None:
    graph = plans.graph(_text(name))
    found = exact_steps(graph, [RULES["last steps to an integer"]])
    assert plans.made_by(graph, found) == set(FORMS[name][1])


@pytest.mark.parametrize("format", ("with_cast", "simulate_bf16", "FP16", "BF16"))
def test_the_loudest_sample_keeps_its_sign(format: str) -> None:
    """1 and -1 are numbers of every format; 32767 is one of none, and became -32768."""
    graph = plans.graph(_text("sound"))
    if format.isupper():
        quantize_graph(graph, preset(format))
    else:
        convert_bf16(graph, Bf16Options(format=format))
    x = np.array([1, -1, 0.5, 1.5, -2], np.float32)
    np.testing.assert_array_equal(open_model(graph).run({"x": x})["y"], [32767, -32767, 16384, 32767, -32768])
