"""Concats of ranges far apart. Oracle: the SQNR of the small part alone, on samples that were not seen."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.helpers import plans
from transforms import model_io
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.lift_constants import lift_constants
from transforms.model.copy_graph import copy_graph
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.joined_ranges import APART, joined_far_apart
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.precision.mixed_model import MixedModel
from transforms.run.run_model import open_model
from transforms.scheme import preset

PARTS = """<int64[1] z = {0}, int64[1] four = {4}, int64[1] end = {99}, int64[1] one = {1},
    int64[1] two = {2}, float half = {0.5}, float wide = {600}, int64[3] places = {4, 5, 6}> {
    a = MatMul (w1, x) r = Relu (a) l = MatMul (w3, r) b0 = MatMul (w2, r) boxes = Mul (b0, wide) %s }"""
JOIN = "o = Concat <axis=1> (boxes, l)"
CUT = "s = Slice (o, four, end, one) y = Sigmoid (s)"
WEIGHTS: plans.Weights = {
    **{"w1": (1, 32, 16), "w2": (1, 4, 32), "w3": (1, 3, 32), "w5": (1, 5, 7)},
    "each": np.array([1] * 4 + [2] * 3, np.float32).reshape(1, 7, 1),
}
APART_WAYS = {
    "cut": f"{JOIN} {CUT}",
    "turned and cut": f"{JOIN} t = Transpose <perm=[0,2,1]> (o) s = Slice (t, four, end, two)"
    " u = Transpose <perm=[0,2,1]> (s) y = Sigmoid (u)",
    "looked up": f"{JOIN} s = Gather <axis=1> (o, places) y = Sigmoid (s)",
    "times a number": f"{JOIN} m = Mul (o, half) s = Slice (m, four, end, one) y = Sigmoid (s)",
    "and a number": f"{JOIN} m = Add (o, half) s = Slice (m, four, end, one) y = Sigmoid (s)",
    "times numbers": f"{JOIN} m = Mul (o, each) s = Slice (m, four, end, one) y = Sigmoid (s)",
    "of two scales": f"{JOIN} p = Concat <axis=2> (o, o) s = Slice (p, four, end, one) y = Sigmoid (s)",
    "beside a layer": f"{JOIN} q = MatMul (w5, o) n = ReduceMean <axes=[1]> (q)"
    " s = Slice (o, four, end, one) g = Sigmoid (s) y = Concat <axis=1> (g, n)",
}


def model(body: str, rows: int = 3, columns: int = 8) -> onnx.ModelProto:
    return plans.model(
        f"(float[1,16,8] x) => (float[1,{rows},{columns}] y) {PARTS % body}", WEIGHTS, opset=17
    )


def _sizes(body: str) -> tuple[int, int]:
    return (4 if "ReduceMean" in body else 3), (16 if "axis=2" in body else 8)


def feeds(first: int) -> list[dict[str, np.ndarray]]:
    random = (np.random.default_rng(first + i) for i in range(8))
    return [{"x": one.standard_normal((1, 16, 8), np.float32)} for one in random]


@pytest.mark.parametrize("config", ["A8W8", "U8S8", "XINT8"])
@pytest.mark.parametrize("body", APART_WAYS.values(), ids=APART_WAYS.keys())
def test_small_parts_that_are_taken_apart_keep_their_numbers(body: str, config: str) -> None:
    graph = model_io.load(model(body, *_sizes(body)))
    exact = open_model(copy_graph(graph))
    quantize_graph(graph, preset(config).by_rule(), CalibrationData(feeds(0)))
    made = open_model(graph)
    pairs = [[one.run(feed)["y"].astype(float)[:, :3] for one in (exact, made)] for feed in feeds(50)]
    error = sum(np.square(a - b).sum() for a, b in pairs) / sum(np.square(a).sum() for a, _ in pairs)
    assert -10 * np.log10(error) > 25  # on the scale of the boxes: 15 dB and less


def plan_of(body: str, scheme: str = "A8W8", rows: int = 3) -> QuantizationPlan:
    graph = model_io.load(model(body, rows))
    lift_constants(graph)
    return QuantizationPlan(graph, preset(scheme).by_rule())


def names(plan: QuantizationPlan, large: float, small: float = 1.0) -> set[str]:
    ends = dict.fromkeys(("boxes", "o"), (-large, large)) | {"l": (-small, small)}
    return set(joined_far_apart(plan, ends))


def test_the_ratio_from_which_parts_are_far_apart() -> None:
    plan = plan_of(APART_WAYS["cut"])
    assert names(plan, 1.1 * APART) == {"o", "s"} and not names(plan, 0.9 * APART)
    assert not names(plan, 100, 0), "zeros lose nothing"
    assert not joined_far_apart(plan, {"boxes": (-1000.0, 1000.0)}), "of one part nothing was measured"


def test_more_bits_have_steps_for_both() -> None:
    plan = plan_of(APART_WAYS["cut"], "A16W8")
    assert not names(plan, 2 * APART) and names(plan, 300 * APART)


def test_a_layer_that_reads_the_whole_is_left_in_integers() -> None:
    plan = plan_of(f"{JOIN} y = MatMul (w5, o)", rows=5)
    assert not names(plan, 10 * APART)


def test_mixed_precision_keeps_it_in_every_mix() -> None:
    mixed = MixedModel(model_io.load(model(APART_WAYS["cut"])), preset("A8W8"))
    mixed.measure(CalibrationData(feeds(0)), [{}])
    assert mixed.scheme.tensors == {"o": "float32", "s": "float32"}
