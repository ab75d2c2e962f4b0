"""Rules for local functions: attributes with and without defaults, in calls, bodies and other functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper

from tests.attack.graphs.moves import Rule
from tests.attack.graphs.scope import LOCAL, Case, Rejected, Scope
from tests.attack.graphs.single_node import declare


@dataclass(frozen=True)
class _Form:
    """An operator whose attribute a function hands over, and values that keep the shape [2, 3]."""

    op: str
    attribute: str
    values: tuple[Any, ...]
    since: int = 7


_FORMS = (
    _Form("LeakyRelu", "alpha", (0.5, 0.2, -0.3)),
    _Form("Elu", "alpha", (0.4, 1.7)),
    _Form("HardSigmoid", "beta", (0.1, 0.8)),
    _Form("Shrink", "lambd", (0.1, 0.9), 9),
    _Form("Softmax", "axis", (0, 1)),
    _Form("LpNormalization", "axis", (0, 1)),
    _Form("Transpose", "perm", ([0, 1], [1, 0])),
    _Form("Gelu", "approximate", ("none", "tanh"), 20),
    _Form("Constant", "value_float", (0.5, -1.5), 12),
    _Form("Constant", "value_floats", ([0.5], [-1.5]), 12),
    _Form("Constant", "value", (0.7, -0.6), 9),
    _Form("Cast", "to", (AttributeProto.FLOAT, 11), 9),
)
"""Attributes of every type that a function may hand over; 11 is double, which is cast back."""


def call(s: Scope) -> None:
    case = s.case
    if case.ir_version < 8:
        raise Rejected("no functions here")
    known = [f for f in case.functions if f.name.startswith("F")]
    if not known or case.chance(0.6):
        known = [_define(s)]
    function = case.one_of(known)
    inputs = [s.float([2, 3], dtype=case.main) for _ in function.input]
    attrs = {name: _value(case, function, name) for name in function.attribute}
    attrs |= {d.name: _value(case, function, d.name) for d in function.attribute_proto if case.chance(0.4)}
    if function.overload:
        attrs["overload"] = function.overload
    s.add(function.name, inputs, len(function.output), domain=LOCAL, **attrs)


def _value(case: Case, function: onnx.FunctionProto, name: str) -> Any:
    """Return a value for an attribute of a function, by the form that its name ends in."""
    form = _FORMS[int(name.rpartition("_")[2])]
    return _typed(case, form, case.one_of(form.values))


def _typed(case: Case, form: _Form, value: Any) -> Any:
    return numpy_helper.from_array(np.asarray(value, case.main)) if form.attribute == "value" else value


def _define(s: Scope) -> onnx.FunctionProto:
    """Add a function of one or two tensors to the model and return it."""
    case = s.case
    inner = Scope(case, sealed=True)
    names = [case.names.tensor("a") for _ in range(int(case.rng.integers(1, 3)))]
    for name in names:
        inner.values[name] = case.numbers([2, 3], case.main)
    case.grow(inner, int(case.rng.integers(1, 5)))
    if inner.initializers or inner.inputs:
        raise Rejected("a function has no initializers")
    own = {output for node in inner.nodes for output in node.output}
    made = [n for n in inner.values if n in own and isinstance(inner.values[n], np.ndarray)]
    last = made[-1] if made else str(inner.add("Identity", [names[0]]))
    attributes: list[str] = []
    if inner.of(last).dtype == case.main and inner.of(last).shape == (2, 3):
        for _ in range(int(case.rng.integers(0, 3))):
            last = _attributed(inner, last, attributes)
    return _finished(inner, names, last, attributes)


def _attributed(inner: Scope, x: str, attributes: list[str]) -> str:
    """Add a node with an attribute of the function around it: plain, in a branch, or within a function."""
    case = inner.case
    at = int(case.rng.integers(len(_FORMS)))
    form = _FORMS[at]
    if case.opset < form.since or (form.op == "Cast" and case.main != np.float32):
        return x
    y, outside = case.names.tensor(), f"{case.one_of(('k', 'alpha', 'axis'))}_{at}"
    if outside in attributes:
        return x
    kind = case.one_of(("plain", "plain", "branch", "function"))
    if kind == "branch":
        within = case.names.tensor()
        inner.nodes.append(_in_branch(inner, _nodes(case, form, x, within, outside), x, within, y))
    elif kind == "function":
        inner.nodes.append(_in_function(inner, form, x, y, outside))
    else:
        inner.nodes += _nodes(case, form, x, y, outside)
    inner.values[y] = inner.of(x)  # a function does not run: type and shape are what counts
    attributes.append(outside)
    return y


def _nodes(case: Case, form: _Form, x: str, y: str, outside: str) -> list[onnx.NodeProto]:
    """Return nodes that make y of x, with an attribute that is called ``outside`` in the function."""
    made = case.names.tensor() if form.op in ("Constant", "Cast") else y
    node = helper.make_node(form.op, [] if form.op == "Constant" else [x], [made])
    node.attribute.append(_reference(form, outside))
    if form.op == "Constant":
        return [node, helper.make_node("Mul", [x, made], [y])]
    return [node, helper.make_node("Cast", [made], [y], to=1)] if form.op == "Cast" else [node]


def _reference(form: _Form, outside: str, inside: str | None = None) -> AttributeProto:
    value = numpy_helper.from_array(np.zeros(1)) if form.attribute == "value" else form.values[0]
    kind = helper.make_attribute("any", value).type
    return AttributeProto(name=inside or form.attribute, type=kind, ref_attr_name=outside)


def _in_branch(inner: Scope, nodes: list[onnx.NodeProto], x: str, end: str, y: str) -> onnx.NodeProto:
    """Return an If that makes y, in one branch the tensor at the end of some nodes."""
    case = inner.case
    condition = inner.constant(np.asarray(case.chance(0.5)))
    other = case.names.tensor()
    ends = {name: declare(name, inner.of(x)) for name in (end, other)}
    one = helper.make_graph(nodes, case.names.tensor("body"), [], [ends[end]])
    two = helper.make_graph(
        [helper.make_node("Neg", [x], [other])], case.names.tensor("body"), [], [ends[other]]
    )
    return helper.make_node("If", [condition], [y], then_branch=one, else_branch=two)


def _in_function(inner: Scope, form: _Form, x: str, y: str, outside: str) -> onnx.NodeProto:
    """Return a call of a new function with the same attribute, which it may have a default of its own for."""
    case = inner.case
    a, b, inside = (case.names.tensor("a"), case.names.tensor("b"), f"q_{_FORMS.index(form)}")
    nodes = _nodes(case, form, a, b, inside)
    defaults = _defaults(case, [inside]) if case.chance(0.5) else []
    needed = [] if defaults else [inside]
    name = f"G{len(case.functions)}"
    case.functions.append(helper.make_function(LOCAL, name, [a], [b], nodes, case.opsets, needed, defaults))
    node = helper.make_node(name, [x], [y], domain=LOCAL)
    if not defaults or case.chance(0.7):
        node.attribute.append(_reference(form, outside, inside))
    return node


def _defaults(case: Case, names: list[str]) -> list[AttributeProto]:
    forms = [_FORMS[int(name.rpartition("_")[2])] for name in names]
    values = [_typed(case, form, case.one_of(form.values)) for form in forms]
    return [helper.make_attribute(name, value) for name, value in zip(names, values, strict=True)]


def _finished(inner: Scope, names: list[str], last: str, attributes: list[str]) -> onnx.FunctionProto:
    """Add the function of a scope to the model and return it; now and then an overload of one it has."""
    case = inner.case
    with_default = [name for name in attributes if case.chance(0.7)]
    needed = [name for name in attributes if name not in with_default]
    known = [f for f in case.functions if f.name.startswith("F")]
    name, overload = f"F{len(case.functions)}", ""
    if known and case.ir_version >= 10 and case.chance(0.3):
        name, overload = known[-1].name, f"o{len(case.functions)}"
    function = helper.make_function(
        LOCAL, name, names, [last], inner.nodes, case.opsets, needed, _defaults(case, with_default),
        overload=overload,
    )  # fmt: skip
    case.functions.append(function)
    return function


RULES: dict[Rule, float] = {call: 5}
