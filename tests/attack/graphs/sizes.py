"""Rules for tensors that are made from sizes and positions."""

from __future__ import annotations

import math

import numpy as np
from onnx import numpy_helper

from tests.attack.graphs.moves import Rule
from tests.attack.graphs.scope import Scope


def one_hot(s: Scope) -> None:
    indices = s.integers(s.case.rng.integers(0, 4, [s.case.size()]))
    values = s.constant(np.array([0.1, 1.3], s.case.main))
    s.add("OneHot", [indices, s.integers(4), values], axis=s.case.one_of((None, 0, -1)))


def from_shape(s: Scope) -> None:
    """Arithmetic on sizes that ends in a shape, or in numbers that tensors are scaled with."""
    x = s.float(least=1)
    ends = {"start": s.case.one_of((None, 0, 1)), "end": s.case.one_of((None, -1))}
    shape = s.add("Shape", [x], **(ends if s.case.opset >= 15 and s.case.chance(0.4) else {}))
    if s.case.chance(0.5) and s.of(shape).size:
        count = s.add("Gather", [shape, s.constant(np.asarray(0))])
        wide = s.add("Cast", [count], to=1)
        factor = s.add("Sqrt", [s.add("Mul", [wide, s.constant(np.asarray(1.3, np.float32))])])
        s.add("Mul", [s.float(dtype=np.float32), factor])
    elif s.case.chance(0.6):
        value = s.case.one_of((None, numpy_helper.from_array(np.array([0.3], s.case.main))))
        s.add("ConstantOfShape", [shape], value=value)
    elif s.case.chance(0.5):
        s.add("EyeLike", [s.float(rank=2)], k=s.case.one_of((None, 1, -1)))
    else:
        total = s.add("Size", [x])
        s.add("Range", [s.constant(np.asarray(0)), total, s.constant(np.asarray(1))])


def like_shape(s: Scope) -> None:
    """A tensor brought to the shape of another."""
    x = s.float(least=1)
    y = s.float(least=1)
    if math.prod(s.of(x).shape) == math.prod(s.of(y).shape):
        s.add("Reshape", [x, s.add("Shape", [y])])
    else:
        s.add("Expand", [s.float([1]), s.add("Shape", [y])])


RULES: dict[Rule, float] = {one_hot: 0.5, from_shape: 2, like_shape: 1}
