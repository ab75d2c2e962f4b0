"""Figures of a result are those of samples that decided nothing. Oracle: ONNX Runtime and NumPy on them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import onnx_narrow
from tests.helpers.judged_networks import network, samples

NETWORK = network(2, 0.3, 8.0)
COUNT = 20
SAMPLES = samples(COUNT, 1)
SPARED = range(16, 20)


def outputs(model: onnx.ModelProto, places: range) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return [session.run(None, SAMPLES[place])[0].astype(np.float64) for place in places]


def decibels(pairs: list[tuple[np.ndarray, np.ndarray]]) -> float:
    error = sum(np.square(a - b).sum() for a, b in pairs)
    return float(10 * np.log10(sum(np.square(a).sum() for a, _ in pairs) / error))


def pairs_of(result: onnx_narrow.Result, places: range) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(outputs(NETWORK, places), outputs(result.model, places), strict=True))


def test_the_result_tells_the_sqnr_on_samples_that_decided_nothing_with_its_error() -> None:
    result = onnx_narrow.quantize(NETWORK, config="A8W8", data=SAMPLES, time=False)
    pairs = pairs_of(result, SPARED)
    left = [decibels(pairs[:i] + pairs[i + 1 :]) for i in range(len(pairs))]
    error = np.sqrt(3 / 4 * np.square(np.array(left) - np.mean(left)).sum())
    assert result.samples == 4 and result.held_out
    assert result.sqnr == pytest.approx(decibels(pairs), abs=0.1)
    assert result.sqnr_error == pytest.approx(error, abs=0.1)
    same = sum(int(a.argmax() == b.argmax()) for a, b in pairs)
    (line,) = (note for note in result.notes if note.startswith("Outputs: "))
    assert line == (
        f"Outputs: SQNR {result.sqnr:.1f} +- {result.sqnr_error:.1f} dB on 4 held-out samples "
        "(30 and more: usually no loss); "
        f"same first choice in {same} of 4 samples"
    )


def test_rows_that_change_their_first_choice_are_counted() -> None:
    """Of few bits and several rows in a sample."""
    batches = [{"x": np.concatenate([feed["x"] for feed in SAMPLES[i : i + 5]])} for i in range(0, COUNT, 5)]
    result = onnx_narrow.quantize(NETWORK, config="MX4", data=batches, time=False)
    pairs = pairs_of(result, range(COUNT))
    same = sum(int(a.argmax() == b.argmax()) for a, b in pairs)
    assert same < COUNT
    assert any(f"same first choice in {same} of 20 rows" in note for note in result.notes)


def test_with_few_samples_it_is_of_those_that_choices_were_made_by() -> None:
    result = onnx_narrow.quantize(NETWORK, config="A8W8", data=SAMPLES, time=False, limit=8)
    assert (result.samples, result.held_out) == (4, False)
    assert result.sqnr == pytest.approx(decibels(pairs_of(result, range(4))), abs=0.1)


def test_without_a_comparison_it_is_that_of_the_first_run() -> None:
    result = onnx_narrow.quantize(NETWORK, config="A8W8", data=SAMPLES, time=False, fast=True)
    assert (result.samples, result.sqnr_error, result.held_out) == (1, None, False)
    assert result.sqnr == pytest.approx(decibels(pairs_of(result, range(1))), abs=0.3)


def test_of_a_target_it_is_that_of_the_samples_that_judged_it() -> None:
    result = onnx_narrow.quantize(NETWORK, config="A8W8", data=SAMPLES, time=False, min_sqnr=20)
    judged = range(3, COUNT, 4)
    assert (result.samples, result.held_out) == (len(judged), True)
    assert result.sqnr == pytest.approx(decibels(pairs_of(result, judged)), abs=0.1)


def test_nothing_is_told_of_a_model_that_was_not_compared() -> None:
    assert onnx_narrow.Result().samples == 0
