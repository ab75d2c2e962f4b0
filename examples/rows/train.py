"""Train the LSTM on the pictures of ``examples.digits``: ``python -m examples.rows.train [FOLDER]``.

Writes into the folder, by default the one of this file: ``lstm.onnx``; ``calibration.npz``, ``rows`` (float32
``[64, 32, 1, 32]``) of the training set, one sample after the other. Prints the accuracy on pictures that
training has not seen. NumPy, a minute on one core; needs scikit-learn for its images.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from examples.digits.train import CALIBRATION, Digits, load, moved
from examples.rows.network import Parameters, new_parameters, predict, rows_of, to_onnx, train_step
from examples.training.epochs import accuracy, epochs_of, folder_from, last_of

SEED, EPOCHS, BATCH = 2026, 40, 64


def train(digits: Digits, epochs: int = EPOCHS) -> Iterator[tuple[float, Parameters]]:
    """Yield the mean loss of each epoch and the parameters after it."""

    def _step(
        parameters: Parameters, chosen: NDArray[np.int64], random: np.random.Generator
    ) -> tuple[float, Parameters, Parameters]:
        images = np.stack([moved(image, random) for image in digits.images[chosen, 0]])[:, None]
        return *train_step(parameters, rows_of(images), digits.labels[chosen]), {}

    return epochs_of(new_parameters(SEED), len(digits.labels), BATCH, epochs, SEED, _step)


def main() -> None:
    """Train, write the model, print the accuracy."""
    folder = folder_from("Train an LSTM that reads digits row by row.", Path(__file__).parent)
    training, test = load()
    trained = last_of(train(training))
    onnx.save(to_onnx(trained), folder / "lstm.onnx")
    few = rows_of(training.images[:CALIBRATION])
    np.savez_compressed(folder / "calibration.npz", rows=few.swapaxes(0, 1)[:, :, None])
    share = accuracy(predict(trained, rows_of(test.images)), test.labels)
    print(f"accuracy on test images: {share:.1%}")


if __name__ == "__main__":
    main()
