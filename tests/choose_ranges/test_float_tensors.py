"""Tensors that hold most of the error of the outputs stay float.

Oracles: the float model on unseen samples, a plan in which the same tensors are float32, and the recorded
scheme, which makes the same model again.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.choose_ranges.test_choose_settings import network, quantized, ratio, samples
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData, calibrate_plan
from transforms.choose_ranges.bench import Bench
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.choose_ranges.float_tensors import runs_to_search
from transforms.choose_ranges.setting import setting_of
from transforms.pipelines.quantize_graph import make_plan, prepare_for
from transforms.pipelines.quantize_steps import Quantized
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.weight_cache import WeightMemory
from transforms.scheme import Scheme, preset

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
    model, scheme = mixture(), preset(config).with_(measured_biases=False)
    seen, unseen = feeds(8, 1), feeds(40, 2)
    made, done = quantized(model, scheme, seen)
    assert done.scheme is not None and "ratio" in done.scheme.tensors
    assert set(done.scheme.tensors.values()) == {"float32"} and not done.scheme.keep_float
    (note,) = (one for one in done.notes if "for the outputs" in one)
    assert note.startswith("Kept in float for the outputs: ") and "'ratio'" in note
    plain, without = quantized(model, scheme.with_(keep_float=False), seen)
    assert not any("for the outputs" in one for one in without.notes)
    assert ratio(model, made, unseen) > ratio(model, plain, unseen) + 3 * len(done.scheme.tensors)


def test_the_recorded_scheme_makes_the_same_model() -> None:
    model, seen = mixture(), feeds(8, 1)
    made, done = quantized(model, preset("U8S8").with_(measured_biases=False), seen)
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


def test_an_error_from_everywhere_keeps_nothing() -> None:
    done = quantized(network(0, 0.0, 1.0), preset("U8S8"), samples(8, 1))[1]
    assert done.scheme is not None and not done.scheme.tensors


def test_switches_leave_tensors_in_float() -> None:
    """Bit for bit the errors of a plan without these tensors, and with none those of a model without
    switches.
    """
    graph, ruled = model_io.load(mixture()), preset("U8S8").by_rule()
    targets = prepare_for(graph, ruled)

    def _plan_of(variant: object, scheme: Scheme) -> QuantizationPlan:
        return make_plan(variant, scheme, targets.naming(graph, scheme).resolve_in(variant), Quantized())

    calibration = calibrate_plan(_plan_of(graph, ruled), CalibrationData(feeds(8, 1)), halved=True)
    assert calibration is not None

    def _bench(scheme: Scheme, *, switches: bool) -> Bench:
        floats = FloatRuns(graph, feeds(8, 1), None)
        found = Bench(graph, scheme, _plan_of, calibration, floats, None, WeightMemory(), switches=switches)
        found.compare_on(8)
        return found

    bench, setting = _bench(ruled, switches=True), setting_of(ruled)
    for kept in ((), ("ratio",), ("ratio", "y")):
        named = ruled.with_(tensors=dict.fromkeys(kept, "float32"))
        expected = _bench(named, switches=False).score(setting)
        assert expected is not None
        found = bench.score_without(setting, kept)
        assert np.array_equal(found.errors, expected.errors)
        assert np.array_equal(bench.score_without(setting, kept, 2).errors, expected.errors[:2])


def test_runs_are_for_outputs_that_need_them() -> None:
    assert runs_to_search(30.0, 100) == 100
    assert runs_to_search(30.0, 3) == runs_to_search(45.0, 100) == 0
    assert runs_to_search(5.0, 0) > 100
