"""Whether a model that was just quantized uses the full range of int8: its outputs on samples decide."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.calibrate.calibration import Calibration
from transforms.choose_ranges.first_samples import FirstSamples
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.choose_ranges.measure_outputs import Score, drags, falls, gain
from transforms.choose_ranges.score_model import score_model
from transforms.choose_ranges.work import too_large
from transforms.full_range.apply_full_range import (
    Shifted,
    apply_full_range,
    propose_full_range,
    wants_full_range,
)
from transforms.full_range.recorded_shifts import shifts_within
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.quantize_steps import Quantized
from transforms.run.tensor_sizes import is_small_feed
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme
from transforms.scheme.scheme_values import OFF

_MOST_SAMPLES, _MOST_LARGE = 4, 1
"""Samples that the outputs are compared on, the first ones; of large ones, one shows whether much is lost."""

_EXPECTED, _SPREAD = 1.0, 1.5
"""dB that models gain, and how much that differs."""

_LEAST = 0.1  # dB that have to be expected
_DRAGGED = 2.0  # dB that the worst output may lose: four samples of one say little

_TOO_LARGE = "Full range of int8 not used: the model is too large to compare outputs, or memory is limited"


def samples_for_full_range(
    graph: gs.Graph, scheme: Scheme, data: CalibrationData | None, done: Quantized
) -> FirstSamples | None:
    """Return samples to compare outputs on; None if there is nothing to compare, or with a note why."""
    if not wants_full_range(scheme) or data is None or not data.decides:
        return None
    if too_large(graph) or data.memory_limit is not None:
        done.codes = _TOO_LARGE
        return None
    return FirstSamples(data.feeds(graph), graph, _MOST_SAMPLES)


def settle_full_range(
    graph: gs.Graph,
    scheme: Scheme,
    float_graph: gs.Graph,
    samples: FirstSamples,
    statistics: Calibration,
    run: RunOptions | None,
    done: Quantized,
    floats: FloatRuns | None = None,
) -> Scheme:
    """Return the scheme with the tensors of a quantized graph that are better shifted; nothing changes.

    ``floats``: runs of the float model on these samples, if there were any, maybe in another form.
    """
    names = propose_full_range(graph, scheme, statistics)
    if not names:
        return scheme.with_(full_range=OFF)
    feeds = samples.again()
    feeds = feeds if all(map(is_small_feed, feeds)) else feeds[:_MOST_LARGE]
    if floats is None or not floats.is_of(float_graph):
        floats = FloatRuns(float_graph, feeds, run)
    shifted, chosen = copy_graph(graph), scheme.with_(full_range=names)
    apply_full_range(shifted, chosen, statistics)
    if floats.outputs and _is_better(shifted, graph, floats, len(feeds), run):
        return chosen
    done.codes = f"Full range of int8 not used in {_tensors(len(names))}: outputs gain nothing"
    return scheme.with_(full_range=OFF)


def said_of(shifted: Shifted) -> str:
    """Return a line on tensors that were shifted; empty if none were."""
    if not shifted.count:
        return ""
    nodes = "1 Pad or Sub" if shifted.added == 1 else f"{shifted.added} Pads and Subs"
    more = f"; {nodes} added, which --full-range free leaves out" if shifted.added else ""
    return f"Full range of int8 used: {_tensors(shifted.count)}{more}"


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"


def _is_better(
    shifted: gs.Graph, graph: gs.Graph, floats: FloatRuns, count: int, run: RunOptions | None
) -> bool:
    """Return whether a gain is to be expected, from samples and other models, and no output loses much.

    The shifted graph may not be used afterwards. An output that is saturated counts as before that, too.
    """

    def _score(one: gs.Graph) -> Score:
        return score_model(one, floats, floats.samples(count), run, shifts_within(one))

    scores = _score(shifted), _score(copy_graph(graph))
    worth = gain(*scores).shrunk(_EXPECTED, _SPREAD)
    return worth > _LEAST and not drags(*scores, _DRAGGED) and not falls(*scores)
