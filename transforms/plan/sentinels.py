"""Sentinels: infinities, the lowest float, -1e9 and the like, which stand for no number; find them.

A Pad before a MaxPool, a Where before the maximum over tokens, an added mask: no result is meant to hold
such a number. The range of a tensor can ignore it, as it ignores an infinity, if all readers of the tensor
drop it, because it may be clipped at the end of that range. Where a node reads it as a number beside
ordinary ones, no range suits both: nodes that compute with it stay in float
(:mod:`transforms.plan.integer_sites`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.constants import load, magnitude
from transforms.graph.masks import MASK, masks_in
from transforms.graph.rewire import onnx_op
from transforms.plan.exact_arithmetic import without_float_input

Bounds = tuple[float, float]
"""Numbers up to the first and from the second on are sentinels; NaN if there are none on that side."""

LOW, HIGH = 0, 1

_NONE: Bounds = (np.nan, np.nan)
HALF = 0.5  # a mask may be added to numbers of the other sign, and is then a little closer to zero

_MOVES = frozenset(
    {"Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Gather", "GatherElements", "GatherND"}
    | {"DepthToSpace", "SpaceToDepth", "Expand", "Tile", "Identity", "Slice", "Split", "Trilu", "Dropout"}
)
_PLACED = {"Pad": (0, 2), "Where": (1, 2), "ScatterND": (0, 2), "ScatterElements": (0, 2)}
"""Operators that place numbers of one input beside those of another, and these inputs."""

_ADDED = 2
"""The input of a Gemm that is added to the product."""

_LARGEST = {"MaxPool": LOW, "GlobalMaxPool": LOW, "ReduceMax": LOW, "ReduceMin": HIGH}
"""Operators that take the largest or least number, and the side of the numbers that they drop."""

_DROPPED = {"Relu": (LOW,), "Shape": (LOW, HIGH), "Size": (LOW, HIGH)}
"""Operators for which the end of a range, which includes zero, serves as well, and on which side.

Not Softmax, Sigmoid and Clip: at the end of a range they output a number that a mask would not.
"""


@dataclass(frozen=True)
class Sentinels:
    """``bounds``: of sentinels that all consumers of a tensor drop, by the id of the tensor.

    ``counted``: ids of tensors with other sentinels: a node computes with them, or they are an output.
    """

    bounds: dict[int, Bounds] = field(default_factory=dict)
    counted: set[int] = field(default_factory=set)


def sentinels(graph: gs.Graph, fed: Mapping[int, Bounds] | None = None) -> Sentinels:
    """Find the sentinels of the outermost graph, and which of them are dropped.

    They come from constants: the value of a Pad, branches of Where, parts of Concat and Scatter, masks that
    are added or that multiply results of integers alone. Moves and changes of sign carry them. ``fed``: the
    bounds of sentinels fed to the model, by the id of the input.
    """
    bounds_of = _bounds_of_tensors(graph, fed or {})
    if not bounds_of:
        return Sentinels()
    dropped = _dropped(graph, bounds_of)
    result = Sentinels()
    for key, bounds in bounds_of.items():
        are_dropped = [np.isnan(end) or (key, side) in dropped for side, end in enumerate(bounds)]
        if all(are_dropped):
            low, high = np.where(np.isnan(bounds), (-np.inf, np.inf), bounds)
            result.bounds[key] = float(low), float(high)
        else:
            result.counted.add(key)
    return result


def _bounds_of_tensors(graph: gs.Graph, fed: Mapping[int, Bounds]) -> dict[int, Bounds]:
    """Return the bounds of all tensors that hold sentinels, by id."""
    bounds_of = dict(fed)
    discrete = cache(lambda: without_float_input(graph))
    for node in graph.nodes:
        bounds = _output_bounds(node, bounds_of, discrete) if onnx_op(node) else _NONE
        if not np.isnan(bounds).all():
            bounds_of.update((id(tensor), bounds) for tensor in node.outputs)
    return bounds_of


def _output_bounds(node: gs.Node, bounds_of: dict[int, Bounds], discrete: Callable[[], set[int]]) -> Bounds:
    """Return the bounds of a node's outputs; ``discrete`` returns the ids of nodes that read no floats."""

    def _placed(tensor: gs.Tensor, least: float | None = MASK) -> Bounds:
        return _of(tensor, least) if isinstance(tensor, gs.Constant) else bounds_of.get(id(tensor), _NONE)

    def _added(tensor: gs.Tensor) -> Bounds:
        return _placed(tensor, None)

    # operators that move numbers, or place numbers of several inputs side by side
    if node.op in _MOVES:
        return _placed(node.inputs[0]) if node.inputs else _NONE
    if node.op in _PLACED:
        return _together(_placed(node.inputs[i]) for i in _PLACED[node.op] if i < len(node.inputs))
    if node.op == "Concat":
        return _together(map(_placed, node.inputs))
    if node.op == "ConstantOfShape" and isinstance(node.attrs.get("value"), gs.Constant):
        return _of(node.attrs["value"], MASK)
    # operators that take the largest or least number: the sentinels of one side disappear
    if node.op in _LARGEST:
        return _without(bounds_of.get(id(node.inputs[0]), _NONE), _LARGEST[node.op])
    if node.op in ("Max", "Min"):
        inputs = [_placed(tensor) for tensor in node.inputs]
        side = LOW if node.op == "Max" else HIGH
        every = all(not np.isnan(bounds[side]) for bounds in inputs)
        return _together(inputs) if every else _without(_together(inputs), side)
    # arithmetic: adding sentinels makes all results sentinels
    if node.op == "Add":
        return _together(map(_added, node.inputs))
    if node.op == "Gemm" and len(node.inputs) > _ADDED and node.attrs.get("beta", 1.0):
        return bounds_of.get(id(node.inputs[_ADDED]), _NONE)  # constants are parted from it
    if node.op in ("Sub", "Neg"):
        first, *second = map(_added, node.inputs)
        return _turned(first) if node.op == "Neg" else _together([first, *map(_turned, second)])
    return _multiplied(node, bounds_of, discrete) if node.op == "Mul" else _NONE


def _multiplied(node: gs.Node, bounds_of: dict[int, Bounds], discrete: Callable[[], set[int]]) -> Bounds:
    """Return the bounds of a product: of a mask and results of integers, or of numbers and -1."""
    constants = [tensor for tensor in node.inputs if isinstance(tensor, gs.Constant)]
    if len(constants) != 1 or len(node.inputs) != 2:
        return _NONE
    (constant,), (computed,) = constants, walk.computed_inputs(node)
    if id(computed) in bounds_of:
        is_turn = constant.values.size == 1 and constant.values.item() == -1
        return _turned(bounds_of[id(computed)]) if is_turn else _NONE
    masks = _of(constant, MASK)
    return _NONE if np.isnan(masks).all() or id(node) not in discrete() else masks


def _of(tensor: gs.Constant, least: float | None) -> Bounds:
    """Return the bounds of a constant's numbers of magnitude ``least`` or more; if None, of its masks."""
    if not dtypes.is_type(tensor, dtypes.FLOAT):
        return _NONE
    values = load(tensor)
    if magnitude(values) < (MASK if least is None else least):
        return _NONE
    masks = values[masks_in(values) if least is None else np.abs(values) >= least]
    low, high = masks[masks < 0], masks[masks > 0]
    return (
        float(low.max()) * HALF if low.size else np.nan,
        float(high.min()) * HALF if high.size else np.nan,
    )


def _together(each: Iterable[Bounds]) -> Bounds:
    lows, highs = zip(*each, strict=True)
    return float(np.fmax.reduce(lows)), float(np.fmin.reduce(highs))


def _turned(bounds: Bounds) -> Bounds:
    return -bounds[HIGH], -bounds[LOW]


def _without(bounds: Bounds, side: int) -> Bounds:
    return (np.nan, bounds[HIGH]) if side == LOW else (bounds[LOW], np.nan)


def _dropped(graph: gs.Graph, bounds_of: dict[int, Bounds]) -> set[tuple[int, int]]:
    """Return the ids and sides of tensors whose sentinels are dropped by all readers."""
    dropped: set[tuple[int, int]] = set()
    outputs = walk.outputs(graph)
    main = {id(node) for node in graph.nodes}
    for node in reversed(graph.nodes):
        for tensor in node.outputs:
            if id(tensor) not in bounds_of or id(tensor) in outputs:
                continue
            uses = walk.uses(tensor)
            if all(id(user) in main for user, _ in uses):
                dropped |= {
                    (id(tensor), side)
                    for side in (LOW, HIGH)
                    if all(_drops(user, index, side, bounds_of, dropped) for user, index in uses)
                }
    return dropped


def _drops(
    node: gs.Node, index: int, side: int, bounds_of: dict[int, Bounds], dropped: set[tuple[int, int]]
) -> bool:
    """Return whether a node, or all nodes that continue it, drop the numbers on one side of an input.

    False if they meet those of another tensor: the end of one range is an ordinary number in another.
    """
    if not onnx_op(node):
        return False
    if side in _DROPPED.get(node.op, ()) or _LARGEST.get(node.op) == side:
        return True
    if node.op in ("Neg", "Mul"):
        side = 1 - side
    elif node.op in _PLACED:
        partners = [node.inputs[i] for i in _PLACED[node.op] if i != index and i < len(node.inputs)]
        if index not in _PLACED[node.op] or not all(isinstance(tensor, gs.Constant) for tensor in partners):
            return False
    elif node.op not in _MOVES and node.op not in _LARGEST:
        return False
    held = [id(tensor) for tensor in node.outputs if id(tensor) in bounds_of]
    return id(node.outputs[0]) in bounds_of and all((key, side) in dropped for key in held)
