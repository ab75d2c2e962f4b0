"""Rules for operators that work number by number, and for constants and casts."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.attack.graphs.scope import Rejected, Scope

ANY = (-np.inf, np.inf)
_UNARY: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "Neg", "Abs", "Identity"), ANY),
    **dict.fromkeys(("Sin", "Cos", "Asinh", "Atan", "Erf", "Mish", "HardSwish", "Dropout"), ANY),
    **dict.fromkeys(("Floor", "Ceil", "Round", "Sign", "Swish"), ANY),
    "Exp": (-9, 4), "Log": (0.05, np.inf), "Sqrt": (0, np.inf), "Reciprocal": (0.1, np.inf),
    "Tan": (-1.2, 1.2), "Asin": (-0.9, 0.9), "Acos": (-0.9, 0.9), "Sinh": (-4, 4), "Cosh": (-4, 4),
    "Acosh": (1.1, np.inf), "Atanh": (-0.9, 0.9),
}  # fmt: skip
"""Operators of one input, and the numbers for which they are finite and no slope is steep."""

_ATTRIBUTES: dict[str, dict[str, tuple[float, float]]] = {
    "LeakyRelu": {"alpha": (0.0, 0.6)},
    "Elu": {"alpha": (0.2, 2)},
    "Celu": {"alpha": (0.2, 2)},
    "Selu": {"alpha": (0.5, 2), "gamma": (0.5, 2)},
    "HardSigmoid": {"alpha": (0.1, 0.5), "beta": (0.2, 0.7)},
    "ThresholdedRelu": {"alpha": (-0.5, 1)},
    "Shrink": {"lambd": (0.1, 0.9), "bias": (-0.3, 0.3)},
    "Swish": {"alpha": (0.5, 2)},
}


def unary(s: Scope) -> None:
    op = s.case.one_of(sorted(_UNARY))
    low, high = _UNARY[op]
    s.add(op, [within(s, s.float(), low, high)])


def activation(s: Scope) -> None:
    op = s.case.one_of(sorted(_ATTRIBUTES))
    ranges = _ATTRIBUTES[op].items()
    attrs = {key: float(s.case.rng.uniform(*ends)) for key, ends in ranges if s.case.chance(0.6)}
    s.add(op, [s.float()], **attrs)


def gelu(s: Scope) -> None:
    s.add("Gelu", [s.float()], approximate=s.case.one_of((None, "none", "tanh")))


def within(s: Scope, name: str, low: float, high: float) -> str:
    """Return a tensor as it is if its numbers are in a range, else one that is brought into it."""
    array = s.of(name)
    if not array.size or (array.min() >= low and array.max() <= high):
        return name
    squashed = s.add("Tanh", [name])
    if np.isinf(high):
        shift = s.constant(np.asarray(low + 1.2, array.dtype))
        return str(s.add("Add", [squashed, shift]))
    scale = s.constant(np.asarray(min(high, -low), array.dtype))
    return str(s.add("Mul", [squashed, scale]))


def partner(s: Scope, name: str) -> str:
    """Return a tensor that broadcasts with another."""
    array = s.of(name)

    def fits(value: Any) -> bool:
        if not isinstance(value, np.ndarray) or value.dtype != array.dtype or value.ndim > 5:
            return False
        pairs = zip(reversed(value.shape), reversed(array.shape), strict=False)
        return all(a == b or 1 in (a, b) for a, b in pairs)

    if s.case.chance(0.5):
        found = s.pick(fits)
        if found is not None:
            return found
    cut = int(s.case.rng.integers(0, array.ndim + 1))
    shape = [1 if s.case.chance(0.25) else size for size in array.shape[cut:]]
    return (
        s.weight(shape, array.dtype)
        if array.dtype.kind == "f"
        else s.constant(s.case.numbers(shape, array.dtype))
    )


def binary(s: Scope) -> None:
    op = s.case.one_of(("Add", "Add", "Sub", "Mul", "Mul", "Div", "Max", "Min", "Pow", "PRelu"))
    a = s.float()
    b = partner(s, a)
    if op == "Div":
        b = within(s, b, 0.3, np.inf)
    if op == "Pow":
        a = within(s, a, 0.1, np.inf)
        b = (
            s.constant(np.asarray(s.case.one_of((0.5, 2.0, 1.5, -1.0)), s.of(a).dtype))
            if s.case.chance(0.6)
            else b
        )
    if op == "PRelu" and np.broadcast_shapes(s.of(a).shape, s.of(b).shape) != s.of(a).shape:
        raise Rejected("the slope has to broadcast to the data")
    if op in ("Add", "Mul", "Max", "Min", "Sub") and s.case.chance(0.5):
        a, b = b, a
    s.add(op, [a, b])


def variadic(s: Scope) -> None:
    op = s.case.one_of(("Sum", "Mean", "Max", "Min"))
    names = [s.float()]
    for _ in range(int(s.case.rng.integers(0, 3))):
        names.append(partner(s, names[0]))
    s.add(op, names)


def clip(s: Scope) -> None:
    x = s.float()
    low, high = sorted(s.case.rng.uniform(-2, 2, 2))
    ends = [low if s.case.chance(0.7) else None, high if s.case.chance(0.7) else None]
    if s.case.opset < 11:
        s.add("Clip", [x], min=ends[0], max=ends[1])
        return
    dtype = s.of(x).dtype
    given = ["" if end is None else s.constant(np.asarray(end, dtype)) for end in ends]
    while given and not given[-1]:
        given.pop()
    s.add("Clip", [x, *given])


def compare(s: Scope) -> None:
    op = s.case.one_of(("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual"))
    a = s.float()
    c = s.add(op, [a, partner(s, a)])
    if s.case.chance(0.7):
        select(s, c)


def select(s: Scope, condition: str | None = None) -> None:
    found = condition or s.pick(lambda v: isinstance(v, np.ndarray) and v.dtype == bool)
    if found is None:
        found = s.input(s.case.numbers([s.case.size()], bool))
    x = s.float(s.of(found).shape) if s.case.chance(0.5) else s.float()
    s.add("Where", [found, x, partner(s, x)])


def logic(s: Scope) -> None:
    op = s.case.one_of(("And", "Or", "Xor", "Not", "IsNaN", "IsInf"))
    if op.startswith("Is"):
        s.add(op, [s.float()])
        return
    found = s.pick(lambda v: isinstance(v, np.ndarray) and v.dtype == bool)
    found = found or s.input(s.case.numbers([s.case.size(), s.case.size()], bool))
    s.add(op, [found] if op == "Not" else [found, partner(s, found)])


def integer(s: Scope) -> None:
    def wanted(value: Any) -> bool:
        return isinstance(value, np.ndarray) and value.dtype.kind in "iu"

    found = s.pick(wanted)
    if found is None or s.case.chance(0.2):
        dtype = s.case.one_of((np.int64, np.int32, np.uint8, np.int8, np.int16))
        found = s.input(s.case.numbers([s.case.size(), s.case.size()], dtype))
    op = s.case.one_of(("Add", "Sub", "Mul", "Mod", "Max", "Abs", "Neg", "BitwiseAnd", "BitShift"))
    if op in ("Abs", "Neg"):
        s.add(op, [found])
    elif op == "BitShift":
        s.add(op, [found, partner(s, found)], direction=s.case.one_of(("LEFT", "RIGHT")))
    else:
        other = partner(s, found)
        if op == "Mod" and not s.of(other).all():
            raise Rejected("Mod by zero")
        s.add(op, [found, other])


def modulo(s: Scope) -> None:
    a = s.float()
    s.add("Mod", [a, within(s, partner(s, a), 0.5, np.inf)], fmod=1)


def cast(s: Scope) -> None:
    types = (TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT64,
             TensorProto.INT32, TensorProto.BOOL, TensorProto.UINT8)  # fmt: skip
    to = s.case.one_of(types)
    x = s.pick(lambda v: isinstance(v, np.ndarray) and v.dtype.kind in "iufb") or s.float()
    if to == TensorProto.UINT8 and s.of(x).dtype.kind == "f":
        x = s.add("Abs", [x])  # from negative numbers it is undefined
    if s.case.opset >= 15 and s.case.chance(0.3):
        like = s.constant(np.zeros(1, helper.tensor_dtype_to_np_dtype(to)))
        s.add("CastLike", [x, like])
    else:
        s.add("Cast", [x], to=to)


def island(s: Scope) -> None:
    """A few nodes in another float type, and back."""
    x = s.float(dtype=s.case.main)
    to = s.case.one_of((TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.FLOAT))
    y = s.add("Cast", [x], to=to)
    for _ in range(int(s.case.rng.integers(1, 3))):
        y = s.add(s.case.one_of(("Tanh", "Sigmoid", "Neg", "Relu")), [y])
        y = s.add(s.case.one_of(("Add", "Mul")), [y, partner(s, y)])
    s.add("Cast", [y], to=helper.np_dtype_to_tensor_dtype(s.case.main))


RULES = {
    unary: 6, activation: 2, gelu: 1, binary: 8, variadic: 1, clip: 2, compare: 1, select: 1, logic: 0.5,
    integer: 1, modulo: 0.3, cast: 1.5, island: 0.7,
}  # fmt: skip
"""Rules and how often each is tried."""
