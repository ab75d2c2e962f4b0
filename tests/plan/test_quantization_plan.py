"""Oracles: the places and formats written down in each test, in the notation of :mod:`tests.helpers.plans`,
and for bfloat16 :class:`transforms.plan.rounding_plan.RoundingPlan`, which the conversions to BF16 follow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import corpus, plans
from transforms import model_io
from transforms.graph import dtypes
from transforms.lift_constants import lift_constants
from transforms.plan.quant_spec import BIAS, CONSTANT, WEIGHT
from transforms.plan.quantization_plan import QuantizationPlan, each_use
from transforms.plan.rounding_plan import RoundingPlan
from transforms.scheme import Scheme, preset
from transforms.scheme.presets import PLAIN

KERNELS: plans.Weights = {"w": (4, 3, 3, 3), "v": (4, 4, 3, 3), "b": (4,), "c": (4,), "f": (4, 5), "g": (5,)}
CNN = """(float[1,3,8,8] x) => (float[1,5] y) {
    [one] a = Conv <pads = [1, 1, 1, 1]> (x, w, b) [act] r = Relu(a)
    [two] d = Conv <pads = [1, 1, 1, 1]> (r, v, c) [sum] s = Add(d, r)
    [pool] p = GlobalAveragePool(s) [flat] q = Flatten(p) [head] z = Gemm(q, f, g) [soft] y = Softmax(z) }"""

OPERANDS = {"a.0", "a.1", "d.0", "d.1", "z.0", "z.1"}
BIASES = {"a.2", "d.2", "z.2"}
INTEGERS = OPERANDS | {"s.0", "s.1", "p.0", "q.0"}
WIDENED = {"a.1": "uint8", "z.1": "uint8"}
"""Weights of three channels, and of one row a sample, whose sums would saturate (exact_sums)."""


def reads(
    scheme: str | Scheme, text: str = CNN, weights: plans.Weights = KERNELS, **changes: Any
) -> dict[str, str]:
    return plans.reads(plans.plan(text, weights, scheme, **changes))


def all_in(places: set[str], name: str) -> dict[str, str]:
    return dict.fromkeys(places, name)


def test_integers() -> None:
    assert reads("A8W8") == all_in(INTEGERS, "int8") | all_in(BIASES, "int32") | WIDENED
    assert reads("A8W8", saturation="ignore") == all_in(INTEGERS, "int8") | all_in(BIASES, "int32")


@pytest.mark.parametrize("name", ("BFP16", "MX9", "MXINT8", "MXFP4E2M1"))
def test_block_formats_reach_operands_alone(name: str) -> None:
    assert reads(name) == all_in(OPERANDS, preset(name).activation)


@pytest.mark.parametrize("name", ("A8W8", "BFP16"))
def test_other_values_in_bfloat16(name: str) -> None:
    """Relu commutes with rounding, and the value that leaves Softmax is the output."""
    inner = preset(name).activation
    found = reads(name, other="bfloat16")
    rest = {"s.0", "s.1", "p.0", "q.0", "y.0", "=y"}
    integers = all_in(INTEGERS, inner) | all_in(BIASES, "int32") | WIDENED
    taken = integers if name == "A8W8" else all_in(OPERANDS, inner)
    assert found == all_in(rest | BIASES, "bfloat16") | taken


@pytest.mark.parametrize(
    ("name", "activation", "weight"),
    (("BF16_BFP16", "bfloat16", "bfp16"), ("BF16_MXINT8", "bfloat16", "mxint8"), ("W4A8", "int8", "int4")),
)
def test_activation_and_weight_of_two_formats(name: str, activation: str, weight: str) -> None:
    found = reads(preset(name).with_(finer_share=0.0))
    assert {place: found[place] for place in OPERANDS} == {
        place: weight if place in ("a.1", "d.1", "z.1") else activation for place in OPERANDS
    }
    assert {found[place] for place in BIASES} == {"bfloat16" if "BF16" in name else "int32"}


def test_weights_alone() -> None:
    scheme = Scheme("float32", "int4")
    assert reads(scheme) == all_in({"a.1", "d.1", "z.1"}, "int4")
    assert plans.plan(CNN, KERNELS, scheme).measured() == []


def test_activations_alone() -> None:
    found = reads(Scheme("int8", "float32"))
    assert found == all_in(INTEGERS - {"a.1", "d.1", "z.1"}, "int8")
    text = "(float[2,2] x) => (float[2,2] y) { a = MatMul(x, w) y = Mul(a, u) }"
    found = reads(Scheme("int8", "float32"), text, SQUARE)
    assert found == all_in({"a.0", "y.0", "y.1", "=y"}, "int8")


ON_A_GRID_OR_EMPTY = {"quantized", "empty", "zero size"}
"""Models with tensors that a plan leaves alone, where the conversions round them for the sake of types."""


@pytest.mark.parametrize("name", ("BF16", "FP16"))
@pytest.mark.parametrize("model", sorted(corpus.MODELS.keys() - ON_A_GRID_OR_EMPTY))
def test_float_types_go_where_the_conversions_round(name: str, model: str) -> None:
    graph = model_io.load(corpus.build(model))
    lift_constants(graph)
    element = dtypes.BFLOAT16 if name == "BF16" else dtypes.FLOAT16
    rounding = RoundingPlan(graph, element)
    planned = QuantizationPlan(graph, preset(name))
    wanted = {(id(node), index) for r in rounding.roundings for node, index in r.uses}
    assert {(id(node), index) for node, index, _ in each_use(planned)} == wanted
    outputs = {id(r.tensor) for r in rounding.roundings if r.is_output}
    assert {id(q.tensor) for q in planned.quantizations if q.is_output} == outputs
    assert {q.steps[0].format.name for q in planned.quantizations} <= {preset(name).activation}
    owners = {id(r.tensor): (id(r.owner), id(r.producer)) for r in rounding.roundings}
    assert {id(q.tensor): (id(q.owner), id(q.producer)) for q in planned.quantizations} == owners


@pytest.mark.parametrize("node", ("one", "act", "two", "sum", "soft"))
def test_a_node_kept_out_of_bfloat16_as_the_conversions_keep_it(node: str) -> None:
    graph = plans.graph(CNN, KERNELS)
    planned = QuantizationPlan(graph, preset("BF16").with_(exclude_nodes=[node]))
    excluded = planned.specs._targets.excluded
    assert len(excluded) == 1
    rounding = RoundingPlan(graph, dtypes.BFLOAT16, exclude=excluded)
    wanted = {(id(node), index) for r in rounding.roundings for node, index in r.uses}
    assert {(id(node), index) for node, index, _ in each_use(planned)} == wanted


@pytest.mark.parametrize(
    ("name", "inner"), (("A8W8", "int8"), ("BFP16", "bfp16"), ("BF16", "bfloat16"), ("FP16", "float16"))
)
def test_all_operator_types_on_request(name: str, inner: str) -> None:
    found = reads(name, quantize_all_op_types=True)
    everything = INTEGERS | BIASES | {"y.0", "=y"}
    wanted = all_in(everything, inner) | (all_in(BIASES, "int32") | WIDENED if name == "A8W8" else {})
    assert found == wanted


def test_all_operator_types_of_a_layer_that_is_not_float() -> None:
    found = reads("A8W8", quantize_all_op_types=True, exclude_op_types=["Softmax"])
    assert found == all_in(INTEGERS, "int8") | all_in(BIASES, "int32") | WIDENED


BODIES = """(float[2,2] x, bool c, int64 n) => (float[2,2] y) <bool on = {1}> {
    [outer] a = MatMul(x, w) t = Tanh(a)
    i = If (c) <
        then_branch = th () => (float[2,2] p) { [inner] q = MatMul(t, w) h = Tanh(q) p = MatMul(h, t) },
        else_branch = el () => (float[2,2] r) { r = Add(t, u) }>
    y = Loop (n, on, i) <body = lb (int64 k, bool go, float[2,2] s) => (bool more, float[2,2] z) {
        more = Identity(go) z = MatMul(s, w) }> }"""
INNER = {"q.0", "q.1", "p.0", "p.1", "z.0", "z.1"}
SQUARE: plans.Weights = {"w": (2, 2), "u": (2, 2)}


def test_integers_stay_out_of_bodies() -> None:
    planned = plans.plan(BODIES, SQUARE)
    assert plans.reads(planned) == all_in({"a.0", "a.1", "t.0"}, "int8")
    assert [tensor.name for tensor in planned.measured()] == ["x", "a"]
    assert not INNER & set(reads("A8W8", BODIES, SQUARE, quantize_all_op_types=True))


def test_block_formats_and_float_types_go_into_bodies() -> None:
    assert reads("BFP16", BODIES, SQUARE) == all_in({"a.0", "a.1"} | INNER, "bfp16")
    floats = reads("A8W8", BODIES, SQUARE, other="bfloat16")
    assert {floats[place] for place in INNER | {"r.0", "r.1"}} == {"bfloat16"}
    planned = plans.plan(BODIES, SQUARE, "BFP16")
    body = planned.graph.nodes[2].attrs["then_branch"]
    owners = {place: plans.at(planned, place).owner for place in ("q.0", "q.1", "p.0", "p.1")}
    assert owners["p.0"] is body
    assert owners["q.0"] is owners["p.1"] is owners["q.1"] is planned.graph
    assert plans.at(planned, "z.0").producer is None


def test_a_captured_tensor_is_in_the_main_graph_and_a_state_is_not() -> None:
    planned = plans.plan(BODIES, SQUARE, "BFP16")
    inside = {place: planned.specs.is_in_main_graph(plans.at(planned, place).tensor) for place in INNER}
    assert inside == {"q.0": True, "q.1": False, "p.0": False, "p.1": True, "z.0": False, "z.1": False}


@pytest.mark.parametrize("call", ("MatMul(x, w)", "MatMul(w, x)"))
def test_a_shared_weight_has_a_grid_for_each_kind_of_reader(call: str) -> None:
    """Blocks run along the sum: one more reader with the same axis shares the grid."""
    text = f"""(float[4,4] x) => (float[4,4] y) {{ a = MatMul(x, w) d = MatMul(a, w) e = {call}
        y = MatMul(e, d) }}"""
    planned = plans.plan(text, {"w": (4, 4)}, "BFP16")
    grids = [q for q in planned.quantizations if q.tensor.name == "w"]
    same = call.startswith("MatMul(x")
    assert [len(q.uses) for q in grids] == ([3] if same else [2, 1])
    assert [q.steps[0].axis for q in grids] == ([0] if same else [0, 1])


def test_a_shared_weight_in_two_formats() -> None:
    text = "(float[4,4] x) => (float[4,4] y) { [one] a = MatMul(x, w) [two] y = MatMul(a, w) }"
    found = reads("A8W8", text, {"w": (4, 4)}, layers={"two": "bfp16"})
    assert found == {"a.0": "int8", "a.1": "int8", "y.0": "bfp16", "y.1": "bfp16"}


@pytest.mark.parametrize("name", ("A8W8", "W4A8"))
def test_scales_per_channel(name: str) -> None:
    planned = plans.plan(CNN, KERNELS, name, per_channel=True)
    assert {place: plans.at(planned, place).steps[0].axis for place in ("a.1", "z.1", "a.0", "s.0")} == {
        "a.1": 0,
        "z.1": 1,
        "a.0": None,
        "s.0": None,
    }


@pytest.mark.parametrize(("largest", "axis"), ((8, 1), (7.9, None)))
def test_scales_per_channel_where_channels_differ_by_eight(largest: float, axis: int | None) -> None:
    weight = np.array([[1, largest, 0], [-0.5, -1, 0]], np.float32)
    planned = plans.plan("(float[2,2] x) => (float[2,3] y) { y = MatMul(x, w) }", {"w": weight})
    assert planned.scheme.per_channel == "auto"
    assert plans.at(planned, "y.1").steps[0].axis == axis


def test_symmetry() -> None:
    for name, both in (("A8W8", {"a.0": True, "a.1": True}), ("U8S8", {"a.0": False, "a.1": True})):
        planned = plans.plan(CNN, KERNELS, name)
        assert {place: plans.at(planned, place).steps[0].symmetric for place in both} == both
    planned = plans.plan(CNN, KERNELS, Scheme("int8", "uint8", activation_symmetric=False))
    assert [plans.at(planned, place).steps[0].symmetric for place in ("a.0", "a.1", "a.2")] == [
        False,
        False,
        True,
    ]


def test_roles() -> None:
    text = "(float[2,2] x) => (float[2,2] y) { a = Gemm(x, w, b) m = Mul(a, u) y = Tanh(m) }"
    planned = plans.plan(text, {**SQUARE, "b": (2,)}, "A8W8", other="bfloat16")
    roles = {place: plans.at(planned, place).role for place in ("a.0", "a.1", "a.2", "m.0", "m.1")}
    assert roles == {"a.0": "activation", "a.1": WEIGHT, "a.2": BIAS, "m.0": "activation", "m.1": CONSTANT}


@pytest.mark.parametrize(("aligned", "format"), ((True, "int16"), (False, "int8")))
def test_constants_of_sums_have_the_format_of_weights_unless_aligned(aligned: bool, format: str) -> None:
    text = "(float[2,2] x) => (float[2,2] y) { a = MatMul(x, w) y = Mul(a, u) }"
    found = reads("A16W8", text, SQUARE, align_eltwise_quant_type=aligned)
    assert found == {"a.0": "int16", "a.1": "int8", "y.0": "int16", "y.1": format, "=y": "int16"}


def test_what_is_on_a_grid_already_and_what_is_empty_is_left_alone() -> None:
    text = """(float[2,2] x) => (float[2,2] y) <float s = {0.5}, int8 z = {0}> {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = MatMul(d, w) }"""
    assert reads("A8W8", text, SQUARE) == {"y.1": "int8", "=y": "int8"}
    text = "(float[0,2] x) => (float[0,2] y) { y = MatMul(x, w) }"
    assert reads("A8W8", text, SQUARE) == {"y.1": "int8"}


@pytest.mark.parametrize("name", [name for name in PLAIN if name not in ("INT32", "UINT32")])
def test_no_preset_quantizes_what_is_no_float(name: str) -> None:
    for model in ("integers", "strings", "bool and where", "quantized", "sequence output", "half island"):
        graph = model_io.load(corpus.build(model))
        lift_constants(graph)
        planned = QuantizationPlan(graph, preset(name))
        assert all(dtypes.is_type(q.tensor, dtypes.FLOAT) for q in planned.quantizations)
