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
    inputs = {id(tensor) for tensor in graph.inputs}
    found: set[int] = set()
    for shift in graph.nodes:
        mean = _constant(shift, "Sub", "Add")
        scales = (
            [] if mean is None else [user for user, _ in walk.uses(shift.outputs[0]) if _is_far(mean, user)]
        )
        if scales:
            way = walk.way_to(
                walk.computed_inputs(shift),
                lambda tensor: id(tensor) in inputs or walk.is_given(tensor),
                _moves,
            )
            found |= set() if way is None else {id(shift), *map(id, scales), *way}
    return found


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
