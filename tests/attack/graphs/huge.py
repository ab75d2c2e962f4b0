"""Rules for infinities and huge numbers that mean something: masks, biases, bounds, a C without weight."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.attack.graphs.moves import Rule
from tests.attack.graphs.scope import Rejected, Scope


def lowest(s: Scope, dtype: Any) -> float:
    """Return a number that stands for "never" in a type."""
    if np.dtype(dtype) == np.float16:
        return float(s.case.one_of((-np.inf, -np.inf, -65504.0, -30000.0)))
    return float(s.case.one_of((-np.inf, -np.inf, -1e9, -1e9, -65504.0, float(np.finfo(np.float32).min))))


def soft_last(s: Scope, x: str, *, wild: bool = False) -> str:
    """Return a Softmax over the last axis, in any opset."""
    return str(s.add("Softmax", [x], wild=wild, axis=s.of(x).ndim - 1))


def marked(s: Scope, shape: Any) -> NDArray[Any]:
    """Return where a mask is on, nowhere in the first place of the last axis."""
    mask = np.asarray(s.case.rng.random(shape) < 0.4)
    mask[..., 0] = False
    return mask


def biased(s: Scope) -> None:
    """A layer whose bias says that some of its outputs may never come."""
    x = s.float(rank=2, dtype=s.case.main)
    array = s.of(x)
    if not array.size:
        raise Rejected("empty")
    k, n = array.shape[1], int(s.case.rng.integers(2, 6))
    bias = np.asarray(s.case.rng.standard_normal(n) * 0.5, array.dtype)
    bias[1:][marked(s, [n])[1:]] = lowest(s, array.dtype)
    kind = s.case.one_of(("Gemm", "MatMul", "MatMul", "Conv", "Conv"))
    scale = 1 / k**0.5
    if kind == "Gemm":
        weight = s.weight([n, k], array.dtype, scale)
        y = s.add("Gemm", [x, weight, s.constant(bias)], wild=True, transB=1)
    elif kind == "MatMul":
        y = s.add("MatMul", [x, s.weight([k, n], array.dtype, scale)])
        y = s.add("Add", [y, s.constant(bias if s.case.chance(0.5) else bias[None])], wild=True)
    else:
        deep = s.add("Reshape", [x, s.integers([1, array.shape[0], k])])
        deep = s.add("Transpose", [deep], perm=[0, 2, 1])
        weight = s.weight([n, k, 1], array.dtype, scale)
        y = s.add("Conv", [deep, weight, s.constant(bias)], wild=True)
        y = s.add("Transpose", [y], wild=True, perm=[0, 2, 1])
    _use(s, y)


def _use(s: Scope, y: str) -> None:
    """Read a tensor in which some numbers are as low as can be in a way that makes them ordinary ones."""
    kind = s.case.one_of(
        ("softmax", "softmax", "argmax", "max", "relu", "sigmoid", "exp", "clip", "leaf", "leaf")
    )
    array = s.of(y)
    last = array.ndim - 1
    if kind == "softmax":
        soft_last(s, y)
    elif kind == "argmax":
        s.add("ArgMax", [y], axis=last)
    elif kind == "max" and s.case.opset < 18:
        s.add("ReduceMax", [y], axes=[last])
    elif kind == "max":
        s.add("ReduceMax", [y, s.integers([last])])
    elif kind == "clip":
        s.add("Max", [y, s.constant(np.asarray(-3, array.dtype))])
    elif kind != "leaf":
        s.add(kind.capitalize(), [y])


def unused_c(s: Scope) -> None:
    """A Gemm whose beta is 0, so that whatever is in its C counts for nothing."""
    x = s.float(rank=2, dtype=s.case.main)
    array = s.of(x)
    k, n = array.shape[1], int(s.case.rng.integers(1, 5))
    c = np.full([n], lowest(s, array.dtype), array.dtype)
    if s.case.chance(0.5):
        c[0] = 0.3
    weight = s.weight([k, n], array.dtype, 1 / max(k, 1) ** 0.5)
    s.add("Gemm", [x, weight, s.constant(c)], beta=0.0)


def masked(s: Scope) -> None:
    """Scores with a mask of huge numbers added or chosen, a constant or an input, then a Softmax."""
    x = s.float(least=2, dtype=s.case.main)
    array = s.of(x)
    if not array.size:
        raise Rejected("empty")
    if s.case.chance(0.5):
        weight = s.weight([array.shape[-1], int(s.case.rng.integers(2, 6))], array.dtype, 0.6)
        x = s.add("MatMul", [x, weight])
        array = s.of(x)
    shape = array.shape if s.case.chance(0.5) else array.shape[-1:]
    y = mask_of(s, x, marked(s, shape), lowest(s, array.dtype))
    _use(s, y)


def mask_of(s: Scope, x: str, mask: NDArray[Any], value: float) -> str:
    """Return a tensor with a huge number where a mask is on, in one of the ways that exporters know."""
    dtype = s.of(x).dtype
    kind = s.case.one_of(("add", "add", "add input", "where", "where input", "made"))
    if kind.startswith("add"):
        array = np.where(mask, value, 0).astype(dtype)
        return str(
            s.add("Add", [x, s.input(array) if kind.endswith("input") else s.constant(array)], wild=True)
        )
    if s.case.opset < 9:
        raise Rejected("no Where here")
    condition = s.input(mask) if kind.endswith("input") or kind == "made" else s.constant(mask)
    huge = s.constant(np.asarray(value, dtype))
    if kind == "made":
        zero = s.constant(np.asarray(0, dtype))
        return str(s.add("Add", [x, s.add("Where", [condition, huge, zero], wild=True)], wild=True))
    return str(s.add("Where", [condition, huge, x], wild=True))


def bounds(s: Scope) -> None:
    """Bounds that bound nothing, as exporters write where one of two is missing."""
    x = s.float(dtype=s.case.main)
    array = s.of(x)
    far = -lowest(s, array.dtype)
    kind = s.case.one_of(("clip", "clip", "min", "max"))
    if kind != "clip":
        far = far if kind == "min" else -far
        s.add(kind.capitalize(), [x, s.constant(np.asarray(far, array.dtype))])
        return
    ends = s.case.one_of(((-far, 0.5), (0.0, far), (-far, far)))
    if s.case.opset < 11:
        s.add("Clip", [x], min=ends[0], max=ends[1])
    else:
        s.add("Clip", [x, *(s.constant(np.asarray(end, array.dtype)) for end in ends)])


RULES: dict[Rule, float] = {biased: 2.5, unused_c: 1, masked: 2.5, bounds: 1}
