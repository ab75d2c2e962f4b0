"""A move: leave the tensors in float that cause most of the error.

A quotient with a divisor near zero, a difference of large numbers, exponentials beyond float16, an operand of
a sensitive product: one tensor may cause nearly all of the error of a model, whatever its range. Groups of
tensors are halved until single ones are found that are worth their price, on the few samples with most of the
error; all samples decide. An operand of a dot product costs the integer kernel, but has the same price as any
other tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

import ops
from transforms.calibrate.calibrate import calibrate
from transforms.calibrate.calibration_data import CalibrationData
from transforms.graph.some_names import some_names
from transforms.judge.candidate_model import CandidateModel
from transforms.judge.constants import FINE, HEADROOM, MAY_LOSE, MOST_MODELS, PRICE, SEARCHED_ON, USELESS
from transforms.judge.errors import Errors
from transforms.moves.improve import Best
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme import Scheme
from transforms.scheme.scheme import FLOAT32
from transforms.search.group_search import Removed, largest_shares, without_needless

FLOAT16 = "float16"
_LARGEST = ops.get_format(FLOAT16).highest
MOVE = "tensors in float"


def search_float_tensors(best: Best, price: float = PRICE, enough: float = FINE) -> None:
    """Leave the tensors in float that are worth ``price`` dB each, if the judge accepts it.

    Does nothing if the outputs have ``enough`` dB.
    """
    if best.errors.mean >= enough:
        return
    places = best.errors.largest(SEARCHED_ON)
    if not best.budget.allows(MOST_MODELS // 2 * len(places)) and best.errors.mean >= USELESS:
        best.decisions.left.append((MOVE, ""))
        return
    search = _Search(best.form.model, best.scheme, places, price)
    if groups := search.needed(search.found()):
        try_given_tensors(best, [name for group in groups for name in group], price * len(groups))


def try_given_tensors(best: Best, names: Sequence[str], price: float) -> None:
    """Leave tensors in float, all together, if the judge accepts it for a price in dB."""
    scheme = keeping(best.scheme, names)
    best.take(MOVE, f"in float: {some_names(names)}", scheme, best.form.model.errors(scheme), price)


def keeping(scheme: Scheme, names: Sequence[str]) -> Scheme:
    """Return the scheme with more tensors in float."""
    return scheme.with_(tensors={**scheme.tensors, **dict.fromkeys(names, FLOAT32)})


class _Search:
    """Searches groups of tensors with a common range that are worth their price in float."""

    def __init__(self, model: CandidateModel, scheme: Scheme, places: Sequence[int], price: float) -> None:
        self._model, self._scheme, self._places, self._price = model, scheme, places, price
        ranges = {site.group: list[str]() for site in model.inputs.ranges}
        for site in model.inputs.ranges:
            if site.tensor not in ranges[site.group]:
                ranges[site.group].append(site.tensor)
        constants = [[site.tensor] for site in model.inputs.weights if not site.is_operand]
        self._groups = [*ranges.values(), *constants]
        self._measured: dict[frozenset[str], Errors] = {}

    def found(self) -> list[list[str]]:
        """Return the groups that are each worth their price."""
        before = self._by_output([])
        counted = before > 0
        if not counted.any():
            return []

        def _left(removed: Removed) -> float:
            after = self._by_output([self._groups[i] for i in removed])
            return float((after[counted] / before[counted]).mean())

        return [self._groups[i] for i in largest_shares(len(self._groups), _left, self._price, MOST_MODELS)]

    def needed(self, groups: list[list[str]]) -> list[list[str]]:
        """Return the groups without those that leave the error nearly the same."""
        least = self._errors(groups).mean - 2 * MAY_LOSE
        return without_needless(groups, lambda remaining: self._errors(remaining).mean > least)

    def _by_output(self, groups: Sequence[Sequence[str]]) -> np.ndarray:
        errors = self._errors(groups)
        return np.asarray(errors.errors[:, : errors.count].sum(0))

    def _errors(self, groups: Sequence[Sequence[str]]) -> Errors:
        names = [name for group in groups for name in group]
        key = frozenset(names)
        if key not in self._measured:
            self._measured[key] = self._model.errors(keeping(self._scheme, names), self._places)
        return self._measured[key]


def rounded(plan: QuantizationPlan, format: str = "") -> list[str]:
    """Return the names of computed tensors of the main graph in formats without ranges, or in one format."""
    steps = ((site.tensor, site.steps[-1]) for site in plan.quantizations)
    tensors = (tensor for tensor, step in steps if not step.needs_range and format in ("", step.format.name))
    return list(dict.fromkeys(str(tensor.name) for tensor in tensors if plan.specs.is_in_main_graph(tensor)))


def large_tensors(
    graph: gs.Graph, plan: QuantizationPlan, data: CalibrationData
) -> tuple[list[str], list[str]]:
    """Return the names of float16 tensors with values near the largest float16, and of those beyond it.

    Raises as :func:`transforms.calibrate.calibrate.calibrate` does.
    """
    halves = rounded(plan, FLOAT16)
    if not halves:
        return [], []
    observed = calibrate(graph, halves, data.feeds(graph), run=data.run, workers=data.workers).observed
    largest = {name: max(-statistics.low, statistics.high) for name, statistics in observed.items()}
    near = [name for name in halves if largest[name] <= _LARGEST < HEADROOM * largest[name]]
    return near, [name for name in halves if largest[name] > _LARGEST]
