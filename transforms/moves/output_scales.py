"""A move: weights of few bits get the scales with which layers come nearest to their float outputs.

It comes last, on the written model, layer after layer; what it costs is that biases and scales follow the
samples.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.finetune.fit_scales import fit_layers, fit_scales, options_for
from transforms.judge.checked_samples import checked
from transforms.judge.constants import MOST_SAMPLES
from transforms.model.copy_graph import take_over
from transforms.moves.record import Record, Tried
from transforms.run.failing_samples import failing
from transforms.run.feeds import spread
from transforms.scheme import Scheme

_MOVE = "scales by output error"

LayerProgress = Callable[[int, int], None]
"""Called with how many layers are done, and of how many."""


def fit_output_scales(
    float_graph: gs.Graph,
    graph: gs.Graph,
    scheme: Scheme,
    data: CalibrationData,
    record: Record,
    progress: LayerProgress | None = None,
) -> bool:
    """Choose the scales of a written graph's weights of few bits, in place; return whether that was done.

    ``float_graph``: the float model as it was quantized. Scales that the scheme asks for are not judged,
    others are kept if the judge accepts them. The data must be repeatable. Raises ValueError for a model that
    fails on a sample.
    """
    samples = _samples(data, float_graph)
    feeds, formats = list(samples.values()), scheme.named_formats
    options = options_for(len(feeds), data.run, data.memory_limit)
    with failing(samples, float_graph, data.run, "the quantized model"):
        if scheme.fit_scales is True:
            fit_layers(float_graph, graph, feeds, options, formats=formats, progress=progress)
            return True
        found = fit_scales(float_graph, graph, feeds, options, formats=formats, progress=progress)
    if found.gain is None:
        return False
    kept = found.graph is not graph
    change = f"scales of {found.fitted if kept else found.layers} of {found.layers} layers by output error"
    record.tried.append(Tried(_MOVE, change, found.gain, kept, found.samples))
    if kept:
        take_over(graph, found.graph)
    return kept


def _samples(data: CalibrationData, graph: gs.Graph) -> dict[str, Feed]:
    """Return as many samples as are enough, evenly spread over those that may decide, by name."""
    source = data.feeds(graph)
    count = operator.length_hint(source, 0) or sum(1 for _ in source)
    spared = checked(count)
    deciding = [place for place in range(count) if place not in spared]
    places = set(spread(deciding, 2 * MOST_SAMPLES))
    return {name: feed for place, (name, feed) in enumerate(source) if place in places}
