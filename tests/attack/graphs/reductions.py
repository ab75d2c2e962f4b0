"""Rules for operators along axes: sums, largest numbers, Softmax, sorting."""

from __future__ import annotations

import numpy as np

from tests.attack.graphs.elementwise import within
from tests.attack.graphs.moves import Rule, axis_of, some_axes
from tests.attack.graphs.scope import Scope

_REDUCTIONS = (
    "Sum",
    "Sum",
    "Mean",
    "Mean",
    "Max",
    "Min",
    "Prod",
    "L1",
    "L2",
    "LogSum",
    "LogSumExp",
    "SumSquare",
)


def reduce(s: Scope) -> None:
    kind = s.case.one_of(_REDUCTIONS)
    x = s.float()
    if kind == "LogSum":
        x = within(s, x, 0.3, np.inf)
    array = s.of(x)
    keep = s.case.one_of((None, 0, 1))
    axes = some_axes(s, array.ndim) if s.case.chance(0.8) and array.ndim else None
    since = 13 if kind == "Sum" else 18
    if axes is None:
        none = s.case.opset >= since and s.case.chance(0.3)
        s.add(f"Reduce{kind}", [x], keepdims=keep, noop_with_empty_axes=1 if none else None)
    elif s.case.opset < since:
        s.add(f"Reduce{kind}", [x], keepdims=keep, axes=axes)
    else:
        s.add(f"Reduce{kind}", [x, s.integers(axes)], keepdims=keep)


def soft(s: Scope) -> None:
    op = s.case.one_of(("Softmax", "Softmax", "LogSoftmax", "Hardmax"))
    x = s.float(least=1)
    s.add(op, [x], axis=axis_of(s, s.of(x).ndim) if s.case.chance(0.7) else None)


def largest(s: Scope) -> None:
    x = s.float(least=1)
    axis = axis_of(s, s.of(x).ndim)
    last = s.case.one_of((None, 0, 1)) if s.case.opset >= 12 else None
    op = s.case.one_of(("ArgMax", "ArgMin"))
    s.add(op, [x], axis=axis, keepdims=s.case.one_of((None, 0, 1)), select_last_index=last)


def top(s: Scope) -> None:
    x = s.float(least=1)
    axis = axis_of(s, s.of(x).ndim)
    count = int(s.case.rng.integers(0, s.of(x).shape[axis] + 1))
    if s.case.opset < 10:
        s.add("TopK", [x], 2, axis=axis, k=max(count, 1))
        return
    order = {"largest": s.case.one_of((None, 0, 1))} if s.case.opset >= 11 else {}
    s.add("TopK", [x, s.integers([count])], 2, axis=axis, **order)


def cumulate(s: Scope) -> None:
    x = s.float(least=1)
    at = s.constant(np.asarray(axis_of(s, s.of(x).ndim)))
    flags = {key: s.case.one_of((None, 0, 1)) for key in ("exclusive", "reverse")}
    s.add("CumSum", [x, at], **flags)


def normalize(s: Scope) -> None:
    x = s.float(least=2)
    array = s.of(x)
    axis = axis_of(s, array.ndim)
    if s.case.chance(0.5):
        s.add("LpNormalization", [x], axis=axis, p=s.case.one_of((None, 1, 2)))
    else:
        s.add("MeanVarianceNormalization", [s.float(rank=4)], axes=s.case.one_of((None, [0, 2, 3], [1, 2])))


def layer_norm(s: Scope) -> None:
    x = s.float(least=1)
    array = s.of(x)
    axis = int(s.case.rng.integers(-array.ndim, 0))
    shape = array.shape[axis:]
    weights = [s.weight(shape, array.dtype)]
    epsilon = s.case.one_of((None, 1e-3))
    if s.case.opset >= 23 and s.case.chance(0.4):
        s.add("RMSNormalization", [x, *weights], axis=axis, epsilon=epsilon)
        return
    if s.case.chance(0.6):
        weights.append(s.weight(shape, array.dtype))
    outputs = s.case.one_of((1, 1, 1, 3))
    s.add("LayerNormalization", [x, *weights], outputs, axis=axis, epsilon=epsilon)


RULES: dict[Rule, float] = {
    reduce: 4, soft: 2, largest: 0.7, top: 1, cumulate: 0.7, normalize: 0.7, layer_norm: 1.5,
}  # fmt: skip
