"""A form plans its graph once for schemes that differ only in how ranges are found."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from tests.helpers import plans
from transforms.judge.judge import Judge
from transforms.model.copy_graph import copy_graph
from transforms.moves.improve import Form
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme import Scheme, preset

TEXT = "(float[2, 4] x) => (float[2, 3] y) { y = MatMul(x, k) }"


def test_plans_are_made_once() -> None:
    graph, scheme = plans.graph(TEXT, {"k": (4, 3)}), preset("A8W8").by_rule()
    made: list[tuple[gs.Graph, Scheme]] = []

    def _plan(planned: gs.Graph, other: Scheme) -> QuantizationPlan:
        made.append((planned, other))
        return QuantizationPlan(planned, other)

    form = Form(graph, scheme, None, Judge(graph, []), _plan)
    first = form.plan_of(graph, scheme)
    for changes in (
        {"calibrate_method": "MSE"},
        {"correct_biases": False},
        {"calibrate_tensors": {"x": "MSE"}},
    ):
        assert form.plan_of(graph, scheme.with_(**changes)) is first
    assert len(made) == 1
    assert form.plan_of(graph, scheme.with_(per_channel=True)) is not first
    copy = copy_graph(graph)
    assert form.plan_of(copy, scheme).graph is copy is not form.plan_of(graph, scheme).graph
    assert [planned is copy for planned, _ in made] == [False, False, True]
