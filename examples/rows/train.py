"""Train the LSTM on the pictures of ``examples.digits``: ``python -m examples.rows.train [FOLDER]``.

Writes into the folder, by default the one of this file: ``lstm.onnx``; ``calibration.npz``, ``rows`` (float32
``[64, 32, 1, 32]``) of the training set, one sample after the other. Prints the accuracy on pictures that
training has not seen. NumPy, a minute on one core; needs scikit-learn for its images.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from examples.digits.train import CALIBRATION, Digits, accuracy, load, moved
from examples.rows.network import Parameters, new_parameters, predict, rows_of, to_onnx, train_step
from examples.training.adam import Adam, cosine

SEED, EPOCHS, BATCH = 2026, 40, 64


def train(digits: Digits, epochs: int = EPOCHS) -> Iterator[tuple[float, Parameters]]:
    """Yield the mean loss of each epoch and the parameters after it."""
    parameters = new_parameters(SEED)
    optimizer = Adam(parameters)
    random = np.random.default_rng(SEED)
    batches = len(digits.labels) // BATCH
    for epoch in cosine(epochs * batches).reshape(epochs, batches):
        losses = []
        order = random.permutation(len(digits.labels))[: batches * BATCH]
        for step, chosen in zip(epoch, order.reshape(batches, BATCH), strict=True):
            images = np.stack([moved(image, random) for image in digits.images[chosen, 0]])[:, None]
            loss, gradients = train_step(parameters, rows_of(images), digits.labels[chosen])
            parameters = parameters | optimizer.improve(parameters, gradients, step)
            losses.append(loss)
        yield float(np.mean(losses)), parameters


def main() -> None:
    """Train, write the model, print the accuracy."""
    parser = argparse.ArgumentParser(description="Train an LSTM that reads digits row by row.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent, help="where to write")
    folder = parser.parse_args().folder
    training, test = load()
    trained = new_parameters(SEED)
    for epoch, (loss, found) in enumerate(train(training), 1):
        trained = found
        print(f"epoch {epoch:2}: mean loss {loss:.4f}", flush=True)
    onnx.save(to_onnx(trained), folder / "lstm.onnx")
    few = rows_of(training.images[:CALIBRATION])
    np.savez_compressed(folder / "calibration.npz", rows=few.swapaxes(0, 1)[:, :, None])
    share = accuracy(predict(trained, rows_of(test.images)), test.labels)
    print(f"accuracy on test images: {share:.1%}")


if __name__ == "__main__":
    main()
