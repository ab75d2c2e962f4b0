"""The recurrent example: what its script trains, what lies beside it, and what int8 gains.

Oracles: ONNX Runtime for the script's forward pass, central differences in float64 for its gradients.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onnx_narrow
from examples.digits.train import CALIBRATION, Digits, accuracy, load
from examples.rows import network, train
from examples.training.layers import Array
from tests.helpers.gradients import in_float64, slopes

FOLDER = Path(train.__file__).parent
MODEL = FOLDER / "lstm.onnx"
DIGITS = FOLDER.with_name("digits")


@pytest.fixture(scope="module")
def test_digits() -> Digits:
    with np.load(DIGITS / "test.npz") as arrays:
        return Digits(arrays["images"], arrays["labels"])


@pytest.fixture(scope="module")
def parameters() -> network.Parameters:
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(MODEL).graph.initializer}
    del stored["direction"]
    lstm = {name: value[0] for name, value in stored.items() if name.startswith("lstm.")}
    bias, of_state = np.split(lstm["lstm.bias"], 2)
    assert not of_state.any()
    return stored | lstm | {"lstm.bias": bias}


def run(model: Path, rows: Array) -> Array:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(["logits"], {"rows": rows})[0]


def test_files_are_small_and_samples_are_rows_of_pictures_for_calibration() -> None:
    assert 300_000 <= MODEL.stat().st_size <= 500_000
    training, _ = load()
    with np.load(FOLDER / "calibration.npz") as arrays:
        assert arrays.files == ["rows"] and arrays["rows"].shape == (CALIBRATION, 32, 1, 32)
        assert np.array_equal(arrays["rows"][:, :, 0], training.images[:CALIBRATION, 0])


def test_onnx_form_of_the_carried_parameters_is_the_carried_model(parameters: network.Parameters) -> None:
    assert network.to_onnx(parameters) == onnx.load(MODEL)


def test_forward_pass_of_the_script_agrees_with_the_runtime(
    test_digits: Digits, parameters: network.Parameters
) -> None:
    rows = network.rows_of(test_digits.images[:16])
    expected = run(MODEL, rows)
    # The runtime's sigmoid and tanh are polynomials, good to some 1e-6, in 32 steps.
    assert np.abs(network.predict(parameters, rows) - expected).max() <= 1e-4 * np.abs(expected).max()


def test_training_lowers_the_loss_and_reads_unseen_digits(test_digits: Digits) -> None:
    images, labels = load()[0]
    *_, (before, _), (after, found) = islice(train.train(Digits(images, labels), epochs=4), 4)
    assert after < before
    share = accuracy(network.predict(found, network.rows_of(test_digits.images)), test_digits.labels)
    assert share > 0.85


@pytest.mark.parametrize("name", sorted(network.new_parameters(0)))
def test_gradient_is_the_slope_of_the_loss(name: str, test_digits: Digits) -> None:
    random = np.random.default_rng(5)
    rows = network.rows_of(test_digits.images[:3].astype(np.float64))
    labels = test_digits.labels[:3]
    parameters = in_float64(network.new_parameters(1))
    gradients = network.train_step(parameters, rows, labels)[1]

    def _loss(moved: network.Parameters) -> float:
        return network.train_step(moved, rows, labels)[0]

    slope, told = slopes(_loss, parameters, gradients[name], name, random, 1e-6)
    # Central differences: an error of distance^2 = 1e-12, and rounding, 2^-53 / 1e-6 = 1e-10, times a few.
    assert slope == pytest.approx(told, rel=1e-6, abs=1e-8)


@pytest.mark.timed
def test_int8_is_3_times_smaller_faster_and_as_accurate(test_digits: Digits, tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    data = FOLDER / "calibration.npz"
    made = onnx_narrow.quantize(MODEL, path, config="A8W8_DYNAMIC", target="ort-cpu", data=data)
    assert MODEL.stat().st_size / path.stat().st_size >= 3.5
    assert made.time is not None and made.time.ratio.median <= 1 / 1.4
    rows = network.rows_of(test_digits.images)
    shares = [accuracy(run(model, rows), test_digits.labels) for model in (MODEL, path)]
    assert shares[0] >= 0.99 and shares[1] >= shares[0] - 0.005  # one of 200
