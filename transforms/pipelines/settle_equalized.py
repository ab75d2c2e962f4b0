"""Whether layers are equalized before anything else, by the outputs if samples can tell."""

from __future__ import annotations

import logging

import onnx_graphsurgeon as gs

from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.choose_ranges.measure_outputs import Score, drags, falls, gain
from transforms.choose_ranges.score_model import score_model, together
from transforms.choose_ranges.work import too_large
from transforms.equalize_layers import equalize_layers
from transforms.graph.selection import Exclusion
from transforms.model.copy_graph import copy_graph
from transforms.outliers.sample_rows import pick
from transforms.pipelines.settle_outliers import Quantize
from transforms.scheme import Scheme

log = logging.getLogger(__name__)

_EXPECTED, _SPREAD = 1.8, 3.4
"""dB that it brings other models with scales that are powers of two, and how much that differs."""

_WORTH = 0.5
"""dB that the outputs have to gain without."""

_FEWEST, _MOST = 4, 8  # samples: two halves of two, and as many as there is time for


def decides_by_rule(scheme: Scheme, data: CalibrationData | None) -> bool:
    """Return whether a scheme follows its rule because no outputs can decide, or it does more first.

    A recorded scheme equalizes layers before it balances channels and moves outliers: not after them.
    """
    return data is None or not data.decides or scheme.balance_channels or bool(scheme.outliers)


def settle_equalized(
    graph: gs.Graph,
    data: CalibrationData,
    quantize: Quantize,
    *,
    exclude: Exclusion = None,
) -> int | None:
    """Equalize the layers of a prepared graph that a rule equalizes, in place; return how many pairs.

    None if a gain of 0.5 dB is to be expected without, from samples that gave no ranges and what it brings
    other models. The rule holds with fewer than four samples, data that can be taken only once, and for
    models that are too large to compare. ``quantize`` quantizes copies.
    """
    equalized = copy_graph(graph)
    count = equalize_layers(equalized, exclude=exclude)
    if count and _is_better_without(graph, equalized, data, quantize):
        return None
    return equalize_layers(graph, exclude=exclude) if count else 0


def _is_better_without(
    plain: gs.Graph, equalized: gs.Graph, data: CalibrationData, quantize: Quantize
) -> bool:
    if too_large(plain) or data.memory_limit is not None:
        return False
    feeds = pick(data.feeds(plain))[:_MOST]
    if len(feeds) < _FEWEST:
        return False
    floats = FloatRuns(plain, feeds, data.run)
    samples = floats.samples(len(feeds))
    if not floats.outputs:
        return False

    def _score(source: gs.Graph) -> Score:
        scores = []
        for half in range(2):
            copy = copy_graph(source)
            quantize(copy, feeds[half::2])
            scores.append(score_model(copy, floats, samples[1 - half :: 2], data.run))
        return together(scores)

    scores = _score(plain), _score(equalized)
    worth = gain(*scores).shrunk(-_EXPECTED, _SPREAD)
    log.info("not equalized: %.2f dB, equalized: %.2f dB", scores[0].mean, scores[1].mean)
    return worth > _WORTH and not drags(*scores) and not falls(*scores)
