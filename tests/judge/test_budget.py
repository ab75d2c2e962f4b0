"""How many runs there is time for. Oracle: a run of a model costs the same whatever samples there are."""

from __future__ import annotations

import pytest

from tests.helpers import plans, tunable
from transforms.calibrate.calibrate_plan import CalibrationData, calibrate_plan
from transforms.judge.budget import Budget
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme import preset

WIDTHS = (64, 256)


def budget(samples: int, width: int = WIDTHS[0]) -> Budget:
    text = f"(float[1,{width}] x) => (float[1,{width}] y) {{ a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }}"
    model = plans.model(text, {"w": (width, width)})
    graph = plans.graph(text, {"w": (width, width)})
    data = CalibrationData(tunable.samples(model, samples))
    statistics = calibrate_plan(QuantizationPlan(graph, preset("A8W8").by_rule()), data)
    assert statistics is not None
    return Budget.of(graph, statistics)


def test_more_samples_pay_for_as_many_runs_or_more() -> None:
    few, many = budget(4), budget(64)
    assert few.opened == many.opened, "in runs"
    assert 0 < few.runs <= many.runs


def test_a_larger_model_leaves_fewer_runs() -> None:
    small, large = (budget(8, width) for width in WIDTHS)
    assert 0 < large.runs < small.runs


@pytest.mark.parametrize("models", [0, 2])
def test_runs_are_taken_until_there_are_none(models: int) -> None:
    left = Budget(runs=20, opened=3)
    asked = 4 + 3 * models
    assert [left.allows(4, models) for _ in range(20 // asked)] == [True] * (20 // asked)
    assert not left.allows(4, models) and left.runs == 20 % asked
