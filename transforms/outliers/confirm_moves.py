"""Whether moved outliers make the outputs of the whole model better, on samples that gave it no ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed, Float64Array
from transforms.outliers.sample_rows import Sample
from transforms.run.run_each import run_each, with_fixed_threads
from transforms.run.run_model import OpenModel, open_model
from transforms.runtime.session import RunOptions
from transforms.scheme.outlier_move import OutlierMove

_LEAST_GAIN = 0.5  # dB, of the mean over outputs
_MOST_LOSS = 0.1  # dB, of any output

Moves = Mapping[str, OutlierMove]
Choose = Callable[[Sequence[Sample]], Moves]
Quantize = Callable[[Moves, list[Feed]], gs.Graph]


def is_better(new: Float64Array, old: Float64Array) -> bool:
    """Return whether outputs of some signal-to-noise ratios in dB are worth nodes that make them."""
    with np.errstate(invalid="ignore"):
        gains = np.where(new == old, 0, new - old)
    return bool(gains.size and gains.mean() >= _LEAST_GAIN and gains.min() >= -_MOST_LOSS)


def measure(
    choose: Choose, quantize: Quantize, samples: Sequence[Sample], run: RunOptions | None
) -> Float64Array:
    """Return the signal-to-noise ratio of each output in dB, over all samples.

    Each half of the samples is run on a model that was made with the other: ``choose`` returns moves, and
    ``quantize`` the model with them and ranges from some feeds. An output that is not finite has -inf.
    """
    options = with_fixed_threads(run)
    options = RunOptions(options.provider, options.threads, simulate=True)
    sums: list[Float64Array] = []
    for half in range(2):
        seen, held_out = samples[half::2], samples[1 - half :: 2]
        model = open_model(quantize(choose(seen), [sample.feed for sample in seen]), options)

        def _run(sample: Sample, model: OpenModel = model) -> Float64Array:
            return _sums(sample, model.run(sample.feed))

        sums += run_each(_run, held_out, run)
    signal, error = np.sum(sums, axis=0)
    with np.errstate(all="ignore"):
        decibels = 10 * np.log10(signal / error)
    return np.where(error == 0, np.inf, np.where(np.isfinite(decibels), decibels, -np.inf))


def _sums(sample: Sample, made: Feed) -> Float64Array:
    """Return the squares of the outputs and of their errors, [2, outputs]."""
    wanted = {name: array.astype(np.float64) for name, array in sample.outputs.items()}
    with np.errstate(all="ignore"):
        errors = [np.square(array - made[name]).sum() for name, array in wanted.items()]
    return np.array([[np.square(array).sum() for array in wanted.values()], errors])
