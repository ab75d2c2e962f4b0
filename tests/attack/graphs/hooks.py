"""What happens to values between nodes: rounded to bfloat16 as a conversion has to, or disturbed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx.numpy_helper import to_array

from tests.attack.graphs.distances import largest
from tests.attack.graphs.interpret import Hook, must_stay_float32
from tests.attack.graphs.scope import HUGE
from transforms.graph import walk
from transforms.lift_constants import lift_constants
from transforms.model_io import load
from transforms.plan.exact_arithmetic import exact_arithmetic

_ROUGH = frozenset({
    "Floor", "Ceil", "Round", "Sign", "ArgMax", "ArgMin", "TopK", "Less", "Greater", "Equal", "LessOrEqual",
    "GreaterOrEqual", "NonZero", "Hardmax", "Unique", "Mod", "NonMaxSuppression", "Shrink", "ThresholdedRelu",
    "MaxUnpool", "Compress", "Not", "And", "Or", "Xor", "MaxRoiPool",
    "MeanVarianceNormalization",
})  # fmt: skip
"""Operators whose result may jump where its input hardly moves; the last divides by what may be 0."""
_COUNTING = frozenset({
    "Cast", "ReduceSum", "Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual", "Not", "And", "Or",
    "Xor", "NonZero", "Identity", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Shape", "Size",
})  # fmt: skip
"""Operators that make of counts, flags and places others, which rounding does not move across zero."""
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)


class Rounded(Hook):
    """float32 values are rounded on the way into a node and out of the model, but in exact arithmetic.

    That is arithmetic on shapes, found here, and on the way to places, integers and comparisons: which nodes
    these are is what :mod:`transforms.plan.exact_arithmetic` says, and has tests of its own.

    ``halves``: inputs and outputs of the model that are float16: the Casts there are nodes like others, but
    behind arithmetic on shapes, of which the Cast is a part.
    """

    def __init__(self, model: onnx.ModelProto, halves: Collection[str] = ()) -> None:
        loaded = load(model)
        lift_constants(loaded)
        exact = exact_arithmetic(loaded)
        self._kept = {_key_of(node) for node in walk.nodes(loaded) if id(node) in exact}
        self._sizes: set[str] = set()
        self._find_kept(model.graph, set(), set())
        self._halves = {*halves} - self._sizes
        self._computed = self._halves | {
            tensor.name
            for node in walk.nodes(loaded)
            if _key_of(node) not in self._kept
            for tensor in node.outputs
        }

    def _find_kept(self, graph: onnx.GraphProto, shapes: set[str], constants: set[str]) -> None:
        constants = constants | {tensor.name for tensor in graph.initializer}
        ends = {value.name for value in graph.output}
        lifted = (node.output[0] for node in graph.node if node.op_type == "Constant")
        constants |= {name for name in lifted if name not in ends}
        hidden = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
        shapes, constants = shapes - hidden, constants - hidden
        for node in graph.node:
            bodies = [a.g for a in node.attribute if a.HasField("g")]
            data = [name for name in node.input if name and name not in constants]
            if node.op_type in ("Shape", "Size") or (data and not bodies and set(data) <= shapes):
                shapes.update(node.output)
                self._sizes.update(node.output)
                self._kept.add(_key(node))
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    self._find_kept(attribute.g, shapes, constants)

    def read(self, node: onnx.NodeProto, index: int, value: Any, constant: bool) -> Any:
        kept = _key(node) in self._kept and node.input[index] not in self._computed
        return value if kept or must_stay_float32(node, index) else _bfloat16(value)

    def output(self, producer: onnx.NodeProto | None, value: Any) -> Any:
        if producer is None:
            return value
        is_exact = _key(producer) in self._kept and self._halves.isdisjoint(producer.output)
        return value if is_exact else _bfloat16(value)


def _key(node: onnx.NodeProto) -> bytes:
    return _named(node.op_type, node.output)


def _key_of(node: gs.Node) -> bytes:
    return _named(node.op, [tensor.name for tensor in node.outputs])


def _named(op_type: str, outputs: Iterable[str]) -> bytes:
    return ("\0".join((op_type, *outputs))).encode()


def _bfloat16(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype != np.float32:
        return value
    return value.astype(ml_dtypes.bfloat16).astype(np.float32)


class Huge(Hook):
    """Values stay as they are; it is seen whether one holds NaN or what stands for infinity."""

    seen = False

    def made(self, value: Any) -> Any:
        self.seen |= not _holds_ordinary(value)
        return value

    def read(self, node: onnx.NodeProto, index: int, value: Any, constant: bool) -> Any:
        return self.made(value)


def _holds_ordinary(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_holds_ordinary, value))
    floats = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return not floats or bool((np.abs(value) <= HUGE).all())


class Noise(Hook):
    """Every float value that is made is disturbed by a part of the largest number in its tensor.

    By ``least`` at least: the step of numbers near 0 in a format of few exponents. Zeros stay, for all
    formats have one, and so do infinities and numbers that stand for one.
    """

    def __init__(self, part: float, seed: int, least: float = 0.0) -> None:
        self._part, self._least, self._rng = part, least, np.random.default_rng(seed)

    def read(self, node: onnx.NodeProto, index: int, value: Any, constant: bool) -> Any:
        passed = node.op_type == "Identity" or must_stay_float32(node, index)  # read again, or fixed
        return value if passed or not constant else self.made(value)

    def output(self, producer: onnx.NodeProto | None, value: Any) -> Any:
        constant = producer is not None and producer.op_type in ("Constant", "Identity")
        return self.made(value) if constant else value

    def made(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.made(item) for item in value]
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or not value.size:
            return value
        size = max(self._part * largest(value), self._least)
        moved = np.asarray(value + size * self._rng.standard_normal(value.shape), value.dtype)
        return np.where((np.abs(value) <= HUGE) & (value != 0), moved, value)


def rough(graph: onnx.GraphProto, outer: Collection[str] = (), counted: Collection[str] = ()) -> set[str]:
    """Return the names of tensors that may jump where an input of the graph hardly moves.

    ``counted``: tensors around the graph that are counts, flags and places, which do not move.
    """
    found, counted = set(outer), {*counted, *_fixed(graph)}
    for node in graph.node:
        bodies = [a.g for a in node.attribute if a.HasField("g")]
        inner = {name for body in bodies for name in rough(body, found, counted)} - found
        deciding = {name for name in node.input[node.op_type == "Compress" :] if name}
        if node.op_type in _COUNTING and deciding and deciding <= counted:
            counted.update(node.output)
        to = next((a.i for a in node.attribute if a.name == "to"), onnx.TensorProto.FLOAT)
        jumps = (node.op_type in _ROUGH or to not in _FLOATS) and not deciding <= counted
        jumps |= bool(inner)
        reads = {*node.input, *(n for body in bodies for one in body.node for n in one.input)}
        jumps |= any(v.name in found for body in bodies for v in body.output)
        if (
            jumps
            or reads & found
            or (node.op_type in ("CastLike", "MaxPool") and len(node.output) > 0 and _indexed(node))
        ):
            found.update(node.output)
    return found


def _fixed(graph: onnx.GraphProto) -> set[str]:
    """Return what a graph is given of integers, of flags, and of zeros, which every format has."""
    tensors = [t for t in graph.initializer if t.data_type not in _FLOATS or not to_array(t).any()]
    kinds = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    return {t.name for t in tensors} | {name for name, kind in kinds.items() if kind not in (0, *_FLOATS)}


def _indexed(node: onnx.NodeProto) -> bool:
    return node.op_type == "CastLike" or len(node.output) > 1
