"""Oracle: how often a plan is asked for a group, in chains of one and of two lengths."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx.parser
import pytest

from transforms.model import graph_proto
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.scheme import preset


def plan_of(length: int) -> QuantizationPlan:
    """Return the plan of a product behind so many Concats, each of two halves of what went in."""
    halves = "".join(
        f"g{i} = Gather <axis = 1> (a{i}, left) h{i} = Gather <axis = 1> (a{i}, right)"
        f" a{i + 1} = Concat <axis = 1> (h{i}, g{i})"
        for i in range(length)
    )
    graph = graph_proto.import_model(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> main (float[2, 2] x) => (float[2, 1] y) '
            "<int64[4] left = {0, 1, 2, 3}, int64[4] right = {4, 5, 6, 7},"
            " float[2, 8] u = {1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1},"
            " float[8, 1] w = {1, 2, 3, 4, 5, 6, 7, 8}> "
            f"{{ a0 = MatMul (x, u) {halves} y = MatMul (a{length}, w) }}"
        )
    )
    return QuantizationPlan(graph, preset("A8W8"))


def joined(plan: QuantizationPlan, monkeypatch: pytest.MonkeyPatch) -> int:
    """Join all Concats and return how often the plan was asked for a group; all must have become one."""
    concats = [node for node in plan.graph.nodes if node.op == "Concat"]
    for node in concats:
        plan.share_if_alike(node)
    asked, group = [0], plan.group

    def _group(tensor: object) -> object:
        asked[0] += 1
        return group(tensor)  # type: ignore[arg-type]

    monkeypatch.setattr(plan, "group", _group)
    extremes: Mapping[str, tuple[float, float]] = {
        t.name: (-1.0, 1.0) for node in plan.graph.nodes for t in (*node.inputs, *node.outputs)
    }
    assert plan.settle(extremes) == len(concats)
    assert group(concats[0].inputs[0]) is group(concats[-1].outputs[0])
    return asked[0]


def test_the_work_grows_as_the_chain_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert joined(plan_of(80), monkeypatch) < 2.5 * joined(plan_of(40), monkeypatch)
