"""Train the network on scikit-learn's digits, at 32 by 32: ``python -m examples.digits.train [FOLDER]``.

Writes into the folder, by default the one of this file: ``resnet.onnx``; ``calibration.npz``, ``images``
(float32 ``[64, 1, 32, 32]``, 0 to 1) of the training set; ``test.npz``, 200 ``images`` that training has not
seen, and their ``labels``. Prints the accuracy on these. NumPy, minutes on one core; needs scikit-learn for
its images. One machine always gives the same bytes; another may differ in last bits.

The images are by E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
Repository, 1998, doi 10.24432/C50P49, under CC BY 4.0; scikit-learn carries them in 8 by 8 pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from PIL import Image

from examples.digits.network import SIDE, Parameters, new_parameters, predict, to_onnx, train_step
from examples.training.epochs import accuracy, epochs_of, folder_from, last_of
from examples.training.layers import Array

SEED, EPOCHS, BATCH, TEST, CALIBRATION = 2026, 20, 64, 200, 64
TURN, GROW, SHIFT = 0.2, 0.15, 2.0  # radians, share and pixels by which images are drawn differently at most


class Digits(NamedTuple):
    """Images ``[n, 1, 32, 32]`` in float32 from 0 to 1, and their digits, int64 ``[n]``."""

    images: Array
    labels: NDArray[np.int64]


def load() -> tuple[Digits, Digits]:
    """Return the digits to train with, of which the first also calibrate, and those of the test."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    small, labels = load_digits(return_X_y=True)
    images = np.stack([_drawn(image) for image in small.reshape(-1, 8, 8)])[:, None]
    order = np.random.default_rng(SEED).permutation(len(labels))
    test, rest = order[:TEST], order[TEST:]
    labels = labels.astype(np.int64)
    return Digits(images[rest], labels[rest]), Digits(images[test], labels[test])


def _drawn(image: Array) -> Array:
    """Return an image of numbers from 0 to 16 at 32 by 32, from 0 to 1 in steps of 1 / 255."""
    pixels = Image.fromarray((image * 255 / 16).round().astype(np.uint8))
    return np.asarray(pixels.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.float32) / np.float32(255)


def train(digits: Digits, epochs: int = EPOCHS) -> Iterator[tuple[float, Parameters]]:
    """Yield the mean loss of each epoch and the parameters after it."""

    def _step(
        parameters: Parameters, chosen: NDArray[np.int64], random: np.random.Generator
    ) -> tuple[float, Parameters, Parameters]:
        images = np.stack([moved(image, random) for image in digits.images[chosen, 0]])[:, None]
        return train_step(parameters, images, digits.labels[chosen])

    return epochs_of(new_parameters(SEED), len(digits.labels), BATCH, epochs, SEED, _step)


def moved(image: Array, random: np.random.Generator) -> Array:
    """Return an image turned, scaled and shifted a little, about its centre."""
    angle, growth = random.uniform(-TURN, TURN), random.uniform(-GROW, GROW)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) * (1 + growth)
    centre = np.full(2, SIDE / 2)
    corner = centre - turn @ (centre + random.uniform(-SHIFT, SHIFT, 2))
    matrix = np.column_stack([turn, corner]).ravel().tolist()
    drawn = Image.fromarray(image).transform(
        (SIDE, SIDE), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR
    )
    return np.asarray(drawn, np.float32)


def main() -> None:
    """Train, write the three files, print the accuracy."""
    folder = folder_from("Train a residual network on scikit-learn's digits.", Path(__file__).parent)
    training, test = load()
    trained = last_of(train(training))
    onnx.save(to_onnx(trained), folder / "resnet.onnx")
    np.savez_compressed(folder / "calibration.npz", images=training.images[:CALIBRATION])
    np.savez_compressed(folder / "test.npz", images=test.images, labels=test.labels)
    print(f"accuracy on test images: {accuracy(predict(trained, test.images), test.labels):.1%}")


if __name__ == "__main__":
    main()
