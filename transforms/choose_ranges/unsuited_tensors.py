"""Which tensors stay float because formats without measured ranges do not suit them.

Exponentials of sums, and what is summed up of them, leave the range of float16 where their quotient, which is
what the model makes, does not. Rounding takes them for the largest float16, and outputs are wrong by any
amount. Of some tensors constants tell that (:mod:`transforms.plan.float16_range`), of these samples do. And
numbers of very different magnitudes may share an exponent in a block: most of them become 0. If outputs are
of no use, or in float16 far from those of that format, the tensors that this comes of are found by what they
cost, as those of integers are (:mod:`transforms.choose_ranges.float_tensors`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

import ops
from transforms.calibrate.calibrate import calibrate
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.choose_ranges.first_samples import FirstSamples
from transforms.choose_ranges.float_runs import FloatRuns
from transforms.choose_ranges.float_tensors import (
    FINE,
    LAST_RUNS,
    SEARCHED_ON,
    USELESS,
    FloatTensors,
    TensorSearch,
)
from transforms.choose_ranges.measure_outputs import Score, drags, falls
from transforms.choose_ranges.parameters import PlanOf
from transforms.choose_ranges.score_model import score_model
from transforms.choose_ranges.work import too_large
from transforms.insert_qdq import insert_qdq
from transforms.model.copy_graph import copy_graph
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.run.failing_samples import failing
from transforms.scheme import Scheme
from transforms.scheme.scheme import FLOAT32

log = logging.getLogger(__name__)

_FLOAT16 = "float16"
_LARGEST = ops.get_format(_FLOAT16).highest
_ROOM = 4.0
"""How many times as large numbers may be that the samples do not have."""

_PRICE = 6.0
"""dB that each tensor in float has to bring: it leaves a quarter of the error."""


def unsuited_tensors(
    graph: gs.Graph, scheme: Scheme, plan_of: PlanOf, data: CalibrationData
) -> FloatTensors | None:
    """Return the tensors that a scheme without integers leaves in float in a prepared graph; None if none.

    Those whose numbers on samples come near the largest float16 are among them; with numbers beyond it, and
    others, only if the outputs on samples are better by 6 dB: the largest float16 is as good as any number
    of a mask. The graph is not changed. ``plan_of`` makes the plan of a scheme for it, or for a copy of it.
    Raises as :func:`transforms.calibrate.calibrate.calibrate` does.
    """
    if scheme.target or too_large(graph) or data.memory_limit is not None:
        return None
    plan = plan_of(graph, scheme)
    names, halves = _rounded(plan), _rounded(plan, _FLOAT16)
    if not names or plan.measured():
        return None
    samples = FirstSamples(data.feeds(graph), graph, SEARCHED_ON)
    largest = _largest(graph, halves, replace(data, source=samples.feeds)) if halves else {}
    large = [name for name in halves if _ROOM * largest[name] > _LARGEST]
    near = [name for name in large if largest[name] <= _LARGEST]
    first = samples.named()[:SEARCHED_ON]
    floats = FloatRuns(graph, [feed for _, feed in first], data.run)

    def _score(kept: Collection[str]) -> Score:
        copy, named = copy_graph(graph), dict.fromkeys(kept, FLOAT32)
        insert_qdq(plan_of(copy, scheme.with_(tensors={**scheme.tensors, **named})), None)
        return score_model(copy, floats, floats.samples(len(floats.feeds)), data.run)

    with failing(dict(first), graph, data.run, "the quantized model"):
        if not first or not floats.outputs:
            return None
        kept, before, after = _best(_score, names, large, near, FINE if halves else USELESS)
    log.info("%d of %d tensors in float: %.2f -> %.2f dB", len(kept), len(names), before.mean, after.mean)
    where = "1 sample" if len(first) == 1 else f"{len(first)} samples"
    return FloatTensors(kept, before.mean, after.mean, where=where) if kept else None


def _largest(graph: gs.Graph, names: Sequence[str], data: CalibrationData) -> dict[str, float]:
    """Return the largest magnitude of tensors over all samples."""
    found = calibrate(graph, names, data.feeds(graph), run=data.run, sharing=data.sharing).observed
    return {name: max(-one.low, one.high) for name, one in found.items()}


def _best(
    score: Callable[[Collection[str]], Score],
    names: Sequence[str],
    large: Sequence[str],
    near: Sequence[str],
    enough: float,
) -> tuple[list[str], Score, Score]:
    """Return which of the names stay float, and the errors of none and of these.

    ``large``: those with numbers beyond float16, or ``near`` its largest one.
    ``enough``: dB from which on others are not looked for.
    """
    search = TensorSearch(score, LAST_RUNS, _PRICE)
    before = search.score(())
    kept, after = list(near), before
    if len(large) > len(near) and _is_better(search.score(large), before, _PRICE):
        kept, after = list(large), search.score(large)
    if after.mean < enough:
        more = search.needed(search.extended(kept, names))
        found = [name for name in names if name in more or name in kept]
        if _is_better(search.score(found), after, _PRICE * (len(found) - len(kept))):
            kept, after = found, search.score(found)
    return kept, before, after


def _is_better(new: Score, old: Score, price: float) -> bool:
    """Return whether the mean over outputs gains so many dB, and none of them pays for it."""
    return new.mean - old.mean >= price and not (drags(new, old) or falls(new, old))


def _rounded(plan: QuantizationPlan, format: str = "") -> list[str]:
    """Return the names of the computed tensors of the main graph that have no ranges, or one format."""
    steps = ((site.tensor, site.steps[-1]) for site in plan.quantizations)
    found = (tensor for tensor, step in steps if not step.needs_range and format in ("", step.format.name))
    return list(dict.fromkeys(str(tensor.name) for tensor in found if plan.specs.is_in_main_graph(tensor)))
