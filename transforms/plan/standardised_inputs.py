"""Inputs of a model less a stored mean that is large beside the stored deviation: longitudes of one country.

Numbers around 120, less 119.6 and over 2, keep the rounding of 120, up to 1/4 in bfloat16: an eighth of the
deviation. So the steps from the input to the ratio are exact.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.graph import dtypes, walk
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import STANDARD_DOMAINS

_RATIO = 8
"""Deviations in a mean from which more than three bits of an input cancel. Pixels have two or three."""


def standardised_inputs(graph: gs.Graph) -> set[int]:
    """Return the ids of the shifts and scales of the outermost graph that standardise such inputs, with the
    moves before them.
    """
    found: set[int] = set()
    for shift in graph.nodes:
        mean = _mean(shift)
        if mean is None:
            continue
        scales = [user for user, _ in walk.uses(shift.outputs[0]) if _is_far(mean, user)]
        way = walk.way_to(shift.inputs, walk.is_source, _moves) if scales else None
        if way is not None:
            found |= {id(shift), *map(id, scales), *way}
    return found


def _mean(node: gs.Node) -> NDArray | None:
    """Return what a node takes off a tensor, or adds to it; None for a mask, in which 1 stands for a place.

    1 - mask or mask - 1, times -10000 or the lowest number of all: 0 and 1 are exact in every format, and
    the product is not to be infinite in float16.
    """
    mean = _constant(node, "Sub", "Add")
    is_taken_from = node.op == "Sub" and isinstance(node.inputs[0], gs.Constant)
    return None if mean is None or is_taken_from or bool((abs(mean) == 1).all()) else mean


def _constant(node: gs.Node, *operators: str) -> NDArray | None:
    """Return the numbers of the one constant that a node takes off, adds, divides by or multiplies with."""
    if node.op not in operators or node.domain not in STANDARD_DOMAINS:
        return None
    constants = [t for t in node.inputs if isinstance(t, gs.Constant)]
    if len(constants) != 1 or (node.op == "Div" and constants[0] is not node.inputs[1]):
        return None
    values = constants[0].values
    return values if dtypes.is_type(constants[0], dtypes.FLOAT) and bool(np.isfinite(values).all()) else None


def _is_far(mean: NDArray, scale: gs.Node) -> bool:
    """Return whether a node divides by deviations and one is far below its mean."""
    values = _constant(scale, "Div", "Mul")
    if values is None:
        return False
    means, factors = abs(mean.astype(float)), abs(values.astype(float))
    return bool((means > _RATIO * factors if scale.op == "Div" else means * factors > _RATIO).any())


def _moves(node: gs.Node) -> bool:
    return node.op in MOVES | {"Cast"} and node.domain in STANDARD_DOMAINS
