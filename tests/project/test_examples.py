"""The carried example: the model, its data and its training script belong together.

Oracles: ONNX Runtime for the script's forward pass, central differences in float64 for its gradients.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from examples.training import layers
from tests.examples import network, train_digits
from tests.helpers.gradients import in_float64, slopes

FOLDER = Path(train_digits.__file__).parent
MODEL = FOLDER / "digits.onnx"


@pytest.fixture(scope="module")
def carried() -> train_digits.Digits:
    return train_digits.Digits(
        np.load(FOLDER / "digits_test_images.npy"), np.load(FOLDER / "digits_test_labels.npy")
    )


@pytest.fixture(scope="module")
def parameters() -> network.Parameters:
    initializers = onnx.load(MODEL).graph.initializer
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in initializers}


def run(images: layers.Array) -> layers.Array:
    session = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    return session.run(["logits"], {"images": images})[0]


def test_carried_model_reads_the_carried_digits(carried: train_digits.Digits) -> None:
    assert train_digits.accuracy(run(carried.images), carried.labels) > 0.96


def test_carried_model_takes_any_batch(carried: train_digits.Digits) -> None:
    whole = run(carried.images)
    for size in (1, 7):
        np.testing.assert_allclose(run(carried.images[:size]), whole[:size], rtol=1e-5, atol=1e-5)
    assert run(carried.images[:0]).shape == (0, 10)


def test_carried_model_is_valid_small_and_named() -> None:
    model = onnx.load(MODEL)
    onnx.checker.check_model(model, full_check=True)
    assert MODEL.stat().st_size < 150_000
    assert model.doc_string and model.graph.doc_string and all(node.name for node in model.graph.node)


def test_forward_pass_of_the_script_agrees_with_the_runtime(
    carried: train_digits.Digits, parameters: network.Parameters
) -> None:
    expected = run(carried.images)
    # Both add at most 512 float32 products in some order: an error of a few 512 * 2^-24 of the largest.
    bound = 4 * 512 * 2.0**-24 * np.abs(expected).max()
    assert np.abs(network.predict(parameters, carried.images) - expected).max() <= bound


def test_onnx_form_of_the_carried_parameters_is_the_carried_model(parameters: network.Parameters) -> None:
    assert network.to_onnx(parameters) == onnx.load(MODEL)


def test_carried_data_is_the_test_part_and_shares_no_image_with_the_training_part(
    carried: train_digits.Digits,
) -> None:
    training, test = train_digits.load()
    assert np.array_equal(test.images, carried.images) and np.array_equal(test.labels, carried.labels)
    assert len(training.labels) + len(test.labels) == 1797
    seen = {image.tobytes() for image in training.images}
    assert not any(image.tobytes() in seen for image in test.images)


def test_training_lowers_the_loss_and_reads_unseen_digits() -> None:
    training, test = train_digits.load()
    (first, _), (second, after) = islice(train_digits.train(training), 2)
    assert second < first / 2
    assert train_digits.accuracy(network.predict(after, test.images), test.labels) > 0.85


def test_training_twice_gives_the_same_bytes() -> None:
    images, labels = train_digits.load()[0]
    training = train_digits.Digits(images[:256], labels[:256])
    one, two = (list(train_digits.train(training, epochs=2))[-1][1] for _ in range(2))
    assert network.to_onnx(one).SerializeToString() == network.to_onnx(two).SerializeToString()


@pytest.mark.parametrize("name", sorted(network.new_parameters(0).keys() - set(network.STATISTICS)))
def test_gradient_is_the_slope_of_the_loss(name: str, carried: train_digits.Digits) -> None:
    # Blurred by noise, no two pixels are equal: max pooling has a slope there.
    random = np.random.default_rng(5)
    images = carried.images[:9] + random.random((9, 1, 8, 8))
    labels = carried.labels[:9]
    parameters = in_float64(network.new_parameters(1))
    gradients = network.train_step(parameters, images, labels)[1]

    def _loss(moved: network.Parameters) -> float:
        return network.train_step(moved, images, labels)[0]

    slope, told = slopes(_loss, parameters, gradients[name], name, random, 1e-6)
    # Central differences: an error of distance^2 = 1e-12, and rounding, 2^-53 / 1e-6 = 1e-10, times a few.
    assert slope == pytest.approx(told, rel=1e-6, abs=1e-8)
