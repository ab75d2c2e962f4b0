"""Tensors that hold most of the error of the outputs stay float.

Oracles: the float model on unseen samples, a plan in which the same tensors are float32, and the recorded
scheme, which makes the same model again.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.helpers.judged_networks import network, quantized, ratio, samples
from transforms.scheme import preset

Feeds = list[dict[str, np.ndarray]]


def mixture() -> onnx.ModelProto:
    """Return the head of a mixture of densities: means over deviations, and the logarithm of these."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> mixture (float[n,16] x) => (float[n,8] y) {
        h0 = MatMul(x, w0) h = Tanh(h0) mean = MatMul(h, w1) s = MatMul(h, w2)
        deviation = Exp(s) ratio = Div(mean, deviation) logs = Log(deviation) y = Sub(ratio, logs) }"""
    )
    random = np.random.default_rng(3)
    shapes = {"w0": ((16, 24), 0.4), "w1": ((24, 8), 0.4), "w2": ((24, 8), 0.45)}
    for name, (shape, size) in shapes.items():
        values = (size * random.standard_normal(shape)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


def feeds(count: int, seed: int) -> Feeds:
    """Return inputs of the model."""
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal((1, 16)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("config", ("A8W8", "U8S8"))
def test_a_ratio_stays_float(config: str) -> None:
    model, scheme = mixture(), preset(config)
    seen, unseen = feeds(8, 1), feeds(40, 2)
    made, done = quantized(model, scheme, seen)
    assert done.scheme is not None and "ratio" in done.scheme.tensors
    assert set(done.scheme.tensors.values()) == {"float32"} and not done.scheme.keep_float
    (kept,) = (one for one in done.decisions.kept if one.move == "tensors in float")
    assert "'ratio'" in kept.change
    plain, without = quantized(model, scheme.with_(keep_float=False), seen)
    assert not any(one.move == "tensors in float" for one in without.decisions.tried)
    assert ratio(model, made, unseen) > ratio(model, plain, unseen) + 3 * len(done.scheme.tensors)


def test_the_recorded_scheme_makes_the_same_model() -> None:
    model, seen = mixture(), feeds(8, 1)
    made, done = quantized(model, preset("U8S8"), seen)
    assert done.scheme is not None and done.scheme.tensors
    assert quantized(model, done.scheme, seen)[0] == made


def test_what_a_scheme_names_is_kept() -> None:
    scheme = preset("U8S8").with_(tensors={"mean": "int16"})
    done = quantized(mixture(), scheme, feeds(8, 1))[1]
    assert done.scheme is not None
    assert done.scheme.tensors["mean"] == "int16" and done.scheme.tensors["ratio"] == "float32"


@pytest.mark.parametrize("changes", ({"target": "ort-cpu"}, {"keep_float": False}))
def test_targets_compute_in_integers(changes: dict[str, object]) -> None:
    done = quantized(mixture(), preset("U8S8").with_(**changes), feeds(8, 1))[1]
    assert done.scheme is not None and not done.scheme.tensors


def test_what_stays_float_of_an_error_from_everywhere_is_worth_it_on_unseen_samples() -> None:
    model, seen, unseen = network(0, 0.0, 1.0), samples(8, 1), samples(28, 2)
    made, done = quantized(model, preset("U8S8"), seen)
    plain, _ = quantized(model, preset("U8S8").with_(keep_float=False), seen)
    assert done.scheme is not None and 0 < len(done.scheme.tensors) < 5
    assert ratio(model, made, unseen) > ratio(model, plain, unseen) + len(done.scheme.tensors)
