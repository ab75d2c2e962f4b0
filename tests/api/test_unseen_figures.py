"""Figures of a result are those of samples that decided nothing. Oracle: ONNX Runtime and NumPy on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnxruntime
import pytest

import onnx_narrow
from tests.helpers.figures import decibels, expected
from tests.helpers.judged_networks import network, samples
from transforms.judge.decisions import KEY
from transforms.pipelines.folds import FoldError, Folds
from transforms.scheme import Scheme

NETWORK = network(2, 0.3, 8.0)
COUNT = 20
SAMPLES = samples(COUNT, 1)


def outputs(model: onnx.ModelProto, places: Sequence[int]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return [session.run(None, SAMPLES[place])[0].astype(np.float64) for place in places]


def pairs_of(
    result: onnx_narrow.Result,
    places: Sequence[int],
    model: onnx.ModelProto = NETWORK,
    of: Callable[[onnx.ModelProto], onnx.ModelProto] = lambda model: model,
) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(outputs(of(model), places), outputs(of(result.model), places), strict=True))


def pairs_in_folds(
    scheme: Scheme, count: int, places: Sequence[int], model: onnx.ModelProto = NETWORK, *of: object
) -> dict[int, list[tuple[np.ndarray, np.ndarray]]]:
    """Return the outputs of samples by fold, of models that the scheme makes of the samples of others."""
    found = {}
    for fold in range(4):
        others = [SAMPLES[place] for place in range(count) if place % 4 != fold]
        other = onnx_narrow.quantize(model, config=scheme, data=others, time=False, fast=True)
        found[fold] = pairs_of(other, [place for place in places if place % 4 == fold], model, *of)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(("count", "compared"), [(8, range(8)), (20, range(4, 20))])
@pytest.mark.parametrize("config", ["A8W8", "U8S8"])
def test_the_sqnr_is_that_of_samples_whose_fold_gave_no_ranges(
    config: str, count: int, compared: range
) -> None:
    result = onnx_narrow.quantize(NETWORK, config=config, data=SAMPLES[:count], time=False)
    folds = pairs_in_folds(result.scheme, count, compared)
    pairs = [pair for fold in folds.values() for pair in fold]
    assert result.samples == len(compared) and result.held_out
    assert result.sqnr == pytest.approx(expected(pairs), abs=0.02)
    assert abs(expected(pairs_of(result, compared)) - expected(pairs)) > 0.05  # ranges of all say more
    same = sum(int(a.argmax() == b.argmax()) for a, b in pairs)
    (line,) = (note for note in result.notes if note.startswith("Outputs: "))
    assert line == (
        f"Outputs: SQNR {result.sqnr:.1f} +- {result.sqnr_error:.1f} dB on {len(compared)} samples held out "
        f"in 4 folds (30 and more: usually no loss); same first choice in {same} of {len(compared)} samples"
    )


@pytest.mark.parametrize(("count", "folds"), [(2, 2), (3, 3)])
def test_as_many_folds_as_samples(count: int, folds: int) -> None:
    result = onnx_narrow.quantize(NETWORK, config="A8W8", data=SAMPLES[:count], time=False)
    assert any(f"on {count} samples held out in {folds} folds" in note for note in result.notes)


def test_one_sample_was_used() -> None:
    result = onnx_narrow.quantize(NETWORK, config="A8W8", data=SAMPLES[:1], time=False)
    (line,) = (note for note in result.notes if note.startswith("Outputs: "))
    assert "on 1 sample that were used" not in line and "on 1 sample that was used;" in line
    assert not result.held_out and "usually no loss" not in line


def without_softmax(model: onnx.ModelProto) -> onnx.ModelProto:
    found = onnx.ModelProto()
    found.CopyFrom(model)
    (node,) = (node for node in found.graph.node if node.op_type == "Softmax")
    node.op_type = "Identity"
    del node.attribute[:]
    return found


def test_where_a_fold_has_no_model_it_is_said_that_samples_were_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def _fail(self: Folds, fold: int) -> None:
        raise FoldError("no reason")

    monkeypatch.setattr(Folds, "__call__", _fail)
    result = onnx_narrow.quantize(NETWORK, config="A8W8", data=SAMPLES[:8], time=False)
    (line,) = (note for note in result.notes if note.startswith("Outputs: "))
    assert not result.held_out and "dB on 8 samples that were used; same first choice in" in line
    assert result.sqnr == pytest.approx(expected(pairs_of(result, range(8))), abs=0.02)
    entries = {one.key: one.value for one in result.model.metadata_props}
    assert "Samples not held out: no reason" in entries[KEY].splitlines()


def test_probabilities_are_judged_before_the_softmax() -> None:
    model = network(2, 0.3, 8.0, softmax=True)
    result = onnx_narrow.quantize(model, config="A8W8", data=SAMPLES[:8], time=False)
    folds = pairs_in_folds(result.scheme, 8, range(8), model, without_softmax)
    pairs = [pair for fold in folds.values() for pair in fold]
    assert result.sqnr == pytest.approx(expected(pairs), abs=0.02)
    same = sum(int(a.argmax() == b.argmax()) for a, b in pairs)
    (line,) = (note for note in result.notes if note.startswith("Outputs: "))
    assert line == (
        f"Outputs: SQNR {result.sqnr:.1f} +- {result.sqnr_error:.1f} dB before the Softmax on 8 samples held "
        f"out in 4 folds (30 and more: usually no loss); same first choice in {same} of 8 samples"
    )


@pytest.mark.parametrize("goal", [{"min_sqnr": 20.0}, {"metric": "sqnr", "min_metric": 20.0}])
def test_a_target_holds_before_the_softmax(goal: dict[str, float | str]) -> None:
    model = network(2, 0.3, 8.0, softmax=True)
    result = onnx_narrow.quantize(model, config="A8W8", data=SAMPLES[:12], time=False, **goal)  # type: ignore[arg-type]
    if "metric" in goal:
        found = decibels(pairs_of(result, range(1, 12, 2), model, without_softmax))
    else:
        folds = pairs_in_folds(result.scheme, 12, range(12), model, without_softmax)
        found = expected([pair for fold in folds.values() for pair in fold])
    (line,) = (note for note in result.notes if note.startswith("Target of at least 20 dB: "))
    said = re.search(r"sqnr before the Softmax (\S+) \+-", line)
    assert said is not None and float(said[1]) == pytest.approx(found, abs=0.02)
    if "metric" in goal:
        assert result.metric is not None and result.metric.name == "sqnr before the Softmax"
        assert result.metric.value == pytest.approx(found, abs=0.01)


def test_a_target_of_bf16_holds_before_the_softmax() -> None:
    model = network(2, 0.3, 8.0, softmax=True)
    result = onnx_narrow.convert_bf16(model, data=SAMPLES[:12], min_sqnr=30.0)
    found = decibels(pairs_of(result, range(2, 12, 3), model, without_softmax))
    (line,) = (note for note in result.notes if "the SQNR is" in note)
    assert f"the SQNR is {found:.2f} " in line and "dB before the Softmax on 4 held-out samples" in line


def test_rows_that_change_their_first_choice_are_counted() -> None:
    """Of few bits and several rows in a sample."""
    batches = [{"x": np.concatenate([feed["x"] for feed in SAMPLES[i : i + 5]])} for i in range(0, COUNT, 5)]
    result = onnx_narrow.quantize(NETWORK, config="MX4", data=batches, time=False)
    pairs = pairs_of(result, range(COUNT))
    same = sum(int(a.argmax() == b.argmax()) for a, b in pairs)
    assert same < COUNT
    assert any(f"same first choice in {same} of 20 rows" in note for note in result.notes)


def test_weights_that_samples_rounded_are_judged_on_others_or_it_is_said() -> None:
    """No model with such weights is made for a fold: of ten samples or more, one in five is spared."""
    result = onnx_narrow.quantize(NETWORK, config="W4A8", data=SAMPLES, time=False)
    assert (result.samples, result.held_out) == (4, True)
    assert result.sqnr == pytest.approx(expected(pairs_of(result, range(16, 20))), abs=0.02)
    assert any("dB on 4 held-out samples (30 and more" in note for note in result.notes)
    changed = [*SAMPLES[:16], *({"x": 9 * feed["x"]} for feed in SAMPLES[16:])]
    again = onnx_narrow.quantize(NETWORK, config="W4A8", data=changed, time=False)
    assert again.model.graph == result.model.graph  # nor have they given ranges
    few = onnx_narrow.quantize(NETWORK, config="W4A8", data=SAMPLES[:8], time=False)
    assert (few.samples, few.held_out) == (8, False)
    assert few.sqnr == pytest.approx(expected(pairs_of(few, range(8))), abs=0.02)
    (line,) = (note for note in few.notes if note.startswith("Outputs: "))
    assert "dB on 8 samples that were used; same first choice" in line


def test_without_a_comparison_it_is_that_of_the_first_run() -> None:
    result = onnx_narrow.quantize(NETWORK, config="A8W8", data=SAMPLES, time=False, fast=True)
    assert (result.samples, result.sqnr_error, result.held_out) == (1, None, False)
    assert result.sqnr == pytest.approx(decibels(pairs_of(result, range(1))), abs=0.3)


def test_of_weights_that_samples_rounded_a_target_is_judged_on_others() -> None:
    result = onnx_narrow.quantize(NETWORK, config="W4A8", data=SAMPLES, time=False, min_sqnr=5)
    judged = range(3, COUNT, 4)
    assert (result.samples, result.held_out) == (len(judged), True)
    assert result.sqnr == pytest.approx(decibels(pairs_of(result, judged)), abs=0.1)


def test_nothing_is_told_of_a_model_that_was_not_compared() -> None:
    assert onnx_narrow.Result().samples == 0
