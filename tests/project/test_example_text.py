"""The decoder of characters: what its script trains, what lies beside it, and what 4 bits lose.

Oracles: ONNX Runtime for the script's forward pass, central differences in float64 for its gradients.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

import onnx_narrow
from examples.text import network, train
from examples.training.layers import Array
from ops.divergence import log_softmax
from tests.helpers.gradients import in_float64, slopes

FOLDER = Path(train.__file__).parent
MODEL = FOLDER / "decoder.onnx"
TEXTS = np.load(FOLDER / "test.npy")


@pytest.fixture(scope="module")
def parameters() -> network.Parameters:
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(MODEL).graph.initializer}
    return {name: stored[name] for name in network.new_parameters(0)}


def run(model: Path, *parts: NDArray[np.int64]) -> Array:
    """Return the logits of texts that are read in parts, each with the caches of those before."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    empty = np.zeros((len(parts[0]), network.KEY_HEADS, 0, network.SIZE), np.float32)
    caches = dict.fromkeys((one.name for one in session.get_inputs() if "past" in one.name), empty)
    logits, read = [], 0
    for tokens in parts:
        read += tokens.shape[1]
        feed = {"input_ids": tokens, "attention_mask": np.ones((len(tokens), read), np.int64), **caches}
        made = dict(zip(names, session.run(names, feed), strict=True))
        caches = {name: made[name.replace("past_key_values", "present")] for name in caches}
        logits.append(made["logits"])
    return np.concatenate(logits, axis=1)


def test_files_are_small_and_hold_texts() -> None:
    assert 200_000 <= MODEL.stat().st_size <= 300_000
    calibration = np.load(FOLDER / "calibration.npy")
    assert calibration.shape == (train.CALIBRATION, train.LENGTH) and TEXTS.shape == (32, train.LENGTH)
    for texts in (calibration, TEXTS):
        assert np.array_equal(network.encode(network.decode(texts[0])), texts[0])
        assert np.isin(np.array(list(network.decode(texts.reshape(-1)))), list("eatin ")).mean() > 0.3


def test_onnx_form_of_the_carried_parameters_is_the_carried_model(parameters: network.Parameters) -> None:
    assert network.to_onnx(parameters) == onnx.load(MODEL)


def test_forward_pass_of_the_script_agrees_with_the_runtime(parameters: network.Parameters) -> None:
    """In one step, and in three through caches."""
    texts = TEXTS[:1]  # of which the kernel reads one in parts
    made = network.predict(parameters, texts)
    for parts in ([texts], np.split(texts, (50, 51), axis=1)):
        # Exponentials of the runtime are polynomials, good to some 1e-6, in two blocks.
        assert np.abs(made - run(MODEL, *parts)).max() <= 1e-4 * np.abs(made).max()


def test_training_lowers_the_loss_of_texts_that_it_has_not_seen() -> None:
    training, test = train.load()
    *_, (before, _), (after, found) = islice(train.train(training[:320], epochs=3), 3)
    assert after < before
    untrained = network.train_step(network.new_parameters(train.SEED), test[:32])[0]
    assert network.train_step(found, test[:32])[0] < 0.8 * untrained


def test_the_carried_model_continues_unseen_texts(parameters: network.Parameters) -> None:
    """A model of single letters has some 3.1 nats on English."""
    assert network.train_step(parameters, TEXTS)[0] < 1.7


@pytest.mark.parametrize("name", sorted(network.new_parameters(0)))
def test_gradient_is_the_slope_of_the_loss(name: str) -> None:
    random = np.random.default_rng(5)
    parameters, tokens = in_float64(network.new_parameters(1)), TEXTS[:2, :20]
    gradients = network.train_step(parameters, tokens)[1]

    def _loss(moved: network.Parameters) -> float:
        return network.train_step(moved, tokens)[0]

    slope, told = slopes(_loss, parameters, gradients[name], name, random, 1e-6)
    # Central differences: an error of distance^2 = 1e-12, and rounding, 2^-53 / 1e-6 = 1e-10, times a few.
    assert slope == pytest.approx(told, rel=1e-6, abs=1e-8)


def divergence(model: Path) -> float:
    """Return the KL divergence from the float model on texts that chose nothing, in nats a token."""
    wanted, found = (log_softmax(run(path, TEXTS)) for path in (MODEL, model))
    return float((np.exp(wanted) * (wanted - found)).sum(-1).mean())


def test_4_bits_take_a_third_and_samples_halve_what_they_lose(tmp_path: Path) -> None:
    nats = []
    for data in (None, FOLDER / "calibration.npy"):
        path = tmp_path / "int4.onnx"
        onnx_narrow.quantize(MODEL, path, config="W4", matmul_nbits=True, data=data, time=False, force=True)
        assert path.stat().st_size <= 0.33 * MODEL.stat().st_size
        nats.append(divergence(path))
    assert nats[1] <= 0.6 * nats[0] <= 0.06


def test_weights_of_8_bits_beside_activations_of_16_are_rounded_by_outputs(tmp_path: Path) -> None:
    """Weights hold most of the loss there; what is recorded makes the same model."""
    path, data = tmp_path / "int16.onnx", FOLDER / "calibration.npy"
    made = onnx_narrow.quantize(MODEL, path, config="A16W8", data=data, time=False)
    nats, size = divergence(path), path.stat().st_size
    again = onnx_narrow.quantize(MODEL, config=made.scheme, data=data, time=False)
    assert made.scheme.fit_weights is True and again.model.graph == made.model.graph
    plain = ["fit_weights=false"]
    onnx_narrow.quantize(MODEL, path, config="A16W8", assignments=plain, data=data, time=False, force=True)
    assert nats <= 0.7 * divergence(path) and abs(size - path.stat().st_size) <= 0.01 * size
