"""Activations that stay in float for what samples show: masks, NaN that the model looks for, and zeros alone.

A mask that an input brings is a sentinel, one number that is larger than all others. What it is added to has
no range that suits the mask and the ordinary numbers beside it. Constants show that before a plan is made
(:mod:`transforms.plan.sentinels`), an input in samples alone.

NaN, as the mean of no tokens or a row of padding, is replaced before an output sees it. No integer is NaN: a
tensor that is quantized on the way to what looks for it would hand on a number that means nothing.

An input that is zero in all samples, as the states of first steps, has no range, nor has what follows from it
alone: any scale is a guess, and may round to zero all that is fed later.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.files.spelling import spelled
from transforms.graph import dtypes, walk
from transforms.graph.masks import MASK
from transforms.graph.rewire import onnx_op
from transforms.graph.some_names import some_names
from transforms.plan.quant_spec import ACTIVATION
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.sentinels import HALF, Bounds, sentinels

_GUARDS = frozenset({"IsNaN", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
"""Operators whose answer for NaN is not that for the number in its place."""

_LENGTHS = frozenset({"Shape", "Size"})

_PRODUCTS = frozenset({"Mul", "MatMul"})


def fed_masks(graph: gs.Graph, feeds: Iterable[Feed]) -> dict[int, Bounds]:
    """Return the bounds of the masks among the inputs of a graph, by the id of the input.

    A mask holds nothing but zero and one finite number of 10000 or more, in all feeds.
    """
    inputs = [tensor for tensor in graph.inputs if dtypes.is_type(tensor, dtypes.FLOAT)]
    numbers: dict[str, set[float]] = {str(tensor.name): set() for tensor in inputs}
    for feed in feeds if inputs else ():
        for name in [name for name in numbers if name in feed]:
            numbers[name] |= _few(feed[name])
            if len(numbers[name]) > 2:
                del numbers[name]
        if not numbers:
            break
    return {id(one): bounds for one in inputs if (bounds := _bounds(numbers.get(str(one.name), set())))}


def masked_by(plan: QuantizationPlan, masks: dict[int, Bounds]) -> list[str]:
    """Return the names of activations of a plan that hold a mask that is fed, the masks among them."""
    if not masks:
        return []
    found, without = sentinels(plan.graph, masks), sentinels(plan.graph)
    held = (found.bounds.keys() | found.counted) - (without.bounds.keys() | without.counted)
    return [name for name, tensor in _activations(plan).items() if id(tensor) in held]


def guarded_nan(plan: QuantizationPlan, holding: Collection[str]) -> list[str]:
    """Return the names of activations of a plan that hold NaN on the way to what tells it from numbers.

    ``holding``: the names of tensors that held NaN on samples.
    """
    found = {
        name: tensor
        for name, tensor in (_activations(plan).items() if holding else ())
        if any(one.name in holding for one in plan.group(tensor))
    }
    leads = _leading_to_guards(plan.graph) if found else set()
    return [name for name, tensor in found.items() if id(tensor) in leads]


def zero_inputs(graph: gs.Graph, feeds: Iterable[Feed]) -> list[str]:
    """Return the names of the inputs of floats that are zero in all feeds, and not empty in all."""
    zeros = {str(one.name): False for one in graph.inputs if dtypes.is_type(one, dtypes.FLOAT)}
    for feed in feeds if zeros else ():
        zeros = {name: has or np.size(feed.get(name, ())) > 0 for name, has in zeros.items()}
        zeros = {name: has for name, has in zeros.items() if not np.any(feed.get(name, 0))}
        if not zeros:
            break
    return [name for name, has_numbers in zeros.items() if has_numbers]


def without_range(plan: QuantizationPlan, zeros: Collection[str]) -> list[str]:
    """Return the names of activations of a plan that follow from inputs that are zero in all samples alone.

    These come first. What is multiplied by zero alone is zero as well. A format that the scheme names for a
    tensor is that of it.
    """
    found = {id(one) for one in plan.graph.inputs if one.name in zeros}
    for node in plan.graph.nodes if found else ():
        read = [one for one in walk.reads(node) if isinstance(one, gs.Variable) and not one.is_empty()]
        of = any if node.op in _PRODUCTS else all
        if read and node.op not in _LENGTHS and of(id(one) in found for one in read):
            found.update(map(id, node.outputs))
    names = [name for name, tensor in _activations(plan).items() if id(tensor) in found]
    return sorted((name for name in names if name not in plan.scheme.tensors), key=lambda n: n not in zeros)


def of_zeros(zeros: Sequence[str]) -> str:
    """Return in words why what :func:`without_range` finds stays float."""
    return (
        f"zeros alone in samples of {some_names(zeros)}, which tell no range "
        f"({spelled('{sequences}')}, or samples with other numbers, do)"
    )


def kept_in_float(names: Sequence[str], why: str) -> str:
    """Return a note on tensors that stay float."""
    return f"Kept in float for {why}: {some_names(names)}"


def _activations(plan: QuantizationPlan) -> dict[str, gs.Tensor]:
    return {str(one.tensor.name): one.tensor for one in plan.quantizations if one.role == ACTIVATION}


def _few(values: np.ndarray) -> set[float]:
    """Return the numbers of an array, of more than two any three."""
    flat = np.asarray(values).reshape(-1)
    found = set[float]()
    while flat.size and len(found) < 3 and not any(map(math.isnan, found)):
        found.add(float(flat[0]))
        flat = flat[flat != flat[0]]
    return found


def _bounds(numbers: set[float]) -> Bounds | None:
    others = numbers - {0.0}
    if len(numbers) != 2 or len(others) != 1:
        return None
    (mask,) = others
    if not math.isfinite(mask) or abs(mask) < MASK:
        return None
    return (mask * HALF, np.nan) if mask < 0 else (np.nan, mask * HALF)


def _leading_to_guards(graph: gs.Graph) -> set[int]:
    """Return the ids of the tensors of the outermost graph from which a way leads to a guard."""
    leads: set[int] = set()
    for node in reversed(graph.nodes):
        inside: Iterator[gs.Node] = (inner for body in walk.bodies(node) for inner in walk.nodes(body))
        is_guard = any(onnx_op(one) in _GUARDS for one in (node, *inside))
        if is_guard or any(id(tensor) in leads for tensor in node.outputs):
            leads.update(map(id, walk.reads(node)))
    return leads
