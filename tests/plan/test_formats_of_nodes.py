"""Oracle: the formats written down in each test, by place in the notation of :mod:`tests.helpers.plans`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ops
from tests.helpers import plans
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.run.run_model import open_model
from transforms.scheme import Scheme, preset

WEIGHTS: plans.Weights = dict.fromkeys("wvu", (4, 4, 1, 1)) | {"b": (4,), "c": (4,)}
CHAIN = """(float[1,4,8,8] x) => (float[1,4,8,8] y) {
    [conv1] a = Conv(x, w, b) [act] t = Exp(a) [conv2] d = Conv(t, v, c) [soft] e = Softmax(d)
    [conv3] y = Conv(e, u) }"""


def reads(
    scheme: str | Scheme, text: str = CHAIN, weights: plans.Weights = WEIGHTS, **changes: Any
) -> dict[str, str]:
    return plans.reads(plans.plan(text, weights, scheme, **changes))


def by_node(found: dict[str, str]) -> dict[str, str]:
    """Return the formats of each node's inputs in order, ``-`` for float32."""
    return {
        node: " ".join(found.get(f"{node}.{index}", "-") for index in range(3)).replace(" -", "")
        for node in dict.fromkeys(place.partition(".")[0] for place in found if "=" not in place)
    }


INT, BLOCK, HALF = "int8 int8 int32", "bfp16 bfp16", "bfloat16 bfloat16 bfloat16"


@pytest.mark.parametrize(
    ("layers", "wanted"),
    (
        ({}, {"a": INT, "d": INT, "y": "int8 int8"}),
        ({"conv2": "bfp16"}, {"a": INT, "d": BLOCK, "y": "int8 int8"}),
        ({"conv[12]": "mx9"}, {"a": "mx9 mx9", "d": "mx9 mx9", "y": "int8 int8"}),
        ({"Conv": "int16"}, dict.fromkeys("ad", "int16 int16 int32") | {"y": "int16 int16"}),
        ({"Conv": "int16", "conv1": "mx9"}, {"a": "mx9 mx9", "d": "int16 int16 int32", "y": "int16 int16"}),
        ({"conv1": "mx9", "Conv": "int16"}, dict.fromkeys("ad", "int16 int16 int32") | {"y": "int16 int16"}),
        ({"conv2": "float32"}, {"a": INT, "y": "int8 int8"}),
        ({"Conv": "float32", "conv3": "int8"}, {"y": "int8 int8"}),
        ({"conv2": {"weight": "int4"}}, {"a": INT, "d": "int8 int4 int32", "y": "int8 int8"}),
        ({"conv2": {"activation": "int16"}}, {"a": INT, "d": "int16 int8 int32", "y": "int8 int8"}),
        ({"conv2": {"activation": "float32"}}, {"a": INT, "d": "- int8", "y": "int8 int8"}),
        ({"conv2": {"weight": "float32"}}, {"a": INT, "d": "int8", "y": "int8 int8"}),
        ({"conv2": {"bias": "float32"}}, {"a": INT, "d": "int8 int8", "y": "int8 int8"}),
        ({"conv2": {"bias": "mx9"}}, {"a": INT, "d": "int8 int8 mx9", "y": "int8 int8"}),
        ({"conv2": {"bias": "bfloat16"}}, {"a": INT, "d": "int8 int8 bfloat16", "y": "int8 int8"}),
        ({"conv2": "bfloat16"}, {"a": INT, "d": HALF, "e": "bfloat16", "y": "int8 int8"}),
        ({"soft": "bfloat16"}, {"a": INT, "d": INT, "e": "bfloat16", "y": "int8 int8"}),
        ({"Conv": {"weight": "int4"}, "conv2": {"activation": "int16"}},
         {"a": "int8 int4 int32", "d": "int16 int4 int32", "y": "int8 int4"}),
    ),
)  # fmt: skip
def test_layers(layers: dict[str, Any], wanted: dict[str, str]) -> None:
    found = reads("A8W8", layers=layers)
    assert by_node(found) == wanted


def test_a_layer_in_bfloat16_rounds_what_a_float_node_reads_of_it() -> None:
    """As in a conversion: the value that leaves a bfloat16 layer is a bfloat16 number."""
    assert reads("BFP16", layers={"conv2": "bfloat16"})["e.0"] == "bfloat16"
    assert "e.0" not in reads("BFP16", layers={"conv2": "mx9"})


@pytest.mark.parametrize("changes", ({"layers": {"conv2": "float32"}}, {"exclude_nodes": ["conv2"]}))
def test_a_float_layer_in_a_bfloat16_model(changes: dict[str, Any]) -> None:
    found = by_node(reads("BF16", **changes))
    one = "bfloat16"
    assert found == {"a": HALF, "t": one, "d": one, "e": one, "y": f"{one} {one}"}


def test_granularity_of_a_layer() -> None:
    planned = plans.plan(CHAIN, WEIGHTS, "A8W8", per_channel=False, layers={"conv2": {"per_channel": True}})
    assert [plans.at(planned, place).steps[0].axis for place in ("a.1", "d.1", "y.1")] == [None, 0, None]
    planned = plans.plan(CHAIN, WEIGHTS, "W4A8", layers={"conv2": {"per_channel": False}})
    assert [plans.at(planned, place).steps[0].axis for place in ("a.1", "d.1", "y.1")] == [0, None, 0]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    (
        ({"op_types": ["Softmax"]}, {}),
        ({"exclude_op_types": ["Conv"]}, {}),
        ({"exclude_nodes": ["conv[23]"]}, {"a": INT}),
        ({"op_types": ["Conv"], "exclude_nodes": ["conv1"]}, {"d": INT, "y": "int8 int8"}),
        ({"op_types": ["Softmax"], "layers": {"conv2": "mx9"}}, {"d": "mx9 mx9"}),
        ({"exclude_nodes": ["conv2"], "layers": {"Conv": "mx9"}}, {"a": "mx9 mx9", "y": "mx9 mx9"}),
    ),
)
def test_which_nodes(changes: dict[str, Any], wanted: dict[str, str]) -> None:
    assert by_node(reads("A8W8", **changes)) == wanted


def test_op_types_limit_float_types_too() -> None:
    found = reads("BF16", op_types=["Conv"])
    assert by_node(found) == {
        "a": HALF,
        "t": "bfloat16",
        "d": HALF,
        "e": "bfloat16",
        "y": "bfloat16 bfloat16",
    }
    assert by_node(reads("BF16", op_types=["Softmax"])) == {"e": "bfloat16", "y": "bfloat16"}


@pytest.mark.parametrize(
    ("scheme", "bias", "wanted"),
    (
        (Scheme("int8", "int8"), "auto", "int32"),
        (Scheme("int8", "int8"), "int32", "int32"),
        (Scheme("int8", "int8"), "float32", "-"),
        (Scheme("int8", "int8"), "bfp16", "bfp16"),
        (Scheme("int8", "int8", other="bfloat16"), "auto", "int32"),
        (Scheme("int16", "int4"), "auto", "int32"),
        (Scheme("int32", "int32"), "auto", "-"),
        (Scheme("int8", "float32"), "int32", "-"),
        (Scheme("float32", "int8"), "auto", "-"),
        (Scheme("int8", "mx9"), "int32", "-"),
        (Scheme("bfp16", "bfp16"), "auto", "-"),
        (Scheme("bfp16", "bfp16"), "int32", "-"),
        (Scheme("bfp16", "bfp16"), "bfp16", "bfp16"),
        (Scheme("bfp16", "bfp16"), "bfloat16", "bfloat16"),
        (Scheme("bfp16", "bfp16", other="bfloat16"), "auto", "bfloat16"),
        (Scheme("bfp16", "bfp16", other="bfloat16"), "int32", "bfloat16"),
        (Scheme("bfp16", "bfp16", other="bfloat16"), "float32", "-"),
        (Scheme("bfp16", "bfp16", quantize_all_op_types=True), "auto", "bfp16"),
        (Scheme("int32", "int32", quantize_all_op_types=True), "auto", "-"),
        (Scheme("bfloat16", "bfloat16"), "auto", "bfloat16"),
        (Scheme("bfloat16", "bfloat16"), "float32", "-"),
        (Scheme("bfloat16", "bfloat16"), "mx9", "mx9"),
    ),
)
def test_biases(scheme: Scheme, bias: str, wanted: str) -> None:
    found = reads(scheme, bias=bias)
    assert {found.get("a.2", "-"), found.get("d.2", "-")} == {wanted}


GEMM = "(float[4,4] x) => (float[K,L] y) { y = Gemm <alpha = 0.5, beta = 2.0> (x, w, b) }"
LINEAR: plans.Weights = {"w": (4, 4), "b": (4,)}


@pytest.mark.parametrize(
    ("text", "shapes", "per_channel", "wanted"),
    (
        (GEMM, {}, True, "int32"),
        (GEMM, {"b": (1, 4)}, True, "int32"),
        (GEMM, {"b": (4, 1)}, True, "-"),
        (GEMM, {"b": (4, 1)}, False, "int32"),
        (GEMM, {"b": (4, 4)}, True, "-"),
        (GEMM, {"b": (4, 4)}, False, "int32"),
        (GEMM, {"b": ()}, True, "-"),
        (GEMM, {"b": ()}, False, "int32"),
        (GEMM, {"b": (1,)}, True, "-"),
        (GEMM, {"w": (4, 1), "b": (1,)}, True, "int32"),
        (
            GEMM.replace("(x, w", "<transB = 1> (x, w").replace("beta = 2.0> <", "beta = 2.0, "),
            {},
            True,
            "int32",
        ),
        (GEMM.replace("(x, w", "(w, x"), {}, True, "-"),
        (GEMM.replace("(x, w", "(w, x"), {}, False, "int32"),
        (GEMM.replace("(x, w", "(x, x"), {}, False, "-"),
    ),
)
def test_which_biases_can_be_int32(text: str, shapes: plans.Weights, per_channel: bool, wanted: str) -> None:
    """One number per output channel, or one scale for all; and a weight to widen where it overflows."""
    weights = {**LINEAR, **shapes}
    used = {name: shape for name, shape in weights.items() if f"{name}," in text or f"{name})" in text}
    assert reads("A8W8", text, used, per_channel=per_channel).get("y.2", "-") == wanted


def test_a_bias_that_is_computed_is_no_bias() -> None:
    text = "(float[4,4] x, float[4] z) => (float[4,4] y) { t = Exp(z) y = Gemm(x, w, t) }"
    assert by_node(reads("A8W8", text, {"w": (4, 4)})) == {"y": "int8 int8"}
    found = reads("A8W8", text, {"w": (4, 4)}, other="bfloat16")
    assert (found["y.2"], found["t.0"]) == ("bfloat16", "bfloat16")


@pytest.mark.parametrize(
    ("tensors", "changed"),
    (
        ({"x": "int16"}, {"a.0": "int16"}),
        ({"w": "int4"}, {"a.1": "int4"}),
        ({"w": "mx9"}, {"a.1": "mx9", "a.2": "-"}),
        ({"w": "float32"}, {"a.1": "-", "a.2": "-"}),
        ({"b": "float32"}, {"a.2": "-"}),
        ({"b": "bfloat16"}, {"a.2": "bfloat16"}),
        ({"b": "int8"}, {"a.2": "int8"}),
        ({"b": "int32"}, {}),
        ({"x": "float32", "b": "int32"}, {"a.0": "-"}),
        ({"a": "bfloat16"}, {"t.0": "bfloat16"}),
        ({"d": "int8"}, {"e.0": "int8"}),
        ({"y": "mx9"}, {"=y": "mx9"}),
        ({"y": "float32"}, {"=y": "-"}),
    ),
)
def test_tensors_before_everything_else(tensors: dict[str, str], changed: dict[str, str]) -> None:
    usual = reads("A8W8", layers={"conv2": "float32"})
    wanted = {place: name for place, name in {**usual, **changed}.items() if name != "-"}
    assert reads("A8W8", layers={"conv2": "float32"}, tensors=tensors) == wanted


@pytest.mark.parametrize(("tensors", "role"), (({"b": "int32"}, "bias"), ({"b": "int8"}, "constant")))
def test_a_bias_has_the_scale_of_the_product_only_as_int32(tensors: dict[str, str], role: str) -> None:
    assert plans.at(plans.plan(CHAIN, WEIGHTS, "A8W8", tensors=tensors), "a.2").role == role
    beside = plans.plan(CHAIN, WEIGHTS, "BFP16", tensors=tensors)
    assert plans.at(beside, "a.2").role == "constant"


def test_a_named_tensor_has_its_format_wherever_it_is_read() -> None:
    text = "(float[4,4] x) => (float[4,4] a, float[4,4] y) { a = MatMul(x, w) t = Exp(a) y = MatMul(t, a) }"
    found = reads("BFP16", text, {"w": (4, 4)}, tensors={"a": "int8"})
    assert found == {
        "a.0": "bfp16",
        "a.1": "bfp16",
        "t.0": "int8",
        "y.0": "bfp16",
        "y.1": "int8",
        "=a": "int8",
    }


def test_own_formats() -> None:
    formats = {"small": {"base": "bfp16", "block_size": 4}}
    planned = plans.plan(
        CHAIN, WEIGHTS, "BFP16", formats=formats, layers={"conv2": "small"}, tensors={"w": "small"}
    )
    assert by_node(plans.reads(planned)) == {"a": "bfp16 small", "d": "small small", "y": BLOCK}
    assert plans.at(planned, "d.0").steps[0].format.block == 4


def test_scales_per_channel_do_not_need_a_bias() -> None:
    text = "(float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Conv(x, w) }"
    assert by_node(reads("A8W8", text, {"w": np.ones((4, 4, 1, 1), np.float32)}, per_channel=True)) == {
        "y": "int8 int8"
    }


def test_blocks_of_a_tensor_of_no_known_rank_are_along_its_last_axis() -> None:
    """Oracle: the same kernel on the array."""
    text = "(float[2,3,40] x, int64[n] size) => (float[A,B,C] y) { a = Reshape(x, size) y = Neg(a) }"
    graph = plans.loose_graph(text, opset=17)
    quantize_graph(graph, preset("MX6").with_(quantize_all_op_types=True), None)
    x = np.random.default_rng(0).standard_normal((2, 3, 40)).astype(np.float32)
    made = open_model(graph).run({"x": x, "size": np.array([2, 3, 40])})["y"]
    np.testing.assert_array_equal(made, -np.asarray(ops.quantize_dequantize(x, "mx6", -1)))
