"""The example of page one: what its script trains, what lies beside it, and what int8 gains.

Oracles: ONNX Runtime for the script's forward pass, central differences in float64 for its gradients,
scikit-learn for the pictures.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

import onnx_narrow
from examples.digits import network, train, write_photos
from examples.training import layers
from tests.helpers.gradients import in_float64, slopes

FOLDER = Path(train.__file__).parent
MODEL = FOLDER / "resnet.onnx"


@pytest.fixture(scope="module")
def test_digits() -> train.Digits:
    with np.load(FOLDER / "test.npz") as arrays:
        return train.Digits(arrays["images"], arrays["labels"])


@pytest.fixture(scope="module")
def parameters() -> network.Parameters:
    initializers = onnx.load(MODEL).graph.initializer
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in initializers}


def run(model: Path, images: layers.Array) -> layers.Array:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(["logits"], {"images": images})[0]


def test_files_are_as_small_as_a_repository_should_carry() -> None:
    assert 300_000 <= MODEL.stat().st_size <= 500_000
    assert all(path.stat().st_size <= 300_000 for path in FOLDER.glob("*.npz"))


def test_pictures_are_those_of_the_script_and_none_of_the_test_was_trained_on(
    test_digits: train.Digits,
) -> None:
    training, test = train.load()
    assert np.array_equal(test.images, test_digits.images) and np.array_equal(test.labels, test_digits.labels)
    with np.load(FOLDER / "calibration.npz") as arrays:
        assert arrays.files == ["images"] and arrays["images"].dtype == np.float32
        assert np.array_equal(arrays["images"], training.images[: train.CALIBRATION])
    assert (len(test.labels), len(training.labels)) == (200, 1597)
    seen = {image.tobytes() for image in training.images}
    assert not any(image.tobytes() in seen for image in test.images)
    assert test.images.shape[1:] == (1, 32, 32) and (test.images.min(), test.images.max()) == (0, 1)


def test_onnx_form_of_the_carried_parameters_is_the_carried_model(parameters: network.Parameters) -> None:
    assert network.to_onnx(parameters) == onnx.load(MODEL)


def test_forward_pass_of_the_script_agrees_with_the_runtime(
    test_digits: train.Digits, parameters: network.Parameters
) -> None:
    images = test_digits.images[:16]
    expected = run(MODEL, images)
    # Four layers of 576 float32 products each: an error of a few 576 * 2^-24 of the largest.
    bound = 16 * 576 * 2.0**-24 * np.abs(expected).max()
    assert np.abs(network.predict(parameters, images) - expected).max() <= bound


def test_training_lowers_the_loss_and_twice_gives_the_same() -> None:
    images, labels = train.load()[0]
    few = train.Digits(images[:64], labels[:64])
    (first, _), (second, one) = train.train(few, epochs=2)
    *_, (_, two) = train.train(few, epochs=2)
    assert second < first
    assert network.to_onnx(one).SerializeToString() == network.to_onnx(two).SerializeToString()


def test_moved_pictures_stay_pictures_of_the_same_size(test_digits: train.Digits) -> None:
    random = np.random.default_rng(0)
    (image,) = test_digits.images[0]
    moved = train.moved(image, random)
    assert moved.shape == image.shape and moved.dtype == image.dtype
    assert moved.min() >= 0 and moved.max() <= 1 and not np.array_equal(moved, image)
    assert moved.sum() == pytest.approx(image.sum(), rel=0.4)


@pytest.mark.parametrize("name", sorted(network.new_parameters(0).keys() - set(network.STATISTICS)))
def test_gradient_is_the_slope_of_the_loss(name: str, test_digits: train.Digits) -> None:
    random = np.random.default_rng(5)
    images = test_digits.images[:3] + random.random((3, 1, 32, 32))
    labels = test_digits.labels[:3]
    parameters = in_float64(network.new_parameters(1))
    gradients = network.train_step(parameters, images, labels)[1]

    def _loss(moved: network.Parameters) -> float:
        return network.train_step(moved, images, labels)[0]

    slope, told = slopes(_loss, parameters, gradients[name], name, random, 1e-7)
    # Rounding: 2^-53 / 1e-7 = 1e-9, times a few; a value that passes zero in Relu there adds a little.
    assert slope == pytest.approx(told, rel=1e-5, abs=1e-7)


@pytest.mark.timed
def test_int8_is_3_times_smaller_faster_by_half_and_as_accurate(
    test_digits: train.Digits, tmp_path: Path
) -> None:
    made = onnx_narrow.quantize(
        MODEL, tmp_path / "int8.onnx", target="ort-cpu", data=FOLDER / "calibration.npz"
    )
    assert MODEL.stat().st_size / (tmp_path / "int8.onnx").stat().st_size >= 3.5
    assert made.time is not None and made.time.ratio.median <= 1 / 1.5
    shares = [
        train.accuracy(run(model, test_digits.images), test_digits.labels)
        for model in (MODEL, tmp_path / "int8.onnx")
    ]
    assert shares[0] >= 0.99 and shares[1] >= shares[0] - 0.005  # one of 200


def test_photos_are_the_pictures_for_calibration(tmp_path: Path) -> None:
    write_photos.write(tmp_path)
    with np.load(FOLDER / "calibration.npz") as arrays:
        for i, image in enumerate(arrays["images"]):
            pixels = np.asarray(Image.open(tmp_path / f"{i}.png"), np.float32)
            assert np.array_equal(pixels / np.float32(255), image[0])
