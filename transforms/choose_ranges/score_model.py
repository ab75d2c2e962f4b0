"""The errors of a model as it is, on samples that the float model was run on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.choose_ranges.float_runs import FloatRuns, Sample
from transforms.choose_ranges.measure_outputs import Score, energies, signals, sizes
from transforms.judge.output_views import show
from transforms.run.run_each import run_each
from transforms.run.run_model import open_model
from transforms.runtime.session import RunOptions


def score_model(
    graph: gs.Graph,
    floats: FloatRuns,
    samples: Sequence[Sample],
    run: RunOptions | None,
    shifts: Mapping[str, float] | None = None,
) -> Score:
    """Return the errors of a model, which may not be used afterwards, on some samples of the float one.

    ``shifts``: by how much tensors are less than in the float model.
    """
    show(graph, floats.inner)
    made = run_each(open_model(graph, floats.options).run, (one.feed for one in samples), run)
    return score_runs(made, floats, samples, shifts)


def score_runs(
    made: Iterable[Feed],
    floats: FloatRuns,
    samples: Sequence[Sample],
    shifts: Mapping[str, float] | None = None,
) -> Score:
    """Return the errors of what a model made of some samples; ``shifts`` as of :func:`score_model`."""
    inner = floats.inner
    back = {name: np.float32(shift) for name, shift in (shifts or {}).items() if name in inner}
    whole = (
        {**found, **{name: found[name] + back[name] for name in back if name in found}} for found in made
    )
    errors = [energies(one.expected, found) for one, found in zip(samples, whole, strict=True)]
    signal = [signals(one.expected) for one in samples]
    numbers = [sizes(one.expected) for one in samples]
    return Score(np.array(errors), np.array(signal), np.array(numbers), len(floats.outputs))


def together(scores: Sequence[Score]) -> Score:
    """Return the score of several groups of samples as one."""
    parts = zip(*((one.errors, one.signal, one.sizes) for one in scores), strict=True)
    errors, signal, numbers = (np.concatenate(part) for part in parts)
    return Score(errors, signal, numbers, scores[0].count)
