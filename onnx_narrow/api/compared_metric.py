"""A metric of two folders of results, as a gate measures it of two models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from transforms.compare.compare_results import ResultPair
from transforms.pipelines.metric_figure import MetricFigure
from transforms.precision.bench import goal_scored
from transforms.run.array_files import read_array
from transforms.search.gate import Gate
from transforms.search.user_metric import SampleSet

_ONLY = "output"
"""The name of the only output of results that lie in no sub-folder."""

Arrays = dict[str, NDArray[Any]]


def metric_of(pairs: Sequence[ResultPair], gate: Gate) -> MetricFigure:
    """Return the metric of results, files of one name being outputs of one sample.

    Raises ValueError for a function that asks for inputs, or fails.
    """
    made: dict[str, tuple[Arrays, Arrays]] = {}
    for pair in pairs:
        both = made.setdefault(pair.name, ({}, {}))
        for arrays, path in zip(both, (pair.baseline, pair.quantized), strict=True):
            arrays[pair.output or _ONLY] = read_array(path)
    samples = list(made.values())
    if gate.figures is None:
        return MetricFigure(gate.words, goal_scored(gate, samples), gate.bound)
    expected, outputs = zip(*samples, strict=True)
    found = gate.scored(SampleSet(outputs, expected, places=range(len(samples))))
    return MetricFigure(gate.words, found, gate.bound)
