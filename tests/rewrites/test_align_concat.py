"""Oracle: which tensors have one range, written down in each test, and scales in the quantized model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers import plans
from tests.helpers.quantization import Given
from transforms.align_concat import align_concat
from transforms.calibrate.calibrate_plan import CalibrationData
from transforms.pipelines.quantize_graph import quantize_graph
from transforms.plan.qparams import QParamsTable
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.run.run_model import open_model
from transforms.scheme import Scheme, preset

SQUARE: plans.Weights = dict.fromkeys("uv", (4, 4)) | {"w": (8, 4), "k": (2, 4)}
CONCAT = """(float[4,4] x) => (float[4,4] y) {
    a = MatMul(x, u) d = MatMul(x, v) j = Concat <axis = 1> (a, d) y = MatMul(j, w) }"""


def plan(text: str = CONCAT, scheme: str | Scheme = "A8W8", **changes: Any) -> QuantizationPlan:
    used = {name: shape for name, shape in SQUARE.items() if f"{name})" in text or f"{name}," in text}
    return plans.plan(text, used, scheme, **changes)


def groups(planned: QuantizationPlan) -> set[frozenset[str]]:
    """Return the names that share a range, where several do."""
    found = {frozenset(t.name for t in planned.group(q.tensor)) for q in planned.quantizations}
    return {names for names in found if len(names) > 1}


def test_inputs_and_output_of_a_concat() -> None:
    planned = plan()
    assert groups(planned) == set()
    assert align_concat(planned) == 1
    assert groups(planned) == {frozenset("adj")}
    assert align_concat(planned) == 0
    assert groups(planned) == {frozenset("adj")}


def test_one_range_is_the_hull_and_one_scale() -> None:
    planned = plan(scheme="U8S8")
    align_concat(planned)
    assert [tensor.name for tensor in planned.measured()] == ["x", "a", "d", "j", "y"]
    ranges = {"x": (-1, 1), "a": (-1, 2), "d": (-4, 1), "j": (-2, 8), "y": (0, 1)}
    parameters = QParamsTable(planned, Given(ranges))
    found = {
        q.tensor.name: parameters.of(q.tensor, q.steps[0])
        for q in planned.quantizations
        if q.role == "activation"
    }
    scale, zero_point = found["a"]
    assert float(scale) == pytest.approx(12 / 255)
    assert int(zero_point) == round(4 / (12 / 255))
    assert found["a"] == found["d"] == found["j"] != found["x"]


def test_concats_of_concats_share_one_range() -> None:
    text = """(float[4,4] x) => (float[4,4] y) {
        a = MatMul(x, u) d = MatMul(x, v) j = Concat <axis = 1> (a, d)
        m = Concat <axis = 0> (j, j) y = MatMul(m, w) }""".replace("float[4,4] y", "float[8,4] y")
    planned = plan(text)
    assert align_concat(planned) == 2
    assert groups(planned) == {frozenset("adjm")}
    assert align_concat(planned) == 0


def test_through_moves_and_with_a_constant_part() -> None:
    text = """(float[4,4] x) => (float[4,6] y) {
        a = MatMul(x, u) t = Transpose(a) j = Concat <axis = 0> (t, k) s = Transpose(j) y = Relu(s) }"""
    planned = plan(text)
    assert align_concat(planned) == 1
    assert groups(planned) == {frozenset("ajk")}
    assert {t.name for t in planned.measured()} == {"x", "a", "j", "y"}


def test_parts_that_are_the_same_already() -> None:
    text = """(float[4,4] x) => (float[4,4] y) {
        a = MatMul(x, u) t = Transpose(a) j = Concat <axis = 1> (a, t) y = MatMul(j, w) }"""
    planned = plan(text)
    assert align_concat(planned) == 1
    assert groups(planned) == {frozenset("aj")}


def test_a_concat_at_the_output_is_left_alone() -> None:
    text = (
        "(float[4,4] x) => (float[4,8] y) { a = MatMul(x, u) d = MatMul(x, v) y = Concat <axis = 1> (a, d) }"
    )
    planned = plan(text)
    assert align_concat(planned) == 0
    assert groups(planned) == set()


@pytest.mark.parametrize("scheme", ("BFP16", "BF16"))
def test_formats_without_ranges_are_left_alone(scheme: str) -> None:
    planned = plan(scheme=scheme)
    assert align_concat(planned) == 0
    assert groups(planned) == set()


def test_a_concat_that_stays_float_is_left_alone() -> None:
    planned = plan(exclude_op_types=["Concat"])
    assert align_concat(planned) == 0
    text = """(float[4,4] x) => (float[4,4] y) {
        a = MatMul(x, u) e = Exp(x) j = Concat <axis = 1> (e, e) y = MatMul(j, w) }"""
    assert align_concat(plan(text)) == 0


def test_a_concat_in_a_body_is_left_alone() -> None:
    text = """(float[4,4] x, bool c) => (float[4,4] y) {
        a = MatMul(x, u) d = MatMul(x, v) e = Relu(a) f = Relu(d) i = MatMul(a, d)
        y = If (c) <then_branch = t () => (float[4,4] p) { j = Concat <axis = 1> (a, d) p = MatMul(j, w) },
                    else_branch = o () => (float[4,4] q) { q = Identity(i) }> }"""
    assert align_concat(plan(text)) == 0


SPLIT = """(float[4,4] x) => (float[4,4] y, float[4,4] z) {
    a = MatMul(x, u) p, q = Split <axis = 1, num_outputs = 2> (a) r = Transpose(q) y = MatMul(p, r)
    z = MatMul(y, v) }"""


def test_a_plan_that_was_made_with_aligned_slices_has_them() -> None:
    planned = plan(SPLIT, align_slice=True)
    assert set(plans.source_names(planned).values()) == {"x", "u", "a", "y", "v", "z"}


LONE, SEEN = "(float[4,4] x) => (float[4,4] y) {", "(float[4,4] x) => (float[4,4] y, float[4,4] d) {"
JOIN = " a = MatMul(x, u) d = MatMul(x, v) j = Concat <axis = 1> (a, d) y = MatMul(j, w) }"
PICK = """(float[4,4] x) => (float[4,4] y) { a = MatMul(x, u) d = MatMul(x, v)
    g = Gather <axis = 1> (d, i) j = Concat <axis = 1> (a, g) y = MatMul(j, w) }"""


@pytest.mark.parametrize(
    ("text", "ranges", "shared"),
    (
        (LONE + JOIN, {"a": (-1, 1), "d": (-0.01, 0.01), "j": (-1, 1)}, True),
        (SEEN + JOIN, {"a": (-1, 1), "d": (-0.01, 0.01), "j": (-1, 1)}, False),
        (SEEN + JOIN, {"a": (-1, 1), "d": (-0.5, 0.75), "j": (-1, 1)}, True),
        (SEEN + JOIN, {"a": (-1, 1), "d": (-0.5, 0.7), "j": (-1, 1)}, False),
        (PICK, {"a": (-1, 1), "d": (-1, 1.4), "g": (-1, 1), "j": (-1, 1)}, True),
        (PICK, {"a": (-1, 1), "d": (-1, 30), "g": (-1, 1), "j": (-1, 1)}, False),
        (LONE + JOIN, {"a": (-1, 1), "j": (-1, 1)}, False),
    ),
)
def test_alike_tensors_share_when_ranges_are_known(
    text: str, ranges: dict[str, tuple[float, float]], shared: bool
) -> None:
    """What others read loses at most half a bit; so does the result, where a part of a tensor is joined."""
    extra = {"i": np.array([0, 1, 2, 3], np.int64)} if text is PICK else {}
    used = {name: shape for name, shape in SQUARE.items() if f"{name})" in text}
    planned = plans.plan(text, {**used, **extra}, "A8W8")
    assert align_concat(planned, alike=True) == 0
    assert groups(planned) == set()
    assert planned.settle(ranges) == shared
    assert groups(planned) == ({frozenset("adj")} if shared else set())
    assert planned.settle({}) == shared  # decided once


def test_a_zero_point_lets_a_range_have_one_side() -> None:
    """Without negative numbers uint8 is half as wide as int8, whose grid is the same on both sides."""
    ranges = {"a": (-1.0, 1.0), "d": (0.0, 1.0), "j": (-1.0, 1.0)}
    for scheme, shared in (("A8W8", 1), ("U8S8", 0)):
        planned = plan(SEEN + JOIN, scheme)
        align_concat(planned, alike=True)
        assert planned.settle(ranges) == shared


def test_a_wide_part_leaves_the_others_fine() -> None:
    """Distances beside features that another layer reads as well, which one scale for both makes coarse."""
    text = """(float[4,4] x, float[4,4] d) => (float[4,4] y, float[4,4] z) {
        a = MatMul(x, u) j = Concat <axis = 1> (a, d) y = MatMul(j, w) z = MatMul(a, v) }"""
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal((4, 4)), "d": 60 * rng.random((4, 4))} for _ in range(4)]
    feeds = [{name: array.astype(np.float32) for name, array in feed.items()} for feed in feeds]
    errors = []
    for aligned in ("auto", True):
        graph = plans.graph(text, {"u": (4, 4), "v": (4, 4), "w": (8, 4)})
        exact = [open_model(graph).run(feed)["z"] for feed in feeds]
        scheme = preset("A8W8").by_rule().with_(align_concat=aligned, move_outliers=False)
        done = quantize_graph(graph, scheme, CalibrationData(feeds))
        assert done.changes["Concats on one scale"] == (aligned is True)
        model = open_model(graph)
        errors.append(sum(np.square(model.run(f)["z"] - z).sum() for f, z in zip(feeds, exact, strict=True)))
    assert errors[0] < errors[1] / 10
