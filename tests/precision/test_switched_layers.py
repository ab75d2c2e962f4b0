"""Oracle: the models themselves, run by ONNX Runtime, and models quantized with layers excluded."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import origins, tunable
from tests.helpers.spread import spread
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.precision.switched_layers import SwitchedLayers, Trials
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions
from transforms.scheme import preset

SIMULATED = RunOptions(simulate=True)
FEEDS = origins.feeds()


@pytest.mark.parametrize(
    ("name", "net"), spread(["U8S8", "A8W8", "A16W8", "BF16", "FP16", "MX6", "W8"], ["chain", "conv"], of=2)
)
def test_all_on_is_the_quantized_model_and_none_the_float_one(name: str, net: str) -> None:
    model = origins.chain() if net == "chain" else tunable.conv_net()
    feeds = FEEDS if net == "chain" else tunable.samples(model, 4)
    reference, quantized, _ = origins.quantized(model, preset(name), feeds)
    runs = [open_model(copy_graph(graph), SIMULATED).run for graph in (reference, quantized)]
    switched = SwitchedLayers(reference, quantized)
    assert switched.unpaired == [] or all("pad" in one or "shift" in one for one in switched.unpaired)
    for feed in feeds[:2]:
        float_made, made = (run(feed)["y"] for run in runs)
        size = np.abs(float_made).max()
        np.testing.assert_allclose(switched.run(feed, ())["y"], float_made, atol=1e-5 * size)
        every = switched.run(feed, range(len(switched.parts)))["y"]
        np.testing.assert_allclose(every, made, atol=2e-2 * np.abs(made - float_made).max() + 1e-6)


@pytest.mark.parametrize("layer", ["gemm1", "gemm3", "gemm4"])
def test_a_layer_in_float_is_what_excluding_it_makes(layer: str) -> None:
    scheme = preset("U8S8").by_rule().with_(correct_biases=False)
    model = origins.chain()
    reference, quantized, _ = origins.quantized(model, scheme, FEEDS)
    switched = SwitchedLayers(reference, quantized)
    others = [i for i, part in enumerate(switched.parts) if part.name != layer]
    assert len(others) == len(switched.parts) - 1
    excluded = model_io.load(model)
    quantize_graph(excluded, scheme.with_(exclude_nodes=(layer,)), CalibrationData(FEEDS))
    run = open_model(excluded, SIMULATED).run
    for feed in FEEDS[:2]:
        np.testing.assert_allclose(switched.run(feed, others)["y"], run(feed)["y"], atol=1e-5)


def test_trials_keep_what_was_asked_before() -> None:
    reference, quantized, _ = origins.quantized(origins.chain(), preset("U8S8"), FEEDS)
    trials = Trials(SwitchedLayers(reference, quantized), FEEDS[:2])
    assert not trials.errors((), "y").any()
    assert trials.on([0, 1]) is trials.on((1, 0))


def test_a_model_without_rounding_is_refused() -> None:
    model = origins.chain()
    with pytest.raises(ValueError, match="no layer of the quantized model is a rounded form"):
        SwitchedLayers(model_io.load(model), model_io.load(model))


def test_an_output_that_is_rounded_goes_with_the_layer_that_makes_it() -> None:
    reference, quantized, _ = origins.quantized(origins.chain(), preset("U8S8"), FEEDS)
    parts = SwitchedLayers(reference, quantized).parts
    assert [part.nodes for part in parts][-1] == ("gemm4", "output y")


def test_a_layer_without_a_name_keeps_that_of_its_output() -> None:
    model = origins.chain()
    model.graph.node[-1].ClearField("name")
    reference, quantized, _ = origins.quantized(model, preset("U8S8"), FEEDS)
    switched = SwitchedLayers(reference, quantized)
    assert switched.parts[-1].nodes == ("y", "output y")
    (rounded,) = switched.readings["output y"]
    assert rounded.label == "output 'y'"
