"""Rules for tensors whose number of rows depends on numbers, and for layers and control flow around them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.attack.graphs.bodies import graph_of, own_result
from tests.attack.graphs.moves import Rule
from tests.attack.graphs.scope import Rejected, Scope


def _source(s: Scope) -> tuple[str, int]:
    """Return a tensor of some rows, often a layer's, and how many they are."""
    x = s.float(rank=2, dtype=s.case.main)
    if not s.of(x).size:
        raise Rejected("empty")
    return (_layer(s, x) if s.case.chance(0.6) else x), s.of(x).shape[0]


def _layer(s: Scope, x: str, width: int = 0) -> str:
    array = s.of(x)
    shape = [array.shape[-1], width or int(s.case.rng.integers(1, 5))]
    y = s.add("MatMul", [x, s.weight(shape, array.dtype, array.shape[-1] ** -0.5)])
    return str(s.add("Add", [y, s.weight(shape[1:], array.dtype)]) if s.case.chance(0.3) else y)


def _number(s: Scope, value: float, like: str) -> str:
    return s.constant(np.asarray(value, s.of(like).dtype))


def _summed(s: Scope, x: str, axes: list[int], keep: int) -> str:
    if s.case.opset < 13:
        return str(s.add("ReduceSum", [x], axes=axes, keepdims=keep))
    return str(s.add("ReduceSum", [x, s.integers(axes)], keepdims=keep))


def _mask(s: Scope, x: str, rows: int) -> str:
    """Return which rows are chosen: an input, or those whose sum is above a number."""
    if s.case.chance(0.4):
        return s.input(np.asarray(s.case.rng.random(rows) < 0.6))
    total = _summed(s, x, [1], 0)
    return str(s.add("Greater", [total, _number(s, float(np.median(s.of(total))) - 0.01, total)]))


def _chosen(s: Scope, x: str, rows: int) -> str:
    """Return the chosen rows by Compress, or by NonZero and Gather."""
    mask = _mask(s, x, rows)
    if not s.of(mask).any() and not s.case.empty:
        raise Rejected("no row")
    if s.case.chance(0.5):
        return str(s.add("Compress", [x, mask], axis=0))
    at = s.add("NonZero", [mask])
    if s.case.opset >= 12 and s.case.chance(0.5):
        return str(s.add("GatherND", [x, s.add("Transpose", [at], perm=[1, 0])]))
    return str(s.add("Gather", [x, s.add("Reshape", [at, s.integers([-1])])], axis=0))


def _best(s: Scope, x: str, rows: int) -> str:
    """Return the rows of the largest sums, as detectors take so many boxes before they look at them."""
    if s.case.opset < 10:
        raise Rejected("TopK with a number that is fixed")
    count = s.integers([int(s.case.rng.integers(1, rows + 1))])
    _, at = s.add("TopK", [_summed(s, x, [1], 0), count], 2, axis=0)
    return str(s.add("Gather", [x, at], axis=0))


def _boxes(s: Scope, x: str, rows: int) -> str:
    """Return the rows of boxes that NonMaxSuppression keeps, by scores that come from the rows."""
    if s.case.opset < 10 or s.case.main != np.float32:
        raise Rejected("NonMaxSuppression is of float32, from opset 10 on")
    boxes = s.input(np.sort(s.case.rng.random([1, rows, 4]).astype(np.float32)))
    scores = s.add("Reshape", [s.add("Sigmoid", [_layer(s, x, 1)]), s.integers([1, 1, rows])])
    limits = [s.constant(np.asarray([value], np.float32)) for value in (0.5, s.case.one_of((0.3, 0.5)))]
    kept = s.add("NonMaxSuppression", [boxes, scores, s.integers([3]), *limits])
    if not s.of(kept).size and not s.case.empty:
        raise Rejected("no box")
    at = s.add("Gather", [kept, s.constant(np.asarray(2))], axis=1)
    return str(s.add("Gather", [x, at], axis=0))


def layer_on_rows(s: Scope) -> None:
    """A layer on as many rows as the numbers say, and what comes of them: rows, or one for all."""
    x, rows = _source(s)
    y = s.case.one_of((_chosen, _chosen, _best, _boxes))(s, x, rows)
    for _ in range(int(s.case.rng.integers(1, 3))):
        y = _layer(s, y)
    if s.case.chance(0.3):
        y = soft(s, y)
    if s.case.chance(0.4):
        _summed(s, y, [0], 1)


def soft(s: Scope, x: str) -> str:
    return str(s.add("Softmax", [x], axis=1))


def computed_condition(s: Scope) -> None:
    """An If on what was computed, with layers in its branches."""
    if s.depth >= 2:
        raise Rejected("deep enough")
    x, _ = _source(s)
    total = _summed(s, x, [0, 1], 0)
    condition = s.add("Greater", [total, _number(s, s.case.one_of((0, 0.5)), total)])
    width, branches = int(s.case.rng.integers(1, 5)), []
    for _ in range(2):
        inner = Scope(s.case, s)
        y = own_result(inner, _layer(inner, x, width))
        branches.append(graph_of(inner, [], [y], inner.visible()))
    y = s.add("If", [condition], then_branch=branches[0], else_branch=branches[1])
    if s.case.chance(0.5):
        _layer(s, y)


def computed_rounds(s: Scope) -> None:
    """A Loop of as many rounds as a mask has ones, or as rows were chosen, with a layer in its body."""
    case = s.case
    if s.depth >= 2 or case.opset < 11:
        raise Rejected("no such Loop here")
    x, rows = _source(s)
    width = s.of(x).shape[1]
    flags = s.input(np.asarray(case.rng.random(rows) < 0.6))
    rounds = _summed(s, s.add("Cast", [flags], to=7), [0], 0)
    if not s.of(rounds) and not case.empty:
        raise Rejected("no round")
    step, go, state = (case.names.tensor(stem) for stem in ("i", "c", "s"))
    inner = Scope(case, s)
    inner.values |= {step: np.asarray(0), go: np.asarray(True), state: s.of(x)}
    y = inner.add("Tanh", [_layer(inner, state, width)])
    more = inner.add("Identity", [go])
    extra: list[Any] = [_layer(inner, y, 2)] if case.chance(0.4) else []
    body = graph_of(inner, [step, go, state], [more, y, *extra], inner.visible())
    made = s.add("Loop", [rounds, "", x], 1 + len(extra), body=body)
    if case.chance(0.5):
        _layer(s, made[0] if extra else made)


RULES: dict[Rule, float] = {layer_on_rows: 2, computed_condition: 1, computed_rounds: 0.8}
