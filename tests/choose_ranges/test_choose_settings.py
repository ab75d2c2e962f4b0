"""Oracles: the float model on samples that nothing was chosen on, and the uniform settings by hand."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.helpers import conversion
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.choose_ranges import choose, work
from transforms.choose_ranges.candidate import Candidate
from transforms.choose_ranges.choose import choose_settings
from transforms.model import graph_proto
from transforms.pipelines.quantize_graph import Quantized, make_plan, prepare_for, quantize_graph
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.run.workers import Workers
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme, preset

Feeds = list[dict[str, NDArray[np.float32]]]

UNIFORM = [
    {"calibrate_method": method, "per_channel": per_channel}
    for method in ("MinMax", "MSE")
    for per_channel in (False, True)
]


@cache
def network(seed: int, spread: float, outliers: float, softmax: bool = False) -> onnx.ModelProto:
    """Return a small CNN whose channels differ by ``spread`` and whose weights have ``outliers``."""
    random = np.random.default_rng(seed)

    def _weight(*shape: int) -> NDArray[np.float32]:
        values = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        values *= np.exp(spread * random.standard_normal((shape[0], *[1] * (len(shape) - 1))))
        values *= np.where(random.random(shape) < 0.01, outliers, 1)
        return (values + 0.1 / np.prod(shape[1:])).astype(np.float32)

    weights = {
        "w1": _weight(16, 3, 3, 3),
        "w2": _weight(16, 1, 3, 3),
        "w3": _weight(24, 16, 1, 1),
        "w4": _weight(10, 24),
        **{
            f"b{i}": (random.standard_normal(n) * 0.1).astype(np.float32)
            for i, n in enumerate((16, 16, 24, 10), 1)
        },
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2", pads=[1] * 4, group=16),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("Conv", ["r2", "w3", "b3"], ["c3"], "conv3"),
        helper.make_node("Relu", ["c3"], ["r3"]),
        helper.make_node("GlobalAveragePool", ["r3"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w4", "b4"], ["y" if not softmax else "logits"], "gemm", transB=1),
        *([helper.make_node("Softmax", ["logits"], ["y"])] if softmax else []),
    ]
    ends = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", ["N", 3, 12, 12]), ("y", ["N", 10]))]
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples(count: int, seed: int) -> Feeds:
    random = np.random.default_rng(seed)
    level = random.uniform(0.5, 1.5, (count, 1, 3, 1, 1))
    images = level + 0.5 * random.standard_normal((count, 1, 3, 12, 12))
    return [{"x": image.astype(np.float32)} for image in images]


def quantized(
    model: onnx.ModelProto, scheme: Scheme, feeds: Feeds, **data: object
) -> tuple[bytes, Quantized]:
    graph = model_io.load(model)
    done = quantize_graph(graph, scheme, CalibrationData(feeds, **data))  # type: ignore[arg-type]
    return graph_proto.export_model(graph).SerializeToString(deterministic=True), done


def ratio(model: onnx.ModelProto, made: bytes, feeds: Feeds) -> float:
    """Return the signal-to-noise ratio over samples in dB."""
    batch = {"x": np.concatenate([feed["x"] for feed in feeds])}
    expected = conversion.run(model, batch)["y"].astype(np.float64)
    found = conversion.run(onnx.load_from_string(made), batch)["y"]
    return float(10 * np.log10(np.square(expected).sum() / np.square(expected - found).sum()))


NETWORKS = [
    *((0, 0.0, 1.0), (1, 1.0, 1.0), (2, 0.3, 8.0), (3, 1.5, 4.0)),
    *((4, 0.6, 30.0), (5, 0.5, 60.0), (6, 2.0, 1.0), (7, 0.2, 100.0)),
]


@pytest.mark.parametrize("config", ("A8W8", "U8S8"))
def test_unseen_samples_gain_over_the_rules_and_over_the_best_uniform_setting(config: str) -> None:
    """The best is known only afterwards: one or two of eight networks are beyond what eight samples tell."""
    gains, margins = [], []
    for parameters in NETWORKS:
        model, scheme = network(*parameters), preset(config).with_(equalize_layers=False)
        feeds, unseen = samples(8, 1), samples(28, 2)
        chosen = ratio(model, quantized(model, scheme, feeds)[0], unseen)
        ruled = ratio(model, quantized(model, scheme.by_rule(), feeds)[0], unseen)
        uniform = [scheme.by_rule().with_(**changes) for changes in UNIFORM]
        best = max(ratio(model, quantized(model, one, feeds)[0], unseen) for one in uniform)
        gains.append(chosen - ruled)
        margins.append(chosen - max(best, ruled))
    assert np.mean(gains) > 0.9
    assert np.median(gains) > 0.04
    assert np.mean(margins) > 0.5
    assert sum(margin < -0.5 for margin in margins) <= 2


def test_the_choice_is_the_same_for_any_number_of_threads_and_processes() -> None:
    model, scheme, feeds = network(3, 1.5, 4.0), preset("U8S8"), samples(8, 1)
    first, done = quantized(model, scheme, feeds)
    for data in ({"run": RunOptions(threads=1)}, {"run": RunOptions(threads=4)}, {"workers": Workers()}):
        again, other = quantized(model, scheme, feeds, **data)
        assert again == first
        assert other.choice == done.choice


def test_the_scheme_of_the_result_makes_the_same_model_again() -> None:
    model, feeds = network(2, 0.3, 8.0), samples(8, 1)
    first, done = quantized(model, preset("A8W8"), feeds)
    assert done.scheme is not None
    assert not done.scheme.is_open
    assert quantized(model, done.scheme, feeds)[0] == first


def test_a_source_that_is_read_once_serves_as_well() -> None:
    model, feeds = network(2, 0.3, 8.0), samples(6, 1)
    generator = quantized(model, preset("U8S8"), (feed for feed in feeds))  # type: ignore[arg-type]
    assert generator[0] == quantized(model, preset("U8S8"), feeds)[0]


@pytest.mark.parametrize("count", (1, 2, 3))
def test_few_samples_make_a_model(count: int) -> None:
    """One sample is quantized by rule, with a word."""
    model, feeds = network(1, 1.0, 1.0), samples(count, 1)
    scheme = preset("A8W8").with_(full_range="off")  # which other models decide as well
    made, done = quantized(model, scheme, feeds)
    ruled, _ = quantized(model, scheme.by_rule(), feeds)
    assert (made == ruled) or count > 1
    assert ("too few" in done.choice) == (count == 1)


def test_data_that_say_nothing_of_the_application_decide_nothing() -> None:
    model, feeds = network(1, 1.0, 1.0), samples(8, 1)
    made, done = quantized(model, preset("U8S8"), feeds, decides=False)
    assert made == quantized(model, preset("U8S8").by_rule(), feeds)[0]
    assert done.choice == ""


def test_what_the_scheme_says_is_kept() -> None:
    model, feeds = network(1, 1.0, 1.0), samples(8, 1)
    asked = {"calibrate_method": "Entropy", "per_channel": False, "correct_biases": False}
    for key, value in asked.items():
        scheme = quantized(model, preset("U8S8").with_(**{key: value}), feeds)[1].scheme
        assert scheme is not None
        assert getattr(scheme, key) == value


def test_outputs_that_other_samples_leave_the_range_of_get_room() -> None:
    """Unseen samples are cut off by the range of these, as those of one half are by that of the other."""
    model, feeds, unseen = network(*NETWORKS[7]), samples(8, 1), samples(28, 2)
    made, done = quantized(model, preset("A8W8").with_(equalize_layers=False), feeds)
    assert done.scheme is not None
    assert done.scheme.calibrate_tensors["y"] == "Extrapolated"
    narrow = quantized(model, done.scheme.with_(calibrate_tensors={}), feeds)[0]
    assert ratio(model, made, unseen) > ratio(model, narrow, unseen) + 1


def test_probabilities_are_judged_by_what_they_are_made_of() -> None:
    """The same network with and without a Softmax at its end: biases are corrected in both."""
    for softmax in (False, True):
        scheme = quantized(network(2, 0.3, 8.0, softmax), preset("U8S8"), samples(8, 1))[1].scheme
        assert scheme is not None
        assert scheme.correct_biases is True


def test_an_input_that_an_output_saturates_is_no_obstacle() -> None:
    """Tanh of an input beside a network: the choice is that of the network alone."""
    model = network(4, 8.0, 4.0)
    expected = quantized(model, preset("A8W8"), samples(8, 5))[1]
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    copy.graph.node.append(helper.make_node("Tanh", [model.graph.input[0].name], ["also"], "also"))
    copy.graph.output.append(helper.make_tensor_value_info("also", 1, None))
    found = quantized(copy, preset("A8W8"), samples(8, 5))[1]
    assert found.scheme == expected.scheme


def test_a_candidate_is_taken_if_it_is_better() -> None:
    """The rewrite brings a channel that alone decides a range to the size of the others, and back after."""
    model, feeds = network(0, 0.0, 1.0), samples(8, 1)
    model = onnx.ModelProto.FromString(model.SerializeToString())
    scale_channel(model, 200.0)

    def _rewrite(graph: gs.Graph) -> int:
        weights = {tensor.name: tensor for node in graph.nodes for tensor in node.inputs}
        for name, factor in (("w1", 1 / 200), ("b1", 1 / 200), ("w2", 200.0)):
            values = weights[name].values.copy()
            values[0] *= np.float32(factor)
            weights[name].values = values
        return 1

    graph = model_io.load(model)
    targets = prepare_for(graph, preset("U8S8"))

    def _plan_of(variant: gs.Graph, scheme: Scheme) -> QuantizationPlan:
        return make_plan(variant, scheme, targets.resolve_in(variant), Quantized())

    candidates = [
        Candidate("nothing", rewrite=lambda _: 0),
        Candidate("one channel scaled", rewrite=_rewrite),
    ]
    chosen = choose_settings(graph, preset("U8S8"), _plan_of, CalibrationData(feeds), candidates=candidates)
    assert chosen.candidate is candidates[1]
    assert "one channel scaled" in chosen.note


def scale_channel(model: onnx.ModelProto, factor: float) -> None:
    """Scale a channel between the first two layers."""
    for tensor in model.graph.initializer:
        if tensor.name in ("w1", "b1", "w2"):
            values = numpy_helper.to_array(tensor).copy()
            values[0] *= np.float32(1 / factor if tensor.name == "w2" else factor)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def test_a_graph_of_many_nodes_follows_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each range is an input of the model in which settings are switched: opening it takes too long."""
    monkeypatch.setattr(work, "MOST_NODES", 1)
    model, feeds = network(1, 1.0, 1.0), samples(4, 1)
    made, done = quantized(model, preset("A8W8"), feeds)
    assert made == quantized(model, preset("A8W8").by_rule(), feeds)[0]
    assert done.choice.startswith("Ranges by rule: the model is too large")


def test_methods_are_not_compared_if_counting_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is that of a scheme whose method is given; A8W8, whose rule clips, counts all the same.

    So it compares both methods as if there were no limit.
    """
    model, feeds = network(2, 0.3, 8.0), samples(6, 1)
    unlimited = quantized(model, preset("A8W8"), feeds)[1]
    assert unlimited.scheme is not None
    monkeypatch.setattr(choose, "MOST_COUNTED", 10)
    assert quantized(model, preset("A8W8"), feeds)[1].choice == unlimited.choice
    for config, method in (("U8S8", "MinMax"), ("A8W8", unlimited.scheme.calibrate_method)):
        made, done = quantized(model, preset(config), feeds)
        assert done.scheme is not None
        assert done.scheme.calibrate_method == method
        assert quantized(model, done.scheme, feeds)[0] == made


def test_ends_whose_range_no_sample_changes_get_no_room() -> None:
    """Every image has the same lowest and highest pixel, as those of cameras do."""
    model, feeds = network(*NETWORKS[7]), samples(8, 1)
    for feed in feeds:
        feed["x"] = np.clip(feed["x"], -0.5, 1.5)
        feed["x"][0, :, 0, :2] = -0.5, 1.5
    for config in ("A8W8", "U8S8"):
        scheme = quantized(model, preset(config), feeds)[1].scheme
        assert scheme is not None
        assert "x" not in scheme.calibrate_tensors


@pytest.mark.parametrize("config", ("A16W8", "U16S8"))
def test_16_bits_leave_room_for_samples_that_were_not_seen(config: str) -> None:
    """Over the extremes as ranges: what they cut off is larger than the steps of 16 bits."""
    gains = []
    for parameters in NETWORKS[:4]:
        model, scheme, unseen = network(*parameters), preset(config), samples(28, 2)
        made, done = quantized(model, scheme, samples(8, 1), run=RunOptions(threads=1))
        assert done.scheme is not None
        assert done.scheme.calibrate_method == "Extrapolated"
        extremes = quantized(model, scheme.with_(calibrate_method="MinMax"), samples(8, 1))[0]
        gains.append(ratio(model, made, unseen) - ratio(model, extremes, unseen))
    assert min(gains) > 0
    assert np.mean(gains) > 6


@pytest.mark.parametrize("config", ("A16W8", "U16S8"))
def test_16_bits_leave_room_by_rule_too(config: str) -> None:
    scheme = preset(config)
    assert scheme.by_rule().calibrate_method == "Extrapolated"
    assert scheme.with_(moving_average=True).by_rule().calibrate_method == "MinMax"
    assert scheme.with_(calibrate_method="MSE").by_rule().calibrate_method == "MSE"


def test_8_bits_keep_their_steps() -> None:
    assert (
        "ranges Extrapolated" not in quantized(network(*NETWORKS[0]), preset("U8S8"), samples(8, 1))[1].choice
    )
