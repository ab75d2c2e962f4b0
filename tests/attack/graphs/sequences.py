"""Rules for sequences of tensors: single operators, and sequences that live over layers."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.attack.graphs.bodies import graph_of
from tests.attack.graphs.moves import Rule, axis_of
from tests.attack.graphs.scope import Rejected, Scope


def sequence(s: Scope) -> None:
    kept = s.pick(lambda v: isinstance(v, list) and bool(v))
    if kept is None or s.case.chance(0.5):
        x = s.float(least=1)
        array = s.of(x)
        if s.case.chance(0.4):
            sizes = [s.integers(1)] if s.case.chance(0.5) else []
            kept = s.add("SplitToSequence", [x, *sizes], axis=axis_of(s, array.ndim))
        else:
            others = [s.float(array.shape, dtype=array.dtype) for _ in range(int(s.case.rng.integers(0, 3)))]
            kept = s.add("SequenceConstruct", [x, *others])
    items = s.visible()[kept]
    op = s.case.one_of(("At", "At", "Insert", "Erase", "Length", "Concat"))
    at = s.integers(int(s.case.rng.integers(-len(items), len(items))))
    if op == "Insert":
        s.add(
            "SequenceInsert",
            [kept, s.float(items[0].shape, dtype=items[0].dtype), *([at] if s.case.chance(0.5) else [])],
        )
    elif op == "Concat":
        rank = items[0].ndim
        new = s.case.chance(0.4) and len({a.shape for a in items}) == 1
        s.add("ConcatFromSequence", [kept], axis=axis_of(s, rank + new), new_axis=1 if new else None)
    elif op == "Length":
        s.add("SequenceLength", [kept])
    else:
        s.add(f"Sequence{op}", [kept, at])


def over_layers(s: Scope) -> None:
    """A sequence made behind a layer, of its parts or of weights, and read by others."""
    if s.case.opset < 11:
        raise Rejected("no sequences here")
    x = s.float(rank=2, dtype=s.case.main)
    if not s.of(x).size:
        raise Rejected("empty")
    s.case.one_of((_split, _of_weights, _inserted, _collected))(s, x)


def _layer(s: Scope, x: str, width: int) -> str:
    array = s.of(x)
    return str(s.add("MatMul", [x, s.weight([array.shape[-1], width], array.dtype, array.shape[-1] ** -0.5)]))


def _split(s: Scope, x: str) -> None:
    """Parts of a layer's result: one of them in the next layer, the other beside it."""
    width = int(s.case.rng.integers(1, 4))
    parts = s.add(
        "SplitToSequence", [_layer(s, x, 2 * width), s.integers(width)], axis=s.case.one_of((1, -1))
    )
    one, two = (s.add("SequenceAt", [parts, s.integers(i)]) for i in (0, s.case.one_of((1, -1))))
    y = s.add(s.case.one_of(("Mul", "Add")), [_layer(s, one, width), two])
    if s.case.chance(0.6):
        _layer(s, y, width)
    if s.case.chance(0.3):
        s.add("Relu", [s.add("ConcatFromSequence", [parts], axis=-1)])


def _of_weights(s: Scope, x: str) -> None:
    """Weights from a sequence."""
    array = s.of(x)
    shape = [array.shape[1], int(s.case.rng.integers(1, 5))]
    kept = s.add("SequenceConstruct", [s.weight(shape, array.dtype, 0.6) for _ in range(2)])
    chosen = s.add("SequenceAt", [kept, s.integers(int(s.case.rng.integers(0, 2)))])
    _layer(s, s.add("MatMul", [x, chosen]), 3)


def _inserted(s: Scope, x: str) -> None:
    """Results of layers put into an empty sequence one after another, and then side by side."""
    dtype = helper.np_dtype_to_tensor_dtype(s.of(x).dtype)
    kept = s.add("SequenceEmpty", [], dtype=dtype if dtype != 1 or s.case.chance(0.5) else None)
    for _ in range(2):
        x = _layer(s, x, 3)
        kept = s.add("SequenceInsert", [kept, x])
    y = s.add("ConcatFromSequence", [kept], axis=s.case.one_of((1, -1, 0)))
    if s.case.chance(0.7):
        _layer(s, y, 2)


def _collected(s: Scope, x: str) -> None:
    """A Loop that collects results of a layer in a sequence."""
    case = s.case
    if s.depth >= 1 or case.opset < 13:
        raise Rejected("no such Loop here")
    width = s.of(x).shape[1]
    kept = s.add("SequenceConstruct", [x])
    inner = Scope(case, s)
    step, go, held, state = (case.names.tensor(stem) for stem in ("i", "c", "q", "s"))
    inner.values |= {step: np.asarray(0), go: np.asarray(True), held: s.visible()[kept], state: s.of(x)}
    y = inner.add("Tanh", [_layer(inner, state, width)])
    more = inner.add("Identity", [go])
    grown = inner.add("SequenceInsert", [held, y])
    body = graph_of(inner, [step, go, held, state], [more, grown, y], inner.visible())
    parts, _ = s.add("Loop", [s.integers(case.one_of((1, 2, 3))), "", kept, x], 2, body=body)
    _layer(s, s.add("ConcatFromSequence", [parts], axis=0), 2)


RULES: dict[Rule, float] = {sequence: 1.5, over_layers: 1.8}
