"""Train a decoder of characters on the texts of Python's help: ``python -m examples.text.train [FOLDER]``.

Writes into the folder, by default the one of this file: ``decoder.onnx``; ``calibration.npy`` and
``test.npy``, tokens (int64 ``[16, 128]`` and ``[32, 128]``): texts of the training set, and of topics that
training has not seen. Prints the loss on those. NumPy, three minutes on one core. The texts are those of
``pydoc_data.topics`` of Python 3.11 (PSF licence); other versions have others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import onnx
from numpy.typing import NDArray

from examples.text.network import Parameters, encode, new_parameters, to_onnx, train_step
from examples.training.epochs import epochs_of, folder_from, last_of

SEED, EPOCHS, BATCH, LENGTH = 2026, 12, 16, 128
CALIBRATION, TEST = 16, 32
EVERY = 10  # of the topics, the share that training does not see: one in so many

Texts = NDArray[np.int64]


def load() -> tuple[Texts, Texts]:
    """Return texts to train on and others, each ``[n, 129]``: topics in turn, cut after so many tokens."""
    names = sorted(topics)
    seen = [name for i, name in enumerate(names) if i % EVERY]
    return _cut(seen), _cut(names[::EVERY])


def _cut(names: list[str]) -> Texts:
    """Return the texts of topics, runs of spaces as one."""
    tokens = encode("\n\n".join(re.sub(" +", " ", topics[name]) for name in names))
    return tokens[: len(tokens) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)


def train(texts: Texts, epochs: int = EPOCHS) -> Iterator[tuple[float, Parameters]]:
    """Yield the mean loss of each epoch and the parameters after it."""

    def _step(
        parameters: Parameters, chosen: NDArray[np.int64], random: np.random.Generator
    ) -> tuple[float, Parameters, Parameters]:
        return *train_step(parameters, texts[chosen]), {}

    return epochs_of(new_parameters(SEED), len(texts), BATCH, epochs, SEED, _step)


def some(texts: Texts, count: int) -> Texts:
    """Return so many texts ``[count, 128]`` from all of a set."""
    return texts[np.linspace(0, len(texts) - 1, count).astype(int), :LENGTH]


def main() -> None:
    """Train, write the model and its texts, print the loss."""
    folder = folder_from("Train a decoder of characters on Python's help.", Path(__file__).parent)
    training, test = load()
    trained = last_of(train(training), " nats a character")
    onnx.save(to_onnx(trained), folder / "decoder.onnx")
    np.save(folder / "calibration.npy", some(training, CALIBRATION))
    np.save(folder / "test.npy", some(test, TEST))
    print(f"loss on other texts: {train_step(trained, test[:100])[0]:.3f} nats a character")


if __name__ == "__main__":
    main()
