"""Activations that samples show must stay float: masks, NaN that the model tests for, and zeros.

A mask fed as an input is a sentinel, one number larger than all others. The tensor to which it is added has
no range that suits both mask and ordinary numbers. Constant masks are found before a plan is made
(:mod:`transforms.plan.sentinels`), fed ones only in samples.

NaN, such as the mean of no tokens or of a row of padding, is replaced before it reaches an output. No
integer is NaN: quantized before the test for NaN, it would become a meaningless number.

An input that is zero in all samples, such as initial states, has no range, nor has anything computed from it
alone: any scale is a guess, and may round later inputs to zero.
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
"""Operators whose result for NaN differs from that for a number."""

_LENGTHS = frozenset({"Shape", "Size"})

_PRODUCTS = frozenset({"Mul", "MatMul"})


def fed_masks(graph: gs.Graph, feeds: Iterable[Feed]) -> dict[int, Bounds]:
    """Return the bounds of the masks among the inputs of a graph, by the id of the input.

    A mask holds only zero and one finite number of magnitude 10000 or more, in all feeds.
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
    return {
        id(tensor): bounds for tensor in inputs if (bounds := _bounds(numbers.get(str(tensor.name), set())))
    }


def masked_by(plan: QuantizationPlan, masks: dict[int, Bounds]) -> list[str]:
    """Return the names of activations of a plan that hold fed masks, including the masks."""
    if not masks:
        return []
    with_masks, without = sentinels(plan.graph, masks), sentinels(plan.graph)
    held = (with_masks.bounds.keys() | with_masks.counted) - (without.bounds.keys() | without.counted)
    return [name for name, tensor in _activations(plan).items() if id(tensor) in held]


def guarded_nan(plan: QuantizationPlan, holding: Collection[str]) -> list[str]:
    """Return the names of activations of a plan that hold NaN on the way to a test for NaN.

    ``holding``: the names of tensors that held NaN on samples.
    """
    with_nan = {
        name: tensor
        for name, tensor in (_activations(plan).items() if holding else ())
        if any(member.name in holding for member in plan.group(tensor))
    }
    leads = _leading_to_guards(plan.graph) if with_nan else set()
    return [name for name, tensor in with_nan.items() if id(tensor) in leads]


def zero_inputs(graph: gs.Graph, feeds: Iterable[Feed]) -> list[str]:
    """Return the names of float inputs that are zero in all feeds, and not empty in all."""
    zeros = {str(tensor.name): False for tensor in graph.inputs if dtypes.is_type(tensor, dtypes.FLOAT)}
    for feed in feeds if zeros else ():
        zeros = {name: has or np.size(feed.get(name, ())) > 0 for name, has in zeros.items()}
        zeros = {name: has for name, has in zeros.items() if not np.any(feed.get(name, 0))}
        if not zeros:
            break
    return [name for name, has_numbers in zeros.items() if has_numbers]


def without_range(plan: QuantizationPlan, zeros: Collection[str]) -> list[str]:
    """Return the names of activations of a plan computed only from inputs that are zero in all samples.

    The inputs come first. Products with such a zero are zero as well. A tensor for which the scheme names a
    format has that format.
    """
    zero_tensors = {id(tensor) for tensor in plan.graph.inputs if tensor.name in zeros}
    for node in plan.graph.nodes if zero_tensors else ():
        read = [
            operand
            for operand in walk.reads(node)
            if isinstance(operand, gs.Variable) and not operand.is_empty()
        ]
        of = any if node.op in _PRODUCTS else all
        if read and node.op not in _LENGTHS and of(id(operand) in zero_tensors for operand in read):
            zero_tensors.update(map(id, node.outputs))
    names = [name for name, tensor in _activations(plan).items() if id(tensor) in zero_tensors]
    return sorted((name for name in names if name not in plan.scheme.tensors), key=lambda n: n not in zeros)


def of_zeros(zeros: Sequence[str]) -> str:
    """Return the reason in words why the tensors of :func:`without_range` stay float."""
    return (
        f"zeros alone in samples of {some_names(zeros)}, which tell no range "
        f"({spelled('{sequences}')}, or samples with other numbers, do)"
    )


def kept_in_float(names: Sequence[str], why: str) -> str:
    """Return a note on tensors that stay float."""
    return f"Kept in float for {why}: {some_names(names)}"


def _activations(plan: QuantizationPlan) -> dict[str, gs.Tensor]:
    return {str(site.tensor.name): site.tensor for site in plan.quantizations if site.role == ACTIVATION}


def _few(values: np.ndarray) -> set[float]:
    """Return the distinct numbers of an array, of more than two any three."""
    flat = np.asarray(values).reshape(-1)
    distinct = set[float]()
    while flat.size and len(distinct) < 3 and not any(map(math.isnan, distinct)):
        distinct.add(float(flat[0]))
        flat = flat[flat != flat[0]]
    return distinct


def _bounds(numbers: set[float]) -> Bounds | None:
    nonzero = numbers - {0.0}
    if len(numbers) != 2 or len(nonzero) != 1:
        return None
    (mask,) = nonzero
    if not math.isfinite(mask) or abs(mask) < MASK:
        return None
    return (mask * HALF, np.nan) if mask < 0 else (np.nan, mask * HALF)


def _leading_to_guards(graph: gs.Graph) -> set[int]:
    """Return the ids of the outermost graph's tensors from which a path leads to a guard."""
    leads: set[int] = set()
    for node in reversed(graph.nodes):
        inside: Iterator[gs.Node] = (inner for body in walk.bodies(node) for inner in walk.nodes(body))
        is_guard = any(onnx_op(member) in _GUARDS for member in (node, *inside))
        if is_guard or any(id(tensor) in leads for tensor in node.outputs):
            leads.update(map(id, walk.reads(node)))
    return leads
