"""Constants that float16 does not have, where they decide: numbers next to zero, and those above 65504.

The least normal float16 is 2 ** -14 = 6.1e-5, and what is below 2 ** -25 becomes zero: the epsilon that keeps
a divisor or the argument of a logarithm from it. Below the largest number lies many a variance of channels.
Where a large constant is added, compared or chosen, as in masks, the largest float16 does as well.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.constants import magnitude
from transforms.graph.dot_products import is_dot_product
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import STANDARD_DOMAINS
from transforms.plan.large_numbers import is_beyond

_LEAST = 2.0**-14
_FACTORS = frozenset({"Mul", "Div", "Pow", "BatchNormalization"})
"""Operators that multiply with constants, or divide by them."""

_FLOORS = frozenset({"Add", "Max", "Clip"})
"""Operators with which numbers are kept away from zero."""

_ENDS = {"Div": 1, "Log": 0, "Reciprocal": 0, "Pow": 0}
"""Operators for which a number next to zero is not zero, and which input that is."""

_ON_THE_WAY = MOVES | frozenset({"Sqrt", "Abs", "Max", "Clip", "Cast"})


def float16_limits(graph: gs.Graph) -> set[int]:
    """Return the ids of the nodes of a graph and its bodies that have to compute in float32 for a constant.

    With a node that keeps numbers away from zero these are what makes the numbers, unless that is a layer,
    and all from there to the divisor, logarithm or power.
    """
    found: set[int] = set()
    for node in walk.nodes(graph):
        if node.domain not in STANDARD_DOMAINS:
            continue
        constants = [t.values for t in node.inputs if isinstance(t, gs.Constant) and t.dtype == np.float32]
        if node.op in _FACTORS and any(map(_is_unlike, constants)):
            found.add(id(node))
        elif node.op in _FLOORS and any(map(_is_small, constants)):
            ends = _way_to_ends(node)
            if ends:
                found |= ends | {id(node), *map(id, _makers(node))}
    return found


def _is_small(values: np.ndarray) -> bool:
    """Return whether a constant is one number next to zero."""
    return values.size == 1 and 0 < float(values.reshape(())) < _LEAST


def _is_unlike(values: np.ndarray) -> bool:
    """Return whether a constant has numbers above the largest float16, or is one number next to zero."""
    return is_beyond(values) or (values.size == 1 and 0 < magnitude(values) < _LEAST)


def _makers(node: gs.Node) -> list[gs.Node]:
    makers = map(walk.producer, walk.computed_inputs(node))
    return [maker for maker in makers if maker is not None and not is_dot_product(maker)]


def _way_to_ends(node: gs.Node) -> set[int]:
    """Return the ids of the nodes from one to the ends that its outcome reaches; none without such an end."""
    reached, ends, waiting = set[int](), dict[int, gs.Tensor](), [*node.outputs]
    while waiting:
        tensor = waiting.pop()
        for user, index in walk.uses(tensor):
            if user.domain not in STANDARD_DOMAINS or id(user) in reached:
                continue
            if _ENDS.get(user.op) == index:
                ends[id(user)] = tensor
            elif user.op in _ON_THE_WAY:
                reached.add(id(user))
                waiting += user.outputs
    return walk.makers(ends.values(), lambda one: id(one) in reached).keys() | ends.keys()
