"""Oracle: the nodes and tensors that each test names, before and after the graph is prepared."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from tests.helpers import plans
from transforms.conversion.standard_form import standardize
from transforms.fuse_layernorm import fuse_layernorm
from transforms.graph import walk
from transforms.graph.selection import NodeSet, select
from transforms.plan.scheme_targets import FormatTable, SchemeTargets, Targets
from transforms.scheme import preset

FOLDED = """(float[1,3,8,8] x) => (float[1,3,8,8] y) {
    [first] a = Conv <pads = [1, 1, 1, 1]> (x, w, b) [norm] c = BatchNormalization(a, g, h, m, v)
    [act] r = Relu(c) [second] d = Conv <pads = [1, 1, 1, 1]> (r, w) [last] y = Relu(d) }"""
WEIGHTS: plans.Weights = dict.fromkeys("bghm", (3,)) | {"w": (3, 3, 3, 3), "v": np.ones(3, np.float32)}

BRANCHES = """(float[2,2] x, bool c) => (float[2,2] y) {
    [choice] y = If (c) <
        then_branch = t () => (float[2,2] p) { [inner] p = MatMul(x, w) },
        else_branch = e () => (float[2,2] p) { [inner] p = Mul(x, w) }> }"""
SQUARE: plans.Weights = {"w": (2, 2)}


def found(
    text: str, weights: plans.Weights, *, prepared: bool = True, **changes: Any
) -> tuple[gs.Graph, Targets]:
    """Return a graph and what a scheme names in it, after preparation unless told otherwise."""
    graph = plans.graph(text, weights)
    targets = SchemeTargets(graph, preset("BFP16").with_(**changes))
    if prepared:
        standardize(graph, targets.excluded)
    return graph, targets.resolve_in(graph)


def layers(pattern: str, text: str = FOLDED, weights: plans.Weights = WEIGHTS, **options: Any) -> set[str]:
    """Return what the nodes make that an entry of ``layers`` means."""
    graph, targets = found(text, weights, layers={pattern: "mx9"}, **options)
    ((name, selection, rule),) = targets.rules
    assert (name, rule.activation, rule.weight) == (pattern, "mx9", "mx9")
    return {node.outputs[0].name for node in walk.nodes(graph) if node in selection}


def tensor_places(
    name: str, text: str = FOLDED, weights: plans.Weights = WEIGHTS, **options: Any
) -> set[str]:
    """Return where what an entry of ``tensors`` means is read, as in :mod:`tests.helpers.plans`."""
    graph, targets = found(text, weights, tensors={name: "mx9"}, **options)
    assert set(targets.tensors.values()) == {(name, "mx9")}
    return {
        f"{node.outputs[0].name}.{index}"
        for node in walk.nodes(graph)
        for index, tensor in enumerate(node.inputs)
        if id(tensor) in targets.tensors
    }


@pytest.mark.parametrize(
    ("pattern", "makes"),
    (
        ("first", {"c"}),  # the Conv goes on with what the BatchNormalization made
        ("second", {"d"}),
        ("*ir*", {"c"}),
        ("[fs]*", {"c", "d"}),
        ("Conv", {"c", "d"}),
        ("Relu", {"r", "y"}),
    ),
)
def test_layers_after_folding(pattern: str, makes: set[str]) -> None:
    assert layers(pattern) == makes


def test_a_pattern_may_be_a_name_and_an_operator_type() -> None:
    text = "(float[2,2] x) => (float[2,2] y) { [Relu] a = MatMul(x, w) [b] b = Relu(a) y = Tanh(b) }"
    assert layers("Relu", text, SQUARE) == {"a", "b"}


def test_an_operator_type_is_no_pattern_and_case_matters() -> None:
    for pattern in ("Rel*", "relu", "First"):
        with pytest.raises(
            ValueError, match=rf"^layers entry '{pattern[:3]}.*' matches no node name and no op"
        ):
            layers(pattern)


def test_an_if_brings_its_bodies() -> None:
    assert layers("choice", BRANCHES, SQUARE) == {"y", "p"}
    assert layers("inner", BRANCHES, SQUARE) == {"p"}


@pytest.mark.parametrize("pattern", ("norm", "BatchNormalization"))
def test_a_layer_that_was_folded(pattern: str) -> None:
    with pytest.raises(ValueError, match=rf"^layers entry '{pattern}': the node is gone after .* folded it"):
        layers(pattern)
    assert layers(pattern, prepared=False) == {"c"}


def test_a_layer_that_comes_into_being() -> None:
    text = """(float[2,4] x) => (float[2,4] y) <float two = {2}, float eps = {1e-5}, int64[1] last = {-1}> {
        u = ReduceMean(x, last) d = Sub(x, u) p = Pow(d, two) v = ReduceMean(p, last) e = Add(v, eps)
        s = Sqrt(e) n = Div(d, s) m = Mul(n, g) y = Add(m, b) }"""
    weights: plans.Weights = {"g": (4,), "b": (4,)}
    assert layers("LayerNormalization", text, weights) == {"y"}
    for name in "dvsnmb":
        with pytest.raises(ValueError, match=rf"^tensors entry '{name}': the tensor is gone after optim"):
            tensor_places(name, text, weights)


@pytest.mark.parametrize(
    ("name", "places"),
    (
        ("x", {"c.0"}),
        ("w", {"c.1", "d.1"}),  # two weights now, of which only one has the name
        ("b", {"c.2"}),
        ("c", {"r.0"}),
        ("r", {"d.0"}),
    ),
)
def test_tensors_after_folding(name: str, places: set[str]) -> None:
    assert tensor_places(name) == places


@pytest.mark.parametrize("name", ("a", "g", "h", "m"))
def test_tensors_that_were_folded(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^tensors entry '{name}': the tensor is gone after optim.*optimize"
    ):
        tensor_places(name)
    assert len(tensor_places(name, prepared=False)) == 1


def test_names_that_are_in_no_model() -> None:
    with pytest.raises(ValueError, match=r"^tensors entry 'nothing' is not a tensor of the model$"):
        tensor_places("nothing")
    with pytest.raises(
        ValueError, match=r"^layers entry 'nothing' matches no node name and no operator type$"
    ):
        layers("nothing")


@pytest.mark.parametrize(
    ("changes", "message"),
    (
        ({"exclude_nodes": ["nothing"]}, "no node name matches 'nothing'"),
        ({"exclude_op_types": ["Gemm"]}, "no node has operator type 'Gemm'; the model has .*Conv"),
    ),
)
def test_exclusions_that_match_nothing(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        found(FOLDED, WEIGHTS, **changes)


def test_excluded_nodes_are_kept_from_folding_and_found_again() -> None:
    graph, targets = found(FOLDED, WEIGHTS, exclude_nodes=["first"], exclude_op_types=["Relu"])
    assert {node.outputs[0].name for node in graph.nodes if node in targets.excluded} == {"a", "r", "y"}
    assert [node.op for node in graph.nodes] == ["Conv", "BatchNormalization", "Relu", "Conv", "Relu"]


MERGED = "(float[2,4] x) => (float[2,4] y) { [fc] a = MatMul(x, w) [add] s = Add(a, b) y = Relu(s) }"
LINEAR: plans.Weights = {"w": (4, 4), "b": (4,)}


@pytest.mark.parametrize("pattern", ("fc", "f?", "MatMul", "Gemm"))
def test_a_matmul_that_became_a_gemm(pattern: str) -> None:
    assert layers(pattern, MERGED, LINEAR) == {"s"}


def test_the_add_of_a_gemm_is_gone() -> None:
    with pytest.raises(ValueError, match="layers entry 'add': the node is gone"):
        layers("add", MERGED, LINEAR)
    assert tensor_places("b", MERGED, LINEAR) == {"s.2"}


@pytest.mark.parametrize("op_type", ("MatMul", "Gemm"))
def test_op_types_before_and_after_preparation(op_type: str) -> None:
    graph, targets = found(MERGED, LINEAR, op_types=[op_type])
    table = FormatTable(graph, preset("BFP16").with_(op_types=[op_type]), targets)
    assert [table[node].wants_integers or table[node].weight is not None for node in graph.nodes] == [
        True,
        False,
    ]


def test_op_types_that_match_nothing() -> None:
    with pytest.raises(
        ValueError, match=r"^op_types entry 'Convv' matches no operator type, did you mean 'Conv'\?$"
    ):
        found(FOLDED, WEIGHTS, op_types=["Conv", "Convv"])
    found(FOLDED, WEIGHTS, op_types=["BatchNormalization"])
    found(FOLDED, WEIGHTS, op_types=["Conv", "ConvTranspose", "Gemm"])  # one list for several models


def test_tensors_of_one_name_in_several_bodies() -> None:
    text = BRANCHES.replace("p = MatMul(x, w)", "i = MatMul(x, w) p = Exp(i)")
    text = text.replace("p = Mul(x, w)", "i = Mul(x, w) p = Neg(i)")
    graph, targets = found(text, SQUARE, tensors={"i": "mx9"})
    makers = {node.op for node in walk.nodes(graph) if any(id(t) in targets.tensors for t in node.outputs)}
    assert makers == {"MatMul", "Mul"}


def test_inputs_of_bodies_and_outputs_of_the_model_are_tensors() -> None:
    text = """(float[2] x, int64 n) => (float[2] y) <bool on = {1}> {
        y = Loop (n, on, x) <body = b (int64 i, bool go, float[2] s) => (bool more, float[2] r) {
            more = Identity(go) r = Exp(s) }> }"""
    assert tensor_places("s", text, {}) == {"r.0"}
    graph, targets = found(text, {}, tensors={"y": "mx9"})
    assert id(graph.outputs[0]) in targets.tensors


def test_an_input_that_nothing_reads_is_a_tensor() -> None:
    graph, targets = found(
        "(float[2] x, float[2] z) => (float[2] y) { y = Tanh(x) }", {}, tensors={"z": "mx9"}
    )
    assert id(graph.inputs[1]) in targets.tensors


def test_later_entries_come_later_and_tables_are_kept() -> None:
    _, targets = found(FOLDED, WEIGHTS, layers={"Conv": "mx9", "second": {"weight": "mx4"}})
    assert [pattern for pattern, _, _ in targets.rules] == ["Conv", "second"]
    assert targets.rules[1][2].said == {"weight": "mx4"}


def test_a_place_is_not_taken_over_by_another_operator() -> None:
    """A fused LayerNormalization makes what the last Add made; its input is not what the Add read."""
    text = """(float[2,4] x) => (float[2,4] y) <float eps = {1e-5}, int64[1] last = {-1}> {
        u = ReduceMean(x, last) d = Sub(x, u) p = Mul(d, d) v = ReduceMean(p, last) e = Add(v, eps)
        s = Sqrt(e) n = Div(d, s) m = Mul(n, g) [sum] y = Add(m, b) }"""
    graph = plans.graph(text, {"g": (4,), "b": (4,)})
    targets = SchemeTargets(graph, preset("BFP16").with_(tensors={"m": "mx9"}))
    assert fuse_layernorm(graph) == 1
    with pytest.raises(ValueError, match="tensors entry 'm': the tensor is gone"):
        targets.resolve_in(graph)


def test_sets_of_nodes_and_their_union() -> None:
    graph = plans.graph(FOLDED, WEIGHTS)
    first, norm, _, second, _ = graph.nodes
    one, two = NodeSet([first]), select(graph, names=["second"]).resolve_in(graph)
    both = one | two
    assert [node in both for node in (first, norm, second)] == [True, False, True]
    assert (len(one), len(two), len(both), len(one | one), len(NodeSet())) == (1, 1, 2, 1, 0)
    again = plans.graph(FOLDED, WEIGHTS)
    assert [node in two.resolve_in(again) for node in again.nodes] == [False, False, False, True, False]
    with pytest.raises(ValueError, match=r"^none of the 2 nodes chosen is a node of the graph$"):
        both.resolve_in(again)
