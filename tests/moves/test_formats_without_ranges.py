"""Tensors stay float if a format without measured ranges does not suit their numbers.

Oracles: the float model on unseen samples, the range of float16 by its definition, and the recorded scheme,
which makes the same model again.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.helpers.judged_networks import quantized, ratio
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.model_io import load
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.scheme import Scheme, preset

Feeds = list[dict[str, np.ndarray]]

MODELS = {
    "shares": "e = Exp(h) square = Mul(e, e) total = ReduceSum <keepdims = 1> (square, axis)"
    " share = Div(square, total) y = MatMul(share, w1)",
    "unlike": "up = Exp(h) low = Neg(h) down = Exp(low) part = Mul(down, x) whole = Mul(up, part)"
    " y = MatMul(whole, w1)",
    "blocks": "level = Add(h, levels) a = Exp(level) low = Neg(level) b = Exp(low) c = Mul(b, x)"
    " turned = Transpose <perm = [0, 2, 1]> (c)"
    " y = MatMul(a, turned)",
    "masked": "m = Greater(x, zero) scores = Where(m, h, least) weights = Softmax(scores)"
    " y = MatMul(weights, w1)",
    "near": "large = Mul(h, scale) small = Div(large, scale) y = MatMul(small, w1)",
    "plain": "r = Relu(h) y = MatMul(r, w1)",
}
"""What is made of a layer h of the input, as large as in :data:`SIZES`."""

SIZES = {"shares": 2.5, "unlike": 5.0, "blocks": 0.5}


def built(name: str) -> onnx.ModelProto:
    """Return the model of a name."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> net (float[batch,6,16] x) => (float[batch,6,n] y)
        <int64[1] axis = {{-1}}, float zero = {{0}}, float least = {{-1e9}}, float scale = {{6000}}>
        {{ h = MatMul(x, w0) {MODELS[name]} }}"""
    )
    random = np.random.default_rng(3)
    sizes = {"w0": (16, SIZES.get(name, 1.0) / 4), "w1": (16, 0.25), "levels": (1, 6.0)}
    for weight, (rows, size) in sizes.items():
        values = (size * random.standard_normal((rows, 16))).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, weight))
    return model


def feeds(count: int, seed: int) -> Feeds:
    """Return inputs of the models."""
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal((1, 6, 16)).astype(np.float32)} for _ in range(count)]


def kept(name: str, scheme: Scheme, seen: Feeds | None = None) -> set[str]:
    """Return the tensors that stay float, all of which the summary names or counts."""
    done = quantized(built(name), scheme.with_(fit_weights=False), seen or feeds(8, 1))[1]
    assert done.scheme is not None and not done.scheme.keep_float
    said = [one.move for one in done.decisions.kept] + done.decisions.notes
    assert bool(said) == bool(done.scheme.tensors.keys() - scheme.tensors.keys())
    assert set(done.scheme.tensors.values()) <= {"float32"}
    return set(done.scheme.tensors)


@pytest.mark.parametrize(
    ("name", "config", "least", "names"),
    (
        ("shares", "FP16", 50.0, {"square", "total"}),
        ("unlike", "FP16", 45.0, {"up", "down"}),
        ("blocks", "BFP16", 25.0, {"a"}),
        ("blocks", "MX9", 25.0, {"a"}),
    ),
)
def test_outputs_are_of_use(name: str, config: str, least: float, names: set[str]) -> None:
    model, scheme, seen, unseen = built(name), preset(config), feeds(8, 1), feeds(30, 2)
    made, done = quantized(model, scheme, seen)
    plain, without = quantized(model, scheme.with_(keep_float=False), seen)
    assert without.scheme is not None and not without.scheme.tensors
    assert ratio(model, plain, unseen) < least - 20 and ratio(model, made, unseen) > least
    assert kept(name, scheme) & names
    assert done.scheme is not None
    assert quantized(model, done.scheme, seen)[0] == made


def test_numbers_near_the_largest_float16_stay_float() -> None:
    """A factor of four is left for inputs that were not seen; the outputs on samples do not show it."""
    assert kept("near", preset("FP16")) == {"large"}


@pytest.mark.parametrize("name", ("masked", "plain"))
@pytest.mark.parametrize("config", ("FP16", "BF16", "BFP16", "MX4"))
def test_others_keep_nothing(name: str, config: str) -> None:
    """What is masked is far beyond float16, whose largest number does as well there."""
    assert not kept(name, preset(config))


@pytest.mark.parametrize("changes", ({"keep_float": False}, {"target": "ort-cuda"}))
def test_other_schemes_keep_nothing(changes: dict[str, object]) -> None:
    assert not kept("shares", preset("FP16").with_(**changes))


def test_random_samples_decide_nothing() -> None:
    data = CalibrationData(feeds(8, 1), decides=False)
    done = quantize_graph(load(built("shares")), preset("FP16"), data)
    assert done.scheme is not None and not done.scheme.tensors


def test_one_sample_shows_what_is_near_the_largest_float16() -> None:
    (feed,) = feeds(1, 1)
    assert kept("near", preset("FP16"), [{"x": 1.5 * feed["x"]}]) == {"large"}


def test_samples_that_can_be_read_once() -> None:
    done = quantize_graph(load(built("shares")), preset("FP16"), CalibrationData(iter(feeds(12, 1))))
    assert done.scheme is not None and "total" in done.scheme.tensors


def test_what_a_scheme_names_is_kept() -> None:
    scheme = preset("FP16").with_(tensors={"e": "float32"})
    assert {"e", "total"} <= kept("shares", scheme)
