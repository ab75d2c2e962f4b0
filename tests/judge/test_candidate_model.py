"""The model that candidates share. Oracle: a plan of each, written and run: equal errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from tests.helpers.judged_networks import network, samples
from tests.moves.test_float_tensors import feeds, mixture
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData, calibrate_plan
from transforms.calibrate.calibration import Calibration, options_of
from transforms.conversion.prepare import prepare_for
from transforms.conversion.record import Record
from transforms.conversion.write_plan import make_plan
from transforms.insert_qdq import insert_qdq
from transforms.judge.candidate_model import CandidateModel
from transforms.judge.judge import Judge
from transforms.model.copy_graph import copy_graph
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.weight_cache import WeightMemory
from transforms.run.run_model import Run
from transforms.runtime.session import RunOptions
from transforms.scheme import Scheme, preset
from transforms.scheme.layer_rule import IN_FLOAT

CANDIDATES: list[dict[str, Any]] = [
    {},
    {"calibrate_method": "MSE"},
    {"per_channel": True},
    {"calibrate_tensors": {"r2": "Wide"}},
    {"tensors": {"r1": "float32"}},
    {"layers": {"conv2": IN_FLOAT}},
]


class _Case:
    def __init__(self, graph: gs.Graph, config: str, data: list[dict[str, np.ndarray]]) -> None:
        self.graph = graph  # scales of weights follow from all samples
        self.scheme = (
            preset(config).by_rule().with_(correct_biases=False, bias="float32", weight_method="MinMax")
        )
        self._targets = prepare_for(graph, self.scheme)
        found = calibrate_plan(self.plan_of(graph, self.scheme), CalibrationData(data), halved=True)
        assert found is not None
        self.statistics: Calibration = found
        self.judge = Judge(graph, data, RunOptions(simulate=True))

    def plan_of(self, graph: gs.Graph, scheme: Scheme) -> QuantizationPlan:
        named = self._targets.naming(self.graph, scheme)
        return make_plan(graph, scheme, named.resolve_in(graph), Record())

    def written(self, scheme: Scheme, fold: int) -> Run:
        copy = copy_graph(self.graph)
        plan = self.plan_of(copy, scheme)
        ranges = self.statistics.half(1 - fold, options_of(scheme))
        plan.settle(self.statistics.extremes())
        insert_qdq(plan, ranges)
        return self.judge.opened(copy)


@pytest.mark.parametrize("changes", CANDIDATES, ids=str)
def test_errors_are_those_of_the_written_model(changes: dict[str, Any]) -> None:
    case = _Case(model_io.load(network(2, 0.3, 8.0)), "U8S8", samples(6, 1))
    model = CandidateModel(case.graph, case.scheme, case.plan_of, case.statistics, case.judge, WeightMemory())
    scheme = case.scheme.with_(**changes)
    expected = case.judge.errors(lambda fold: case.written(scheme, fold))
    assert np.array_equal(model.errors(scheme).errors, expected.errors)
    assert np.array_equal(model.errors(scheme, [2, 1]).errors, expected.errors[[2, 1]])


@pytest.mark.parametrize("kept", [(), ("ratio",), ("ratio", "y")])
def test_switches_leave_tensors_in_float(kept: tuple[str, ...]) -> None:
    case = _Case(model_io.load(mixture()), "U8S8", feeds(8, 1))
    shared = case.graph, case.scheme, case.plan_of, case.statistics, case.judge, WeightMemory()
    named = case.scheme.with_(tensors=dict.fromkeys(kept, "float32"))
    expected = case.judge.errors(lambda fold: case.written(named, fold))
    assert np.array_equal(CandidateModel(*shared).errors(named).errors, expected.errors)


def test_schemes_that_make_the_same_model_are_told() -> None:
    case = _Case(model_io.load(network(0, 0.0, 1.0)), "U8S8", samples(4, 1))
    model = CandidateModel(case.graph, case.scheme, case.plan_of, case.statistics, case.judge, WeightMemory())
    other = case.scheme.with_(per_channel=False)
    assert model.is_same(case.scheme, case.scheme)
    same = case.scheme.per_channel == "spread"
    assert model.is_same(case.scheme, other) == same
    assert not model.is_same(case.scheme, case.scheme.with_(calibrate_method="MSE"))


def test_a_plan_serves_all_candidates_whose_weights_are_rounded_alike() -> None:
    case, planned = _Case(model_io.load(network(2, 0.3, 8.0)), "U8S8", samples(4, 1)), list[Scheme]()

    def _plan(graph: gs.Graph, scheme: Scheme) -> QuantizationPlan:
        planned.append(scheme)
        return case.plan_of(graph, scheme)

    model = CandidateModel(case.graph, case.scheme, _plan, case.statistics, case.judge, WeightMemory())
    for changes in (
        {},
        {"calibrate_method": "MSE"},
        {"tensors": {"r1": "float32"}},
        {"layers": {"conv2": IN_FLOAT}},
    ):
        model.errors(case.scheme.with_(**changes))
    assert planned == [case.scheme]
    other = case.scheme.with_(per_channel=case.scheme.per_channel is not True)
    for method in ("MinMax", "MSE"):
        model.errors(other.with_(calibrate_method=method))
    assert planned == [case.scheme, other]


def test_large_models_hold_rounded_weights_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other numbers of errors would show weights of another candidate; ``rest`` frees all."""
    case = _Case(model_io.load(network(2, 0.3, 8.0)), "U8S8", samples(6, 1))
    shared = case.graph, case.scheme, case.plan_of, case.statistics, case.judge
    kept = CandidateModel(*shared, WeightMemory())
    monkeypatch.setattr("transforms.judge.candidate_model._ONE_KIND", 0)
    large = CandidateModel(*shared, WeightMemory())
    one, other = (case.scheme.with_(per_channel=kind) for kind in (True, False))
    for scheme in (one, other, one):
        assert np.array_equal(large.errors(scheme).errors, kept.errors(scheme).errors)
        assert {kind[0] for _, kind in large._weights} == {scheme.per_channel}
    for model in (large, kept):
        model.rest()
    assert not large._weights and kept._weights
    assert np.array_equal(large.errors(other).errors, kept.errors(other).errors)
