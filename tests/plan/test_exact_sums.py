"""Weights with which sums are exact. Oracles: ``pair_sums``, which saturates, against whole numbers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from ops.pair_sums import pair_sums, wide_pairs
from tests.helpers import plans
from tests.helpers.quantization import write
from transforms.plan.quant_spec import WEIGHT, QuantSpec
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.scheme_targets import SchemeTargets
from transforms.plan.tensor_grids import FixedGrids, TensorGrid
from transforms.scheme import Scheme, preset

CONVS = {  # shape of a weight, groups; whether it is widened, None for kernels that add in 32 bits
    "one channel": ((8, 1, 3, 3), 1, True),
    "three channels": ((8, 3, 3, 3), 1, True),
    "four channels": ((8, 4, 3, 3), 1, False),
    "five channels": ((8, 5, 3, 3), 1, False),
    "groups": ((8, 2, 3, 3), 2, True),
    "depthwise": ((8, 1, 3, 3), 8, None),
    "depthwise, two outputs each": ((16, 1, 3, 3), 8, True),
}


def _conv(shape: tuple[int, ...], groups: int) -> str:
    return f"""(float[1,{shape[1] * groups},8,8] x) => (float[1,{shape[0]},6,6] y) {{
        y = Conv <group = {groups}> (x, w) }}"""


def _step(text: str, shape: tuple[int, ...], scheme: str | Scheme = "U8S8") -> QuantSpec:
    return plans.at(plans.plan(text, {"w": shape}, scheme), "y.1").steps[-1]


@pytest.mark.parametrize(("shape", "groups", "widened"), CONVS.values(), ids=CONVS)
@pytest.mark.parametrize("scheme", ["U8S8", "A8W8"])
def test_convolutions(shape: tuple[int, ...], groups: int, widened: bool | None, scheme: str) -> None:
    step = _step(_conv(shape, groups), shape, scheme)
    assert step.format.name == ("uint8" if widened else "int8") and step.symmetric
    assert step.pairs == (((2, 3, 1),) if widened is False else ())


@pytest.mark.parametrize(
    ("text", "shape", "widened", "axes"),
    [
        ("(float[1,4] x) => (float[1,6] y) { y = MatMul(x, w) }", (4, 6), True, ()),
        ("(float[N,4] x) => (float[N,6] y) { y = MatMul(x, w) }", (4, 6), True, ()),
        ("(float[7,4] x) => (float[7,6] y) { y = MatMul(x, w) }", (4, 6), False, (0,)),
        ("(float[N,T,4] x) => (float[N,T,6] y) { y = MatMul(x, w) }", (4, 6), False, (0,)),
        ("(float[7,4] x) => (float[7,6] y) { y = Gemm <transB = 1> (x, w) }", (6, 4), False, (1,)),
        ("(float[2,7,4] x) => (float[2,7,6] y) { y = MatMul(x, w) }", (2, 4, 6), False, (1,)),
    ],
)
def test_products(text: str, shape: tuple[int, ...], widened: bool, axes: tuple[int, ...]) -> None:
    step = _step(text, shape)
    assert (step.format.name, step.pairs) == ("uint8" if widened else "int8", (axes,) if axes else ())


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [
        ("U8S8", {"saturation": "ignore"}),
        ("U8S8", {"target": "openvino"}),
        ("A16W8", {}),
        ("W8", {}),
    ],
)
def test_sums_that_do_not_saturate_or_may(scheme: str, changes: dict[str, str]) -> None:
    step = _step(_conv((8, 4, 3, 3), 1), (8, 4, 3, 3), preset(scheme).with_(**changes))
    assert step.format.name == "int8" and not step.pairs


def test_scales_that_are_shifts_take_no_zero_points() -> None:
    assert _step(_conv((8, 3, 3, 3), 1), (8, 3, 3, 3), "XINT8").format.name == "int8"


def test_a_weight_that_another_node_reads_stays_int8() -> None:
    text = "(float[1,4] x) => (float[1,4] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }"
    assert _step(text, (4, 4)).format.name == "int8"


def test_a_weight_that_sums_read_along_two_axes_is_bounded_along_both_and_stored_once() -> None:
    text = "(float[7,4] x) => (float[7,4] y) { a = MatMul(x, w) y = Gemm <transB = 1> (a, w) }"
    plan = plans.plan(text, {"w": np.full((4, 4), 1.0, np.float32)}, "U8S8")
    assert [plans.at(plan, place).steps[-1].pairs for place in ("a.1", "y.1")] == [((0,), (1,))] * 2
    model = write(
        text, {"w": np.full((4, 4), 1.0, np.float32)}, preset("U8S8"), dict.fromkeys("xay", (0.0, 9.0))
    )
    (codes,) = (array for one in model.graph.initializer if (array := numpy_helper.to_array(one)).size == 16)
    assert not wide_pairs(codes, (0,)) and not wide_pairs(codes, (1,))


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("scale", ["float", "power_of_two"])
def test_what_is_written_has_exact_sums(scale: str, per_channel: bool, keep: bool) -> None:
    """All weights are nearly equal, of which plain int8 saturates in every pair."""
    draw = np.random.default_rng(0)
    weights: plans.Weights = {"w": draw.uniform(0.9, 1, (8, 6)).astype(np.float32)}
    scheme = preset("U8S8").with_(per_channel=per_channel, scale=scale, keep_weight_nodes=keep)
    codes = [_codes(weights, scheme.with_(saturation=how)) for how in ("avoid", "ignore")]
    activations = np.full((1, 8), 255, np.uint8)
    is_exact = [np.array_equal(pair_sums(activations, one), activations.astype(int) @ one) for one in codes]
    assert is_exact == [True, False]
    assert [wide_pairs(one, (0,)) > 0 for one in codes] == [False, True]


def _codes(weights: plans.Weights, scheme: Scheme) -> np.ndarray:
    """Return the integers of a weight, as stored or as a node rounds them."""
    text = "(float[7,8] x) => (float[7,6] y) { y = MatMul(x, w) }"
    model = write(text, weights, scheme, {"x": (0.0, 1.0), "y": (0.0, 8.0)})
    known = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    (node,) = (
        n for n in model.graph.node if "Linear" in n.op_type and np.shape(known.get(n.input[0], 0)) == (8, 6)
    )
    stored = known[node.input[0]]
    return stored if stored.dtype == np.int8 else np.rint(stored / known[node.input[1]]).astype(np.int8)


def test_grids_that_are_given_keep_their_format() -> None:
    """A weight whose grid a file gives in int8 is not widened."""
    text, shape = _conv((8, 3, 3, 3), 1), (8, 3, 3, 3)
    grid = TensorGrid("w", WEIGHT, "int8", 8, None, np.array(0.01, np.float32), np.array(128))
    targets = SchemeTargets(plans.graph(text, {"w": shape}), preset("U8S8"))
    targets.fixed = FixedGrids([grid])
    graph = plans.graph(text, {"w": shape})
    step = plans.at(QuantizationPlan(graph, preset("U8S8"), targets), "y.1").steps[-1]
    assert step.format.name == "int8" and step.pairs == ((2, 3, 1),)
