"""Training in epochs of random batches, and the share of answers that are right."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.training.adam import Adam, cosine
from examples.training.layers import Array

TrainStep = Callable[
    [Mapping[str, Array], NDArray[np.int64], np.random.Generator],
    tuple[float, Mapping[str, Array], Mapping[str, Array]],
]
"""Returns the loss of the samples of some numbers, its gradients, and values that replace parameters."""


def epochs_of(
    parameters: Mapping[str, Array], count: int, batch: int, epochs: int, seed: int, train_step: TrainStep
) -> Iterator[tuple[float, dict[str, Array]]]:
    """Yield the mean loss of each epoch over ``count`` samples, and the parameters after it.

    The step falls from its largest to zero along half a cosine. Samples that fill no batch wait for another
    epoch's order.
    """
    now, optimizer, random = dict(parameters), Adam(parameters), np.random.default_rng(seed)
    batches = count // batch
    for steps in cosine(epochs * batches).reshape(epochs, batches):
        losses = []
        order = random.permutation(count)[: batches * batch]
        for step, chosen in zip(steps, order.reshape(batches, batch), strict=True):
            loss, gradients, replaced = train_step(now, chosen, random)
            now = now | dict(replaced) | optimizer.improve(now, gradients, step)
            losses.append(loss)
        yield float(np.mean(losses)), now


def folder_from(description: str, default: Path) -> Path:
    """Return the folder that the command line of a training script names."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", nargs="?", type=Path, default=default, help="where to write")
    return Path(parser.parse_args().folder)


def last_of(epochs: Iterable[tuple[float, dict[str, Array]]], unit: str = "") -> dict[str, Array]:
    """Print the loss of each epoch, in a ``unit``, and return the parameters after the last."""
    trained: dict[str, Array] = {}
    for epoch, (loss, parameters) in enumerate(epochs, 1):
        trained = parameters
        print(f"epoch {epoch:2}: mean loss {loss:.4f}{unit}", flush=True)
    return trained


def accuracy(logits: Array, labels: NDArray[np.int64]) -> float:
    """Return the share of rows whose greatest logit stands at the label."""
    return float((logits.argmax(axis=1) == labels).mean())
