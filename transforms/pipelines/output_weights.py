"""Weights of few bits, rounded by the outputs of their layers on the samples of a quantization."""

from __future__ import annotations

import operator
from collections.abc import Callable

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.finetune.fit_weights import fit_weights, options_for
from transforms.judge.checked_samples import checked
from transforms.judge.constants import MOST_SAMPLES
from transforms.run.failing_samples import failing
from transforms.run.feeds import spread
from transforms.scheme import Scheme

LayerProgress = Callable[[int, int], None]
"""Called with how many layers are done, and of how many."""


def fit_output_weights(
    float_graph: gs.Graph,
    graph: gs.Graph,
    scheme: Scheme,
    data: CalibrationData,
    progress: LayerProgress | None = None,
) -> tuple[int, int]:
    """Round a written graph's weights of few bits by the outputs of their layers, in place.

    Return how many layers have such weights, and how many of them changed. ``float_graph``: the float model
    as it was quantized. The data must be repeatable. Raises ValueError for a model that fails on a sample.
    """
    samples = _samples(data, float_graph)
    feeds = list(samples.values())
    options = options_for(len(feeds), data.run, data.memory_limit)
    with failing(samples, float_graph, data.run, "the quantized model"):
        return fit_weights(
            float_graph, graph, feeds, options, formats=scheme.named_formats, progress=progress
        )


def _samples(data: CalibrationData, graph: gs.Graph) -> dict[str, Feed]:
    """Return as many samples as are enough, evenly spread over those that may decide, by name."""
    source = data.feeds(graph)
    count = operator.length_hint(source, 0) or sum(1 for _ in source)
    spared = checked(count)
    deciding = [place for place in range(count) if place not in spared]
    places = set(spread(deciding, 2 * MOST_SAMPLES))
    return {name: feed for place, (name, feed) in enumerate(source) if place in places}
