"""Rules for NaN and infinities that a model itself guards against, or cuts off."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.attack.graphs.huge import mask_of, soft_last
from tests.attack.graphs.moves import Rule
from tests.attack.graphs.scope import Rejected, Scope


def _rows(s: Scope, since: int) -> str:
    """Return a tensor of two or more axes, often a layer's, that guards can stand behind."""
    if s.case.opset < since:
        raise Rejected("no such guard here")
    x = s.float(least=2, dtype=s.case.main)
    array = s.of(x)
    if not array.size:
        raise Rejected("empty")
    if s.case.chance(0.6):
        wide = int(s.case.rng.integers(2, 6))
        x = s.add("MatMul", [x, s.weight([array.shape[-1], wide], array.dtype, 1.5 / array.shape[-1] ** 0.5)])
    return x


def _hidden(s: Scope, shape: Any) -> np.ndarray:
    """Return a mask that hides some numbers, and some rows whole."""
    mask = np.asarray(s.case.rng.random(shape) < 0.3)
    mask[np.asarray(s.case.rng.random(shape[:-1]) < 0.4)] = True
    return mask


def _layer(s: Scope, x: str) -> None:
    """Read a guarded tensor in a layer, most of the time."""
    array = s.of(x)
    if array.ndim and s.case.chance(0.7):
        s.add("MatMul", [x, s.weight([array.shape[-1], int(s.case.rng.integers(1, 5))], array.dtype)])


def _zero(s: Scope, like: str) -> str:
    return s.constant(np.asarray(0, s.of(like).dtype))


def _reduced(s: Scope, op: str, x: str, keep: int, *, wild: bool = False) -> str:
    """Return a reduction of the last axis, which is an attribute in older opsets."""
    last = s.of(x).ndim - 1
    if s.case.opset < (13 if op == "ReduceSum" else 18):
        return str(s.add(op, [x], wild=wild, axes=[last], keepdims=keep))
    return str(s.add(op, [x, s.integers([last])], wild=wild, keepdims=keep))


def masked_rows(s: Scope) -> None:
    """A Softmax over rows that are masked whole is NaN, which IsNaN and Where replace, as of torch's SDPA."""
    x = _rows(s, 9)
    p = soft_last(s, mask_of(s, x, _hidden(s, s.of(x).shape), -np.inf), wild=True)
    _layer(s, s.add("Where", [s.add("IsNaN", [p]), _zero(s, p), p]))


def empty_extreme(s: Scope) -> None:
    """The least number of rows of which some have none: infinity, which IsInf and Where replace."""
    x = _rows(s, 10)
    far = s.case.one_of((np.inf, -np.inf))
    y = mask_of(s, x, _hidden(s, s.of(x).shape), far)
    op = "ReduceMin" if far > 0 else "ReduceMax"
    m = _reduced(s, op, y, int(s.case.rng.integers(0, 2)), wild=True)
    signs: dict[str, Any] = s.case.one_of(({}, {"detect_negative": 0} if far > 0 else {"detect_positive": 0}))
    _layer(s, s.add("Where", [s.add("IsInf", [m], **signs), _zero(s, m), m]))


def empty_mean(s: Scope) -> None:
    """The mean of rows of which some have no number: 0 / 0, which a Where on the count replaces."""
    x = _rows(s, 9)
    shown = s.input(~_hidden(s, s.of(x).shape))
    ones = s.add("Cast", [shown], to=_type_of(s, x))
    total = _reduced(s, "ReduceSum", s.add("Mul", [x, ones]), 1)
    count = _reduced(s, "ReduceSum", ones, 1)
    mean = s.add("Div", [total, count], wild=True)
    if s.case.chance(0.5):
        some = s.add("Greater", [count, _zero(s, count)])
        y = s.add("Where", [some, mean, _zero(s, mean)])
    else:
        y = s.add("Where", [s.add("IsNaN", [mean]), _zero(s, mean), mean])
    _layer(s, y)


def _type_of(s: Scope, x: str) -> int:
    return {"float32": 1, "float16": 10, "float64": 11}[str(s.of(x).dtype)]


def cut_off(s: Scope) -> None:
    """Rows of padding that are NaN, and that no output sees: they are cut off, or never gathered."""
    x = _rows(s, 10)
    array = s.of(x)
    rows = array.shape[-2]
    if rows < 2:
        raise Rejected("too few rows")
    left = int(s.case.rng.integers(1, rows))
    mask = np.zeros(array.shape, bool)
    mask[..., left:, :] = True
    p = soft_last(s, mask_of(s, x, mask, -np.inf), wild=True)
    if s.case.chance(0.4):
        weight = s.weight([array.shape[-1], int(s.case.rng.integers(1, 4))], array.dtype)
        p = s.add("MatMul", [p, weight], wild=True)
    axis = array.ndim - 2
    if s.case.chance(0.5):
        ends = [s.integers([0]), s.integers([left]), s.integers([axis])]
        y = s.add("Slice", [p, *ends])
    else:
        y = s.add("Gather", [p, s.integers(range(left))], axis=axis)
    _layer(s, y)


def compared(s: Scope) -> None:
    """A mask of infinities that is found again by comparing with one."""
    x = _rows(s, 11)
    y = mask_of(s, x, _hidden(s, s.of(x).shape), -np.inf)
    far = s.constant(np.asarray(-np.inf, s.of(y).dtype))
    _layer(s, s.add("Where", [s.add("Equal", [y, far]), _zero(s, y), y]))


RULES: dict[Rule, float] = {masked_rows: 2, empty_extreme: 1.2, empty_mean: 1, cut_off: 1, compared: 0.6}
