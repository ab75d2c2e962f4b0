"""Wrong types at the doors of rewrites. Oracle: a TypeError of one line that says what is needed."""

from __future__ import annotations

from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.helpers import small_networks
from tests.rewrites.test_callable_modules import REWRITES
from transforms import model_io
from transforms.align_concat import align_concat
from transforms.dual_quant_nodes import dual_quant_nodes
from transforms.insert_qdq import insert_qdq, raise_opset
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.scheme_targets import SchemeTargets
from transforms.scheme import preset

ON_PLANS = ("align_concat", "dual_quant_nodes", "insert_qdq")
LEGAL: dict[str, Any] = {
    "version": 18, "shapes": {}, "moves": {}, "scales": {}, "output": "y", "is_wanted": lambda node: True,
    "tables": (),
}  # fmt: skip
"""What further arguments without a default may be."""


@pytest.mark.parametrize("name", [name for name in REWRITES if name not in ON_PLANS])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("model.onnx", "not the path 'model.onnx': load it with transforms.model_io.load"),
        (Path("model.onnx"), "not the path 'model.onnx': load it with transforms.model_io.load"),
        (onnx.ModelProto(), "not a ModelProto: load it with transforms.model_io.load"),
        (None, "not a NoneType"),
    ],
    ids=["text", "path", "proto", "none"],
)
def test_a_graph_is_needed(name: str, given: object, words: str) -> None:
    rewrite = getattr(import_module(f"transforms.{name}"), name)
    _, *others = signature(rewrite).parameters.values()
    needed = {one.name: LEGAL[one.name] for one in others if one.default is Parameter.empty}
    with pytest.raises(TypeError) as caught:
        rewrite(given, **needed)
    assert str(caught.value) == f"a graph of onnx_graphsurgeon is needed, {words}"


@pytest.mark.parametrize("rewrite", [align_concat, dual_quant_nodes])
def test_a_plan_is_needed(rewrite: Any) -> None:
    graph = model_io.load(small_networks.residual())
    for given, words in ((graph, "a graph"), ("m.onnx", "a str")):
        with pytest.raises(
            TypeError, match=rf"^{rewrite.__name__} changes a plan, not {words}: .*Plan\(graph"
        ):
            rewrite(given)


def test_ranges_go_with_a_plan_and_grids_with_a_graph() -> None:
    graph = model_io.load(small_networks.residual())
    for grids in (None, {"x": 0.1}, ["x"]):
        with pytest.raises(TypeError, match=r"^insert_qdq takes a plan, or a graph and grids by name: "):
            insert_qdq(graph, grids)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"insert_qdq\(graph, grids\)$"):
        insert_qdq(QuantizationPlan(graph, "MX9"), {})


def test_the_name_of_a_preset_is_a_scheme() -> None:
    """Oracle: the same with the scheme itself; targets may be those of the loaded graph."""
    graph = model_io.load(small_networks.residual())
    scheme = preset("BF16")
    wanted = [site.tensor.name for site in QuantizationPlan(graph, scheme).quantizations]
    for plan in (
        QuantizationPlan(graph, "BF16"),
        QuantizationPlan(graph, scheme, SchemeTargets(graph, scheme)),
    ):
        assert [site.tensor.name for site in plan.quantizations] == wanted
    assert raise_opset(model_io.load(small_networks.residual()), "A16W8") == 1
    assert quantize_graph(graph, "MX9").scheme.activation == preset("MX9").activation


@pytest.mark.parametrize("door", [quantize_graph, QuantizationPlan, raise_opset])
def test_other_schemes(door: Any) -> None:
    graph = model_io.load(small_networks.residual())
    with pytest.raises(ValueError, match=r"^preset 'A8W9' is unknown, did you mean 'A8W8'\?"):
        door(graph, "A8W9")
    with pytest.raises(TypeError, match=r"or the name of a preset is needed, not a dict$"):
        door(graph, {"activation": "int8"})
