"""Activations that stay in float for what samples show: masks, NaN that the model looks for, and zeros alone.

A mask that an input brings is one number so large that it stands for nothing. What it is added to has no
range that suits the mask and the ordinary numbers beside it. Constants show that before a plan is made
(:mod:`transforms.plan.stand_ins`), an input in samples alone.

NaN, as the mean of no tokens or a row of padding, is replaced before an output sees it. No integer is NaN: a
tensor that is quantized on the way to what looks for it would hand on a number that means nothing.

An input that is zero in all samples, as the states of first steps, has no range, nor has what follows from it
alone: any scale is a guess, and may round to zero all that is fed later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Feed
from transforms.graph import dtypes, walk
from transforms.graph.masks import MASK
from transforms.graph.rewire import onnx_op
from transforms.graph.some_names import some_names
from transforms.plan.quant_spec import ACTIVATION
from transforms.plan.quantization_plan import QuantizationPlan
from transforms.plan.stand_ins import HALF, Bounds, stand_ins

_GUARDS = frozenset({"IsNaN", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
"""Operators whose answer for NaN is not that for the number in its place."""

_LENGTHS = frozenset({"Shape", "Size"})

_NAN = "NaN that the model looks for"


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
    found, without = stand_ins(plan.graph, masks), stand_ins(plan.graph)
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


def without_range(plan: QuantizationPlan, extremes: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names of activations of a plan that have no range for zeros in all samples, inputs first.

    They follow from inputs that are zero alone, or are zero themselves and follow from such an input, or from
    one that was not measured. What is zero of inputs that are not, as behind a Relu, has the range of zeros.
    A format that the scheme names for a tensor is that of it. ``extremes``: the lowest and the highest number
    of tensors in all samples.
    """
    zeros = {name for name, ends in extremes.items() if ends == (0.0, 0.0)}
    if not zeros:
        return []
    inputs = [one for one in plan.graph.inputs if dtypes.is_type(one, dtypes.FLOAT)]
    fed = {id(one) for one in inputs if one.name in zeros}
    alone = _following(plan.graph, fed, all)
    partly = _following(plan.graph, fed | {id(one) for one in inputs if one.name not in extremes}, any)
    found = [
        name
        for name, tensor in _activations(plan).items()
        if name not in plan.scheme.tensors
        if id(tensor) in alone or (id(tensor) in partly and _is_zero(plan.group(tensor), zeros))
    ]
    known = {one.name for one in plan.graph.inputs}
    return sorted(found, key=lambda name: name not in known)


def _is_zero(group: Sequence[gs.Tensor], zeros: Collection[str]) -> bool:
    """Return whether no tensor that shares a range has a number beside zero."""
    return all(not np.any(one.values) if isinstance(one, gs.Constant) else one.name in zeros for one in group)


def _following(graph: gs.Graph, sources: set[int], of: Callable[[Iterable[bool]], bool]) -> set[int]:
    """Return the ids of tensors, sources among them, that nodes make with ``of`` (all, any) of their inputs
    from others of these; lengths follow from nothing.
    """
    found = set(sources)
    for node in graph.nodes:
        read = [one for one in walk.reads(node) if isinstance(one, gs.Variable) and not one.is_empty()]
        if read and node.op not in _LENGTHS and of(id(one) in found for one in read):
            found.update(map(id, node.outputs))
    return found


def exceptions(
    plans: Sequence[QuantizationPlan],
    holding: Collection[str],
    extremes: Mapping[str, tuple[float, float]],
) -> dict[str, list[str]]:
    """Return the names of activations of some plans that stay float for what was measured, by the reason.

    ``holding`` and ``extremes``: as of :func:`guarded_nan` and :func:`without_range`.
    """
    zeros = list(dict.fromkeys(name for plan in plans for name in without_range(plan, extremes)))
    found = {
        _NAN: list(dict.fromkeys(name for plan in plans for name in guarded_nan(plan, holding))),
        _without_range_for(plans[0].graph, zeros, extremes) if zeros else "": zeros,
    }
    return {why: names for why, names in found.items() if names}


def _without_range_for(
    graph: gs.Graph, names: Sequence[str], extremes: Mapping[str, tuple[float, float]]
) -> str:
    """Return in words why some tensors have no range: the inputs of floats that they follow from."""
    tensors = walk.tensors(graph)
    before = set().union(*({id(tensors[name])} | walk.ancestors(tensors[name]) for name in names))
    inputs = [
        str(one.name)
        for one in graph.inputs
        if id(one) in before and dtypes.is_type(one, dtypes.FLOAT)
        if extremes.get(str(one.name), (0.0, 0.0)) == (0.0, 0.0)
    ]
    return (
        f"the zeros in all samples of {some_names(inputs)}, which tell no range "
        "(--sequences, or samples with other numbers, do)"
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
