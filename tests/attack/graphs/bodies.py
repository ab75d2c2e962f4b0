"""Rules for nodes with bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.attack.graphs.moves import Rule
from tests.attack.graphs.scope import Rejected, Scope
from tests.attack.graphs.single_node import declare

_DEEPEST = 2


def _steps(s: Scope) -> int:
    return int(s.case.rng.integers(1, 5))


def graph_of(
    s: Scope, inputs: Sequence[str], outputs: Sequence[str], values: dict[str, Any]
) -> onnx.GraphProto:
    """Return a scope as a body; ``values`` holds those of its inputs and outputs."""
    return helper.make_graph(
        s.nodes,
        s.case.names.tensor("body"),
        [declare(name, values[name]) for name in inputs],
        [declare(name, values[name]) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in s.initializers.items()],
    )


def own_result(s: Scope, name: str) -> str:
    """Return a tensor that a node of this graph makes: the one given, or its copy."""
    made = {output for node in s.nodes for output in node.output}
    return name if name in made else str(s.add("Identity", [name]))


def _condition(s: Scope) -> str:
    found = s.pick(lambda v: isinstance(v, np.ndarray) and v.dtype == bool and v.shape == ())
    if found is not None and s.case.chance(0.7):
        return found
    value = np.asarray(s.case.chance(0.5))
    return s.constant(value) if s.case.chance(0.25) else s.input(value)


def _float_of(s: Scope, like: Any) -> str:
    """Return a float tensor of a type and shape, made from one that is captured where that goes."""
    found = s.float(like.shape, dtype=like.dtype, fresh=0)
    kind = s.case.one_of(("Relu", "Tanh", "Neg", "Abs", "Identity", "Sigmoid", "Add", "Mul"))
    if kind in ("Add", "Mul"):
        return str(s.add(kind, [found, s.float(like.shape, dtype=like.dtype, fresh=0.3)]))
    return str(s.add(kind, [found]))


def branch(s: Scope) -> None:
    if s.depth >= _DEEPEST:
        raise Rejected("deep enough")
    condition = _condition(s)
    first = Scope(s.case, s)
    s.case.grow(first, _steps(s))
    made = [n for n, v in first.values.items() if isinstance(v, np.ndarray) and v.dtype.kind == "f"]
    count = min(len(made), int(s.case.rng.integers(1, 3)))
    ends = [own_result(first, name) for name in made[len(made) - count :]]
    if not ends:
        raise Rejected("empty branch")
    values = first.visible()
    then = graph_of(first, [], ends, values)
    if s.case.chance(0.15):
        s.add("If", [condition], len(ends), then_branch=then, else_branch=then)
        return
    second = Scope(s.case, s)
    s.case.grow(second, _steps(s) - 1)
    others = [own_result(second, _float_of(second, values[name])) for name in ends]
    if len(set(others)) < len(others):
        raise Rejected("one tensor twice")
    branches = [then, graph_of(second, [], others, second.visible())]
    if s.case.chance(0.5):
        branches.reverse()
    s.add("If", [condition], len(ends), then_branch=branches[0], else_branch=branches[1])


def _body_with(s: Scope, states: Sequence[str], elements: dict[str, Any]) -> tuple[Scope, list[str]]:
    """Return a scope with copies of states and the elements given as inputs, and the names of the states."""
    inner = Scope(s.case, s)
    names = []
    for state in states:
        name = s.case.names.tensor("s")
        inner.values[name] = s.of(state)
        names.append(name)
    inner.values.update(elements)
    return inner, names


def _ends(inner: Scope, states: list[str], scanned: int) -> tuple[list[str], list[str]]:
    """Return the next states and the tensors that are collected, all of which the body itself makes."""
    after = [own_result(inner, _float_of(inner, inner.of(state))) for state in states]
    if states and inner.case.chance(0.15):
        after[0] = own_result(inner, str(inner.add("Identity", [states[0]])))
    own = [
        n for n, v in inner.values.items() if isinstance(v, np.ndarray) and v.dtype.kind == "f" and v.ndim < 5
    ]
    collected = [own_result(inner, inner.case.one_of(own)) for _ in range(scanned if own else 0)]
    unique = list(dict.fromkeys([*after, *collected]))
    if unique[: len(after)] != after:
        raise Rejected("one tensor twice")
    return after, unique[len(after) :]


def loop(s: Scope) -> None:
    if s.depth >= _DEEPEST:
        raise Rejected("deep enough")
    case = s.case
    states = [s.float() for _ in range(int(case.rng.integers(0, 3)))]
    step, go = case.names.tensor("i"), case.names.tensor("c")
    inner, names = _body_with(s, states, {step: np.asarray(0), go: np.asarray(True)})
    case.grow(inner, _steps(s))
    after, collected = _ends(inner, names, int(case.rng.integers(0 if states else 1, 3)))
    ends = case.chance(0.3)
    asked = ("Less", [step, inner.constant(np.asarray(1))]) if ends else ("Identity", [go])
    more = inner.add(*asked)
    body = graph_of(inner, [step, go, *names], [more, *after, *collected], inner.visible())
    counts = (0, 1, 2, 3) if case.empty else (1, 2, 3)
    trips = "" if ends and case.chance(0.3) else s.integers(int(case.one_of(counts)))
    on = s.constant(np.asarray(True)) if case.chance(0.5) else ""
    s.add("Loop", [trips, on, *states], len(after) + len(collected), body=body)


def scan(s: Scope) -> None:
    if s.depth >= _DEEPEST or s.case.opset < 9:
        raise Rejected("no Scan here")
    case = s.case
    x = s.float(least=1)
    axis = int(case.rng.integers(s.of(x).ndim)) if case.chance(0.4) else 0
    if not s.of(x).shape[axis]:
        raise Rejected("nothing to scan")
    states = [s.float() for _ in range(int(case.rng.integers(0, 2)))]
    element = case.names.tensor("e")
    inner, names = _body_with(s, states, {element: np.take(s.of(x), 0, axis)})
    case.grow(inner, _steps(s))
    after, collected = _ends(inner, names, int(case.rng.integers(0 if states else 1, 3)))
    body = graph_of(inner, [*names, element], [*after, *collected], inner.visible())
    attrs: dict[str, Any] = {"scan_input_axes": [axis]} if axis or case.chance(0.2) else {}
    if case.chance(0.4):
        attrs["scan_input_directions"] = [case.one_of((0, 1))]
    if collected and case.chance(0.3):
        attrs["scan_output_directions"] = [case.one_of((0, 1)) for _ in collected]
    s.add("Scan", [*states, x], len(after) + len(collected), num_scan_inputs=1, body=body, **attrs)


RULES: dict[Rule, float] = {branch: 1.5, loop: 1.5, scan: 1.0}
