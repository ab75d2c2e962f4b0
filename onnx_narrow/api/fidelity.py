"""How accurately number formats represent samples of distributions, or the weights of a model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import ops
from ops.metrics import decibels
from transforms import model_io
from transforms.graph import walk
from transforms.run.events import Events, each_told

_COUNT = 1 << 20
"""Numbers of each distribution."""

Samples = dict[str, list[NDArray[np.float32]]]
"""Arrays by the name of their kind."""


@dataclass(frozen=True)
class FormatFidelity:
    """A format: bits of an element, elements of a block, and decibels on each kind of numbers."""

    name: str
    bits: float
    block: int
    values: list[float]


def draw_samples() -> Samples:
    """Return a million numbers of a normal and of a heavy-tailed distribution."""
    rng = np.random.default_rng(0)
    normal, heavy = rng.standard_normal(_COUNT), rng.standard_t(3, _COUNT)
    return {"normal": [normal.astype(np.float32)], "heavy tail": [heavy.astype(np.float32)]}


def read_weights(path: Path) -> Samples:
    """Return the float32 and float16 weights of a model, as float32. Raises ValueError if it has none."""
    graph = model_io.load(path)
    floats = (t for t in walk.constants(graph) if t.dtype in (np.float32, np.float16))
    arrays = [np.asarray(tensor.values) for tensor in floats]
    weights = [array.astype(np.float32) for array in arrays if array.size > 1]
    if not weights:
        raise ValueError(f"model '{path}' has no float weights")
    return {"weights": weights}


def measure_formats(samples: Samples, events: Events) -> list[FormatFidelity]:
    """Return the fidelity of each format on each kind of numbers."""
    progress = events.phase("measuring", "format")
    return [
        FormatFidelity(name, fmt.bits, fmt.block, [fidelity(arrays, name) for arrays in samples.values()])
        for name, fmt in each_told(ops.FORMATS.items(), progress, len(ops.FORMATS))
    ]


def fidelity(arrays: Iterable[NDArray[np.float32]], name: str) -> float:
    """Return the SQNR in dB of all arrays together, blocks along the last axis; inf of zeros."""
    signal = error = 0.0
    for x in arrays:
        difference = ops.quantize_dequantize(x, name).astype(np.float64) - x
        signal += float((x.astype(np.float64) ** 2).sum())
        error += float((difference**2).sum())
    return decibels(error, signal) if signal else math.inf
