"""Train the example network on scikit-learn's digits: ``python -m tests.examples.train_digits [FOLDER]``.

Writes ``digits.onnx``, ``digits_test_images.npy`` (float32 ``[360, 1, 8, 8]``, 0 to 1) and
``digits_test_labels.npy`` (int64 ``[360]``) into the folder, by default the one of this file, and prints the
accuracy on these test images, none of which was used for training. Pure NumPy, seconds on one core. One
machine always gives the same bytes; another may add its products in another order, and differ in last bits.

The images are by E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
Repository, 1998, doi 10.24432/C50P49, under CC BY 4.0; scikit-learn carries them. Here they are divided
by 16, and a fixed random fifth of them is kept for the test.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from examples.training.epochs import accuracy, epochs_of
from examples.training.layers import Array
from tests.examples.network import Parameters, new_parameters, predict, to_onnx, train_step

SEED, EPOCHS, BATCH, TEST_IMAGES = 2024, 40, 64, 360


class Digits(NamedTuple):
    """Images ``[n, 1, 8, 8]`` in float32 from 0 to 1, and their digits, int64 ``[n]``."""

    images: Array
    labels: NDArray[np.int64]


def load() -> tuple[Digits, Digits]:
    """Return the training and the test digits."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8), labels.astype(np.int64)
    order = np.random.default_rng(SEED).permutation(len(labels))
    kept, used = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return Digits(images[used], labels[used]), Digits(images[kept], labels[kept])


def train(digits: Digits, epochs: int = EPOCHS) -> Iterator[tuple[float, Parameters]]:
    """Yield the mean loss of each epoch and the parameters after it."""

    def _step(
        parameters: Parameters, chosen: NDArray[np.int64], random: np.random.Generator
    ) -> tuple[float, Parameters, Parameters]:
        return train_step(parameters, digits.images[chosen], digits.labels[chosen])

    return epochs_of(new_parameters(SEED), len(digits.labels), BATCH, epochs, SEED, _step)


def main() -> None:
    """Train, write the three files, print the accuracy."""
    parser = argparse.ArgumentParser(description="Train the example network on scikit-learn's digits.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent, help="where to write")
    folder = parser.parse_args().folder
    training, test = load()
    for epoch, (loss, trained) in enumerate(train(training), 1):
        share = accuracy(predict(trained, training.images), training.labels)
        print(f"epoch {epoch:2}: mean loss {loss:.4f}, accuracy on training images {share:.4f}")
    onnx.save(to_onnx(trained), folder / "digits.onnx")
    np.save(folder / "digits_test_images.npy", test.images)
    np.save(folder / "digits_test_labels.npy", test.labels)
    share = accuracy(predict(trained, test.images), test.labels)
    print(f"accuracy on {len(test.labels)} test images: {share:.4f}")


if __name__ == "__main__":
    main()
