"""Numbers beyond the largest float16, 65504, which a constant takes there or an input of the model has.

A price is what a net makes, times 12,000 and plus 180,000: each was 65504. They stay float32 up to the output
of the model, or to where a constant brings them back, as a stored deviation does after a stored mean. Large
constants of masks are none such: the largest float16 does as well there.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import walk
from transforms.graph.constants import magnitude
from transforms.graph.dot_products import bias, is_dot_product
from transforms.graph.masks import NO_FRACTION
from transforms.graph.moved_axis import MOVES
from transforms.graph.rewire import STANDARD_DOMAINS

_LARGEST = 65504.0
_SHIFTS = frozenset({"Add", "Sub"})
_AFFINE = _SHIFTS | {"Mul", "Div"}
_BOUNDS = frozenset({"Relu", "Clip", "Max", "Min", "Neg", "Abs", "Floor", "Ceil", "Round"})
_ROOTS = frozenset({"Log", "Sqrt"})


def large_numbers(graph: gs.Graph) -> set[int]:
    """Return the ids of the nodes of the outermost graph that make such numbers, and of those after them.

    They are steps with constants, and moves. A logarithm of an input of the model is among them with the
    steps before it: models take it where the numbers go over many magnitudes.
    """
    found: set[int] = set()
    for node in graph.nodes:
        if node.domain not in STANDARD_DOMAINS:
            continue
        if node.op == "Log":
            way = walk.way_to(node.inputs, walk.is_source, _is_step)
            found |= set() if way is None else {id(node), *way}
        elif _takes_beyond(node):
            after = _way_back(node, graph)
            before = [] if is_dot_product(node) or not after else node.inputs
            found |= after | walk.makers(before, _is_step).keys()
    return found


def is_beyond(values: np.ndarray) -> bool:
    """Return whether the largest of some numbers is finite and beyond float16."""
    return _LARGEST < magnitude(values) < np.inf


def _constants(node: gs.Node) -> list[np.ndarray]:
    """Return the values of the float32 constants that a node reads, of a layer its bias."""
    given = [bias(node)] if is_dot_product(node) else node.inputs
    return [t.values for t in given if isinstance(t, gs.Constant) and t.dtype == np.float32]


def _takes_beyond(node: gs.Node) -> bool:
    """Return whether a constant of a node that computes with it is beyond float16, and no mask."""
    if node.op not in _AFFINE and not is_dot_product(node):
        return False
    beyond = filter(is_beyond, _constants(node))
    return any(node.op not in _SHIFTS or not _is_mask(values) for values in beyond)


def _is_mask(values: np.ndarray) -> bool:
    """Return whether numbers are 0 and one other, or leave nothing of what they are added to."""
    if magnitude(values) >= NO_FRACTION:
        return True
    others = values[values != 0]
    return others.size < values.size and bool((others == others[0]).all())


def _is_step(node: gs.Node) -> bool:
    """Return whether a node moves numbers, or changes each by constants alone."""
    if node.domain not in STANDARD_DOMAINS:
        return False
    return node.op in MOVES or (node.op in _AFFINE | _BOUNDS and len(walk.computed_inputs(node)) == 1)


def _brings_back(node: gs.Node) -> bool:
    """Return whether numbers are smaller after a node."""
    if node.op == "Mul":
        return any(bool((abs(values) < 1).any()) for values in _constants(node))
    return node.op in _ROOTS or (node.op == "Div" and isinstance(node.inputs[1], gs.Constant))


def _way_back(first: gs.Node, graph: gs.Graph) -> set[int]:
    """Return the ids of the nodes from one to outputs of the model, or to those that bring numbers back."""
    reached, ends, waiting = {id(first)}, list[gs.Tensor](), [first]
    while waiting:
        node = waiting.pop()
        if _brings_back(node) or any(walk.is_output(t, graph) for t in node.outputs):
            ends += node.outputs
        if not _brings_back(node):
            users = (user for tensor in node.outputs for user, _ in walk.uses(tensor))
            new = {id(u): u for u in users if id(u) not in reached and (_is_step(u) or u.op in _ROOTS)}
            reached |= new.keys()
            waiting += new.values()
    return set(walk.makers(ends, lambda node: id(node) in reached))
