"""Tensors that are made of constants alone. Oracle: NumPy."""

from __future__ import annotations

import numpy as np

from tests.helpers import plans
from transforms.compare.stored_tensors import StoredTensors

GRID = {"s": np.array(0.25, np.float32), "z": np.array(3, np.int8)}
TEXT = """(float[3,2] x) => (float[2,2] y) {
    q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) t = Transpose <perm = [1, 0]> (d)
    y = MatMul(t, x) }"""


def test_roundings_of_a_constant_are_made_in_order() -> None:
    weight = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    found = StoredTensors(plans.graph(TEXT, {"w": weight, **GRID}), ["w", "q", "d", "t", "y"], None)
    assert [name in found for name in ("w", "q", "d", "t", "y")] == [True] * 4 + [False]
    integers = np.rint(weight / 0.25) + 3
    for name, expected in {"w": weight, "q": integers, "t": (integers - 3).T * 0.25}.items():
        np.testing.assert_array_equal(found.load(name), expected.astype(np.float32))
