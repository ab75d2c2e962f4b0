"""How many runs there is time for. Oracle: a run of a model costs the same whatever samples there are."""

from __future__ import annotations

import pytest

from tests.helpers import plans, tunable
from transforms.calibrate.calibrate_plan import CalibrationData, calibrate_plan
from transforms.judge.budget import Budget
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme import preset


def budget(samples: int, width: int = 64, outputs: int = 64) -> Budget:
    text = f"(float[8,{width}] x) => (float[8,{outputs}] y) {{ a = Relu(x) y = MatMul(a, w) }}"
    weights: plans.Weights = {"w": (width, outputs)}
    model, graph = plans.model(text, weights), plans.graph(text, weights)
    data = CalibrationData(tunable.samples(model, samples))
    statistics = calibrate_plan(QuantizationPlan(graph, preset("A8W8").by_rule()), data)
    assert statistics is not None
    return Budget.of(graph, statistics)


def test_more_samples_pay_for_as_many_runs_or_more() -> None:
    few, many = budget(4), budget(64)
    assert few.opened == many.opened, "in runs"
    assert 0 < few.runs <= many.runs


def test_a_layer_of_twice_the_outputs_leaves_fewer_runs_and_half_of_them_at_least() -> None:
    """It makes twice the products; what does not depend on the layer is paid for once."""
    narrow, wide = (budget(8, 512, outputs) for outputs in (512, 1024))
    assert narrow.runs / 2 <= wide.runs < narrow.runs


@pytest.mark.parametrize("models", [0, 2])
def test_runs_are_taken_until_there_are_none(models: int) -> None:
    left = Budget(runs=20, opened=3)
    asked = 4 + 3 * models
    assert [left.allows(4, models) for _ in range(20 // asked)] == [True] * (20 // asked)
    assert not left.allows(4, models) and left.runs == 20 % asked
