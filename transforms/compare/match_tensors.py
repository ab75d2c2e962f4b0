"""Find, for each tensor of a float model, the tensor of a quantized model that replaces it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs

from transforms.compare.node_formats import rounded_format, type_name
from transforms.full_range.recorded_shifts import is_shift, recorded_shifts
from transforms.graph import dot_products, dtypes, walk
from transforms.graph.constants import Constants
from transforms.graph.qdq import BLOCKS, DEQUANTIZE
from transforms.graph.value_limits import rectifier_limits

_FLOATS = frozenset({dtypes.FLOAT, dtypes.FLOAT16, int(onnx.TensorProto.DOUBLE)})
_SUFFIXES = ("bf16", "fp16", "quantized")
"""Suffixes under which our conversions, and ONNX Runtime's quantizer, keep a tensor that was replaced."""


@dataclass(frozen=True)
class Match:
    """A tensor of the float model and its counterpart in the quantized one.

    The tensors named ``original`` and ``rounded`` are compared; ``unrounded`` is the value that the
    quantized model rounds to ``rounded``, None if not accessible; both are ``shift`` below the values they
    represent. ``limits``: of a Relu or Clip that is the only reader of the tensor: values that it clips are
    not compared. ``layer`` and ``op`` are those of the producer, for a weight of the first node that uses it.
    """

    name: str
    layer: str
    op: str
    format: str
    is_weight: bool
    original: str
    rounded: str
    unrounded: str | None
    shift: float = 0.0
    limits: tuple[float, float] | None = None


def match_tensors(float_graph: gs.Graph, quantized_graph: gs.Graph) -> tuple[list[Match], list[str]]:
    """Return the matches in execution order, and the names of the float tensors that have none.

    Considered are the float tensors of the outermost graph: inputs, weights of more than one element, and
    outputs of nodes. A tensor is found by its name, or by the names that conversions derive from it
    (``t_bf16``, ``t_fp16``, ``t_quantized``); from there the rounding is followed: pairs of Casts, Quantize
    and Dequantize (also the extended ones), BFP and MX nodes, a Clip before them. Tensors removed by a
    fusion, and those inside If, Loop and Scan, have no match. Tensors that the quantized model records as
    shifted (:mod:`transforms.full_range.recorded_shifts`) are compared without the shift; biases that
    absorbed shifts are left out, since their layer's output is compared.
    """
    shifts, constants = recorded_shifts(quantized_graph), Constants(float_graph)
    quantized_tensors = {tensor.name: tensor for tensor, _ in _tensors(quantized_graph)}
    matches, missing = [], []
    for tensor, node in _tensors(float_graph):
        if not _is_compared(tensor) or (node is not None and _takes_shift(tensor, node, shifts)):
            continue
        start = _find(tensor.name, quantized_tensors)
        if start is None:
            missing.append(tensor.name)
            continue
        shift = shifts.get(tensor.name, 0.0)
        (unrounded, rounded, format_name), shift = _follow_shifted(start, shift, _is_rectified(tensor))
        matches.append(
            Match(
                name=tensor.name,
                layer=node.name if node is not None else tensor.name,
                op=node.op if node is not None else "input",
                format=format_name,
                is_weight=isinstance(tensor, gs.Constant) or isinstance(start, gs.Constant),
                original=tensor.name,
                rounded=rounded.name,
                unrounded=None if unrounded is None else unrounded.name,
                shift=shift,
                limits=rectifier_limits(tensor.outputs[0], constants) if _is_rectified(tensor) else None,
            )
        )
    return matches, missing


def _tensors(graph: gs.Graph) -> Iterator[tuple[gs.Tensor, gs.Node | None]]:
    """Yield each tensor of the outermost graph once, with its producer or first user, in execution order."""
    seen: set[int] = set()
    for tensor in graph.inputs:
        seen.add(id(tensor))
        yield tensor, None
    for node in graph.nodes:
        weights = [tensor for tensor in node.inputs if isinstance(tensor, gs.Constant)]
        for tensor in (*weights, *node.outputs):
            if id(tensor) not in seen and not tensor.is_empty():
                seen.add(id(tensor))
                yield tensor, node


def _is_compared(tensor: gs.Tensor) -> bool:
    if dtypes.element_type(tensor) not in _FLOATS:
        return False
    return not isinstance(tensor, gs.Constant) or math.prod(tensor.shape) > 1


def _takes_shift(tensor: gs.Tensor, node: gs.Node, shifts: Mapping[str, float]) -> bool:
    """Return whether a tensor is the bias of a layer whose input or output is shifted."""
    if tensor is not dot_products.bias(node):
        return False
    return node.inputs[0].name in shifts or node.outputs[0].name in shifts


def _find(name: str, known: dict[str, gs.Tensor]) -> gs.Tensor | None:
    for candidate in (name, *(f"{name}_{suffix}" for suffix in _SUFFIXES)):
        if candidate in known and dtypes.element_type(known[candidate]) is not None:
            return known[candidate]
    return None


def _follow(start: gs.Tensor) -> tuple[gs.Tensor | None, gs.Tensor, str]:
    """Follow a tensor to its rounding; return the unrounded tensor or None, the rounded one, the format."""
    if rounding := _rounding_after(start):
        return rounding
    stored = dtypes.element_type(start)
    if stored not in (dtypes.FLOAT, int(onnx.TensorProto.DOUBLE)):
        return None, _widened(start) or start, type_name(stored)
    for user in _users_after_clip(start):
        if name := rounded_format(user):
            low = user.outputs[0]
            return start, low if user.op in BLOCKS else _widened(low) or low, name
    return _as_it_is(start)


def _as_it_is(tensor: gs.Tensor) -> tuple[gs.Tensor | None, gs.Tensor, str]:
    return None, tensor, type_name(dtypes.element_type(tensor))


def _follow_shifted(
    start: gs.Tensor, shift: float, is_rectified: bool
) -> tuple[tuple[gs.Tensor | None, gs.Tensor, str], float]:
    """Return the same for a tensor that is shifted unless ``shift`` is 0, and the shift of the result.

    A Sub shifts it unless a layer does. The rounding after a layer is that of the output of its Relu if the
    float model has one there (``is_rectified``).
    """
    producer = walk.producer(start)
    shifted = next((user.outputs[0] for user in start.outputs if is_shift(user)), None) if shift else None
    if shifted is not None:
        return _follow(shifted), shift
    if shift and producer is None:
        return _follow(start), 0.0
    if shift and is_rectified and producer is not None and dot_products.is_dot_product(producer):
        return _as_it_is(start), shift
    return _follow(start), shift


def _is_rectified(tensor: gs.Tensor) -> bool:
    """Return whether the only reader of a tensor is a Relu or Clip."""
    return len(tensor.outputs) == 1 and tensor.outputs[0].op in ("Relu", "Clip")


def _rounding_after(tensor: gs.Tensor) -> tuple[gs.Tensor | None, gs.Tensor, str] | None:
    """Return the same for a tensor that is itself the result of a rounding, as graph outputs are."""
    producer = walk.producer(tensor)
    if producer is None or not producer.inputs:
        return None
    if producer.op not in BLOCKS:
        low = producer.inputs[0]
        stored = dtypes.element_type(low)
        if not _is_widening(producer) or stored == dtypes.FLOAT:
            return None
        producer = walk.producer(low)
        if producer is None or not rounded_format(producer):
            return None, tensor, type_name(stored)
    return producer.inputs[0], tensor, rounded_format(producer)


def _users_after_clip(tensor: gs.Tensor) -> Iterator[gs.Node]:
    for user in tensor.outputs:
        yield user
        if user.op == "Clip":
            yield from user.outputs[0].outputs


def _widened(tensor: gs.Tensor) -> gs.Tensor | None:
    return next((user.outputs[0] for user in tensor.outputs if _is_widening(user)), None)


def _is_widening(node: gs.Node) -> bool:
    if node.op == "Cast":
        return bool(node.attrs.get("to") == dtypes.FLOAT)
    return node.op in DEQUANTIZE
