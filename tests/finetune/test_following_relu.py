"""Oracles: errors behind the Relu, formed directly; ONNX Runtime for those of a layer of a model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.finetune.test_finetune_weights import _squared
from tests.helpers import tunable
from transforms.finetune.finetune_weights import finetune_weights
from transforms.finetune.layer_targets import limits_after, relax
from transforms.finetune.options import FinetuneOptions
from transforms.graph.value_limits import Limits
from transforms.judge.sample_roles import is_held_out
from transforms.model import graph_proto
from transforms.model.copy_graph import copy_graph

CONV = tunable.conv_net()
DATA = tunable.samples(CONV, 40)
CUTS: list[Limits] = [(0.0, np.inf), (0.0, 6.0), (-1.0, 1.0), (-np.inf, 2.0), (-np.inf, np.inf)]


def _numbers() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    made, near, predicted = 4 * random.standard_normal((3, 100_000))
    made[:8] = [0, 6, -1, 1, 2, 0, 6, -1]
    return made, near, predicted


@pytest.mark.parametrize("limits", CUTS)
def test_errors_to_the_targets_bound_those_behind_the_limits(limits: Limits) -> None:
    made, near, predicted = _numbers()
    behind = (np.clip(made, *limits) - np.clip(predicted, *limits)) ** 2
    assert (behind <= (relax(made, near, limits) - predicted) ** 2 * (1 + 1e-12) + 1e-12).all()  # float64


@pytest.mark.parametrize("limits", CUTS)
def test_the_bound_is_exact_at_what_is_near_where_the_target_is_cut_off(limits: Limits) -> None:
    made, near, _ = _numbers()
    cut = (made <= limits[0]) | (made >= limits[1])
    behind = (np.clip(made, *limits) - np.clip(near, *limits)) ** 2
    error = (relax(made, near, limits) - near) ** 2
    inside = (near > limits[0]) & (near < limits[1])
    same_side = np.where(made <= limits[0], near <= limits[0], near >= limits[1])
    exact = cut & (inside | same_side)
    assert np.allclose(error[exact], behind[exact], rtol=1e-12)
    assert np.array_equal(relax(made, near, limits)[~cut], made[~cut])


def _limits(body: str, outputs: str = "float[1,2,3,3] r") -> Limits | None:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[1,2,3,3] x) => ({outputs})
        <float[2,2,1,1] w = {{1,1,1,1}}, float zero = {{0}}, float two = {{2}}, float six = {{6}}>
        {{ c = Conv(x, w) {body} }}""")
    onnx.checker.check_model(model, full_check=True)
    return limits_after(graph_proto.import_model(model), "c")


@pytest.mark.parametrize(
    ("body", "limits"),
    [
        ("r = Relu(c)", (0.0, np.inf)),
        ("r = Clip(c, zero, six)", (0.0, 6.0)),
        ("r = Clip(c, , six)", (-np.inf, 6.0)),
        ("r = Clip(c, zero)", (0.0, np.inf)),
        ("p = Relu(c) q = Clip(c, two, six) r = Add(p, q)", (0.0, np.inf)),
        ("p = Relu(c) r = Add(p, c)", None),
        ("r = LeakyRelu(c)", None),
        ("m = ReduceMax <keepdims = 0> (x) r = Clip(c, zero, m)", None),
    ],
)
def test_limits(body: str, limits: Limits | None) -> None:
    assert _limits(body) == limits


def test_an_output_of_the_model_is_not_cut_off() -> None:
    assert _limits("r = Relu(c)", "float[1,2,3,3] r, float[1,2,3,3] c") is None


def test_limits_of_what_is_not_there() -> None:
    assert limits_after(graph_proto.import_model(CONV), "none") is None


@pytest.mark.parametrize("name", ["MX6", "W4A8"])
def test_reported_errors_bound_those_behind_the_relu(name: str) -> None:
    float_graph, quantized = tunable.pair(CONV, name, DATA, fold_relu=False)
    plain, tuned = copy_graph(quantized), copy_graph(quantized)
    finetune_weights(float_graph, plain, DATA)
    report = finetune_weights(float_graph, tuned, DATA, FinetuneOptions(following_relu=True)).layers[0]
    held = [feed for i, feed in enumerate(DATA) if is_held_out(i, len(DATA), FinetuneOptions().held_out)]
    errors = [_squared(float_graph, graph, "r1", held) for graph in (quantized, tuned, plain)]
    assert errors[0] <= report.before * 1.001 and errors[1] <= report.after * 1.001  # float32 sums
    assert errors[1] < errors[0] and errors[1] != errors[2]
