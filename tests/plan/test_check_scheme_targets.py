"""Oracle: the one-line messages, which name the entry, what it means and the format."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import plans

WEIGHTS: plans.Weights = {"w": (4, 4), "v": (4, 4), "b": (4,)}
MODEL = """(float[4,4] x, int64[4,4] i, bool c) => (float[4,4] y, int64[4,4] j) {
    [one] a = Gemm(x, w, b) [act] r = Relu(a) [soft] t = Softmax(r) [two] d = MatMul(t, v)
    [ints] j = Add(i, i)
    [choice] y = If (c) <then_branch = th () => (float[4,4] p) { [inner] q = MatMul(d, w) p = Exp(q) },
                         else_branch = el () => (float[4,4] e) { e = Identity(d) }> }"""


def refusal(scheme: str, **changes: Any) -> str:
    """Return what is said where a plan cannot do what a scheme says."""
    with pytest.raises(ValueError) as caught:
        plans.plan(MODEL, WEIGHTS, scheme, **changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("layers", "message"),
    (
        ({"soft": "bfp16"}, "layers entry 'soft': no input of Softmax can take bfp16 there"),
        ({"Softmax": "int8"}, "layers entry 'Softmax': no input of Softmax can take int8 there"),
        ({"inner": "int8"}, "layers entry 'inner': no input of MatMul can take int8 there"),
        ({"act": "int16"}, "layers entry 'act': no input of Relu can take int16 there"),
        ({"ints": "bfloat16"}, "layers entry 'ints': no input of Add can take bfloat16 there"),
        (
            {"inner": {"activation": "int8", "weight": "mx9"}},
            "'inner': no input of MatMul can take int8 or mx9 there",
        ),
        (
            {"[ias]*": "int8"},
            "layers entry '[ias]*': no input of Add, MatMul, Relu, Softmax can take int8 there",
        ),
        ({"act": {"weight": "mx9"}}, "layers entry 'act': no input of Relu can take mx9 there"),
    ),
)
def test_layers_that_can_not_take_a_format(layers: dict[str, Any], message: str) -> None:
    assert refusal("BFP16", layers=layers).endswith(message)


def test_a_weight_format_where_there_is_no_weight() -> None:
    text = "(float[4,4] x) => (float[4,4] y) { [product] y = MatMul(x, x) }"
    with pytest.raises(ValueError, match="'product': no input of MatMul can take int4 there"):
        plans.plan(text, {}, "A8W8", layers={"product": {"weight": "int4"}})


@pytest.mark.parametrize(
    "changes",
    (
        {"layers": {"soft": "bfloat16"}},
        {"layers": {"inner": "mx9"}},
        {"layers": {"inner": {"weight": "int8"}}},
        {"layers": {"soft": "float32", "ints": "float32"}},
        {"layers": {"*": "mx9"}},
        {"layers": {"[ao]*": "int16"}},
        {"layers": {"soft": "mx9"}, "quantize_all_op_types": True},
        {"layers": {"soft": {"bias": "int32"}}},
        {"layers": {"[it]*": {"activation": "mx9", "weight": "mx4"}}},
        {"layers": {"soft": {"per_channel": True}}},
    ),
)
def test_layers_that_can(changes: dict[str, Any]) -> None:
    assert plans.plan(MODEL, WEIGHTS, "BFP16", **changes).quantizations


@pytest.mark.parametrize(
    "changes",
    (
        {"layers": {"MatMul": "mx9", "two": "mx6", "inner": "mx4"}},
        {"layers": {"MatMul": "int4", "*": "mx9"}},
        {"layers": {"one": "mx9"}, "exclude_nodes": ["one"]},
    ),
)
def test_rules_that_others_override_everywhere_are_no_error(changes: dict[str, Any]) -> None:
    changes = {**changes, "layers": {k: {"weight": v} for k, v in changes["layers"].items()}}
    found = plans.reads(plans.plan(MODEL, WEIGHTS, "BFP16", **changes))
    assert "mx9" not in found.values() or "int4" in changes["layers"]["MatMul"].values()


@pytest.mark.parametrize(
    ("tensors", "message"),
    (
        ({"i": "int8"}, "tensors entry 'i': nothing that reads it can take int8"),
        ({"j": "bfloat16"}, "tensors entry 'j': nothing that reads it can take bfloat16"),
        ({"c": "mx9"}, "tensors entry 'c': nothing that reads it can take mx9"),
        ({"q": "int8"}, "tensors entry 'q': int8 needs a range, none is measured in If, Loop and Scan"),
        ({"nothing": "int8"}, "tensors entry 'nothing' is not a tensor of the model"),
    ),
)
def test_tensors_that_can_not_take_a_format(tensors: dict[str, str], message: str) -> None:
    assert refusal("BFP16", tensors=tensors) == message


@pytest.mark.parametrize(
    ("tensors", "places"),
    (
        ({"q": "mx9"}, {"p.0": "mx9"}),
        ({"t": "int8"}, {"d.0": "int8"}),
        ({"w": "int8"}, {"a.1": "int8", "q.1": "int8"}),
        ({"d": "int8"}, {"q.0": "int8", "e.0": "int8"}),
        ({"r": "bfloat16"}, {"t.0": "bfloat16"}),
        ({"i": "float32"}, {}),
    ),
)
def test_tensors_that_can(tensors: dict[str, str], places: dict[str, str]) -> None:
    usual = plans.reads(plans.plan(MODEL, WEIGHTS, "BFP16"))
    assert plans.reads(plans.plan(MODEL, WEIGHTS, "BFP16", tensors=tensors)) == {**usual, **places}


def test_an_input_that_has_to_stay_float32() -> None:
    text = """(float[1,1,4,4] x, float[4] s) => (float[A,B,C,D] y) {
        [one] a = Conv(x, k) y = Resize (a, , s) }"""
    with pytest.raises(ValueError, match="tensors entry 's': nothing that reads it can take bfloat16"):
        plans.plan(text, {"k": (1, 1, 1, 1)}, "A8W8", tensors={"s": "bfloat16"})
