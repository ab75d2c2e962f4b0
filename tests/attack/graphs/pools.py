"""Rules for pools: all forms, alone and between layers, and on what was padded with "nothing"."""

from __future__ import annotations

import numpy as np

from tests.attack.graphs.axes import pointwise
from tests.attack.graphs.huge import lowest
from tests.attack.graphs.layers import image, window
from tests.attack.graphs.moves import Rule
from tests.attack.graphs.scope import Scope

_DILATED = {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}
"""Opsets from which pools take dilations."""


def pool(s: Scope) -> None:
    x = image(s)
    between = s.case.chance(0.5)
    if between:
        x = pointwise(s, x)
    sizes = s.of(x).shape[2:]
    op = s.case.one_of(("MaxPool", "AveragePool", "AveragePool", "LpPool", "Global"))
    if op == "Global":
        kind = s.case.one_of(("AveragePool", "MaxPool", "LpPool"))
        s.add(f"Global{kind}", [x], p=s.case.one_of((None, 1, 3)) if kind == "LpPool" else None)
        return
    attrs = window(s, sizes, dilate=s.case.opset >= _DILATED[op])
    if s.case.opset >= (18 if op == "LpPool" else 10):
        attrs["ceil_mode"] = s.case.one_of((None, 0, 1, 1))
    if op == "AveragePool":
        attrs["count_include_pad"] = s.case.one_of((None, 0, 1, 1))
    if op == "LpPool":
        attrs["p"] = s.case.one_of((None, 1, 3))
    several = op == "MaxPool" and s.case.opset >= 8 and s.case.chance(0.3)
    if several:
        attrs["storage_order"] = s.case.one_of((None, 0, 1))
    made = s.add(op, [x], 2 if several else 1, **attrs)
    if between:
        pointwise(s, made[0] if several else made)


def padded_pool(s: Scope) -> None:
    """SAME as TensorFlow exports it: a Pad with the lowest number, or one like it, before a MaxPool."""
    x = pointwise(s, image(s))
    if s.case.chance(0.6):
        x = s.add("Relu", [x])
    array = s.of(x)
    dims = array.ndim - 2
    ends = [s.case.rng.integers(0, 2, dims) for _ in range(2)]
    pads = [0, 0, *ends[0], 0, 0, *ends[1]]
    value = lowest(s, array.dtype)
    if s.case.opset < 11:
        y = s.add("Pad", [x], wild=True, pads=[int(p) for p in pads], value=float(value))
    else:
        y = s.add("Pad", [x, s.integers(pads), s.constant(np.asarray(value, array.dtype))], wild=True)
    strides = [int(i) for i in s.case.rng.integers(1, 3, dims)]
    z = s.add("MaxPool", [y], kernel_shape=[2] * dims, strides=strides)
    if s.case.chance(0.7):
        pointwise(s, z)


RULES: dict[Rule, float] = {pool: 3, padded_pool: 1.5}
