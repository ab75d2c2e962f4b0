"""Oracles: the float model on samples that nothing was chosen on, and the recorded scheme."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.helpers.judged_networks import NETWORKS, network, quantized, ratio, samples
from tests.helpers.spread import spread
from transforms.judge import budget
from transforms.run.workers import Workers
from transforms.runtime.session import RunOptions
from transforms.scheme import preset

UNIFORM = [
    {"calibrate_method": method, "per_channel": per_channel}
    for method in ("MinMax", "MSE")
    for per_channel in (False, True)
]


@pytest.mark.heavy
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
        assert other.decisions == done.decisions


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
    scheme = preset("A8W8")
    made, done = quantized(model, scheme, feeds)
    ruled, _ = quantized(model, scheme.by_rule(), feeds)
    assert (made == ruled) or count > 1
    assert any("too few" in note for note in done.decisions.notes) == (count == 1)


def test_data_that_say_nothing_of_the_application_decide_nothing() -> None:
    model, feeds = network(1, 1.0, 1.0), samples(8, 1)
    made, done = quantized(model, preset("U8S8"), feeds, decides=False)
    assert made == quantized(model, preset("U8S8").by_rule().with_(move_outliers=False), feeds)[0]
    assert not done.decisions.tried


def test_what_the_scheme_says_is_kept() -> None:
    model, feeds = network(1, 1.0, 1.0), samples(8, 1)
    asked = {"calibrate_method": "Entropy", "per_channel": False, "correct_biases": False}
    for key, value in asked.items():
        scheme = quantized(model, preset("U8S8").with_(**{key: value}), feeds)[1].scheme
        assert scheme is not None
        assert getattr(scheme, key) == value


def test_outputs_that_other_samples_leave_the_range_of_get_headroom() -> None:
    """Unseen samples are cut off by the range of these, as those of one half are by that of the other."""
    model, feeds, unseen = network(*NETWORKS[7]), samples(8, 1), samples(28, 2)
    made, done = quantized(model, preset("A8W8").with_(keep_float=False), feeds)
    assert done.scheme is not None
    assert done.scheme.calibrate_tensors["y"] in ("Extrapolated", "Wide")
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
    scheme = preset("A8W8").with_(keep_float=False)
    expected = quantized(model, scheme, samples(8, 5))[1]
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    copy.graph.node.append(helper.make_node("Tanh", [model.graph.input[0].name], ["also"], "also"))
    copy.graph.output.append(helper.make_tensor_value_info("also", 1, None))
    found = quantized(copy, scheme, samples(8, 5))[1]
    assert found.scheme == expected.scheme


def test_a_graph_of_many_nodes_follows_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each range is an input of the model in which settings are switched: opening it takes too long."""
    monkeypatch.setattr(budget, "MOST_NODES", 1)
    model, feeds = network(1, 1.0, 1.0), samples(4, 1)
    made, done = quantized(model, preset("A8W8"), feeds)
    assert made == quantized(model, preset("A8W8").by_rule(), feeds)[0]
    assert "too large" in done.decisions.notes[0]


def test_a_move_without_runs_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is small: what is left out is not for its size."""
    monkeypatch.setattr(budget.Budget, "allows", lambda *_, **__: False)
    decisions = quantized(network(1, 1.0, 1.0), preset("A8W8"), samples(4, 1))[1].decisions
    assert decisions.left and "channels: not tried, no runs left" in decisions.lines()
    assert (
        decisions.notes[0].startswith("No runs left for: ") and "effort='high' has more" in decisions.notes[0]
    )


def test_ends_whose_range_no_sample_changes_get_no_headroom() -> None:
    """Every image has the same lowest and highest pixel, as those of cameras do."""
    model, feeds = network(*NETWORKS[7]), samples(8, 1)
    for feed in feeds:
        feed["x"] = np.clip(feed["x"], -0.5, 1.5)
        feed["x"][0, :, 0, :2] = -0.5, 1.5
    for config in ("A8W8", "U8S8"):
        scheme = quantized(model, preset(config), feeds)[1].scheme
        assert scheme is not None
        assert "x" not in scheme.calibrate_tensors


@pytest.mark.parametrize("config", spread(("A16W8", "U16S8"), of=2))
def test_16_bits_leave_headroom_for_samples_that_were_not_seen(config: str) -> None:
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
    assert np.mean(gains) > 4


@pytest.mark.parametrize("config", ("A16W8", "U16S8"))
def test_16_bits_leave_headroom_by_rule_too(config: str) -> None:
    scheme = preset(config)
    assert scheme.by_rule().calibrate_method == "Extrapolated"
    assert scheme.with_(moving_average=True).by_rule().calibrate_method == "MinMax"
    assert scheme.with_(calibrate_method="MSE").by_rule().calibrate_method == "MSE"
