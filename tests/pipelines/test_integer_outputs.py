"""Integers at Concats and at outputs of a model.

Oracle: the places written down in each test, in the notation of :mod:`tests.helpers.plans`.
"""

from __future__ import annotations

import pytest

from tests.helpers import plans
from tests.plan.test_integer_sites import KERNELS, image, places


def test_concat_between_layers_reads_and_makes_integers() -> None:
    text = image(
        "a = conv(x, w) d = conv(x, v) j = Concat <axis = 1> (a, d) y = Conv(j, six)",
        output="float[1,3,8,8] y",
    )
    found = places(text, {**KERNELS, "six": (3, 6, 1, 1)})
    assert found == {"a.0", "a.1", "d.0", "d.1", "j.0", "j.1", "y.0", "y.1", "=y"}


@pytest.mark.parametrize(
    "end",
    (
        "y = Concat <axis = 1> (a, s)",
        "j = Concat <axis = 1> (a, s) y = Transpose(j)",
        "j = Concat <axis = 1> (a, s) r = Reshape(j, to) y = Transpose(r)",
    ),
)
def test_parts_of_a_concat_at_the_output_have_scales_of_their_own(end: str) -> None:
    text = image(
        f"a = conv(x, w) d = conv(x, v) s = Sigmoid(d) {end}",
        output="float[K,L,M,N] y",
        constants="<int64[4] to = {1, 6, 8, 8}>",
    )
    joint = "y" if end.startswith("y") else "j"
    planned = plans.plan(text, KERNELS)
    assert set(plans.reads(planned)) == {"a.0", "a.1", "d.0", "d.1", "s.0", f"{joint}.0", f"{joint}.1"}
    assert len({id(planned.group(q.tensor)) for q in planned.quantizations if q.tensor.name in "as"}) == 2


def test_parts_of_concats_of_concats_at_the_output() -> None:
    """Detectors join boxes and scores for each size of objects, and then the sizes."""
    text = image(
        """a = conv(x, w) s = Sigmoid(a) j = Concat <axis = 1> (a, s) f = Flatten(j)
        d = conv(x, v) t = Sigmoid(d) k = Concat <axis = 1> (d, t) g = Flatten(k)
        m = Concat <axis = 0> (f, g) y = Transpose(m)""",
        output="float[K,L] y",
    )
    layers = {"a.0", "a.1", "d.0", "d.1", "s.0", "t.0"}
    assert places(text) == layers | {"j.0", "j.1", "k.0", "k.1"}


def test_concats_of_concats_between_layers() -> None:
    text = image(
        "a = conv(x, w) j = Concat <axis = 1> (a, a) k = Concat <axis = 2> (j, j) y = Conv(k, six)",
        output="float[1,3,16,8] y",
    )
    found = places(text, {**KERNELS, "six": (3, 6, 1, 1)})
    assert found == {"a.0", "a.1", "j.0", "j.1", "k.0", "k.1", "y.0", "y.1", "=y"}


def test_a_concat_that_a_layer_reads_as_well_as_the_output() -> None:
    text = image(
        "a = conv(x, w) s = Sigmoid(a) j = Concat <axis = 1> (a, s) y = Conv(j, six)",
        output="float[1,6,8,8] j, float[1,3,8,8] y",
    )
    found = places(text, {**KERNELS, "six": (3, 6, 1, 1)})
    assert found == {"a.0", "a.1", "s.0", "j.0", "j.1", "y.0", "y.1", "=y"}


@pytest.mark.parametrize(
    ("end", "wanted"),
    (
        ("y = Relu(a)", {"=y"}),
        ("f = Flatten <axis = 0> (a) y = Transpose(f)", {"f.0", "y.0", "=y"}),
        ("y = Softmax(a)", set()),
        ("e = Exp(a) y = Transpose(e)", set()),
    ),
)
def test_outputs_are_quantized_where_a_layer_makes_them(end: str, wanted: set[str]) -> None:
    text = image(
        f"a = conv(x, w) {end}", output="float[A,B,C,D] y" if "Flatten" not in end else "float[A,B] y"
    )
    assert places(text) == {"a.0", "a.1"} | wanted


def test_an_input_that_is_an_output_is_no_layer_s() -> None:
    assert places(image("y = conv(x, w)", output="float[1,3,8,8] x, float[1,3,8,8] y")) == {
        "y.0",
        "y.1",
        "=y",
    }


def test_an_input_that_a_float_node_reads_too() -> None:
    text = image("e = Exp(x) y = conv(x, w)", output="float[1,3,8,8] y, float[1,3,8,8] e")
    assert places(text) == {"y.0", "y.1", "=y"}


def test_nodes_that_are_not_to_take_integers() -> None:
    text = image("[one] a = conv(x, w) s = Add(a, x) p = Identity(s) y = conv(p, v)")
    everything = {"a.0", "a.1", "s.0", "s.1", "p.0", "y.0", "y.1", "=y"}
    assert places(text) == everything
    assert places(text, exclude_nodes=("one",)) == {"p.0", "y.0", "y.1", "=y"}
    assert places(text, exclude_op_types=("Add",)) == {"a.0", "a.1", "p.0", "y.0", "y.1", "=y"}
    assert places(text, exclude_op_types=("Identity",)) == everything - {"p.0"}
    planned = plans.plan(text, KERNELS, exclude_op_types=("Identity",))
    assert plans.source_names(planned)["p"] == "p"


def test_a_vector_of_halves_or_doubles_is_left_alone() -> None:
    text = """(double[4,4] x) => (double[4,4] y) <double[4,4] w = {1,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4}> {
        t = Transpose(x) a = MatMul(t, w) y = Add(a, x) }"""
    assert places(text, {}) == set()
