"""Equal weights in bodies of If, Loop and Scan become one, in the graph around their users."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.graph.lazy_values import constant

_LEAST = 1 << 10  # bytes


def share_constants(graph: gs.Graph) -> int:
    """Let nodes in several bodies read one constant in place of copies; return how many copies are gone.

    An optimizer that folds what bodies do with a weight from outside leaves a copy in each. Does nothing to
    constants of less than 1 KiB, of another type than float32, to those of the outermost graph, and to
    outputs and inputs.
    """
    walk.check_graph(graph)
    owners, ends = walk.constant_owners(graph), walk.ends(graph)
    alike: dict[Hashable, list[gs.Constant]] = {}
    for tensor in walk.constants(graph):
        is_inner = owners[id(tensor)] is not graph and id(tensor) not in ends
        if is_inner and dtypes.is_type(tensor, dtypes.FLOAT) and tensor._values.nbytes >= _LEAST:
            alike.setdefault(tuple(tensor.shape), []).append(tensor)
    groups = [group for some in alike.values() for group in _equal(some)]
    names = walk.Names(graph) if groups else None
    for first, *others in groups:
        assert names is not None
        shared = constant(names.derive(first.name, "shared"), first._values)  # others may have its old name
        for tensor in (first, *others):
            walk.redirect(tensor, shared)
    return sum(len(group) - 1 for group in groups)


def _equal(constants: list[gs.Constant]) -> list[list[gs.Constant]]:
    """Return those of constants of one shape that are equal, bit for bit, in groups of two and more."""
    groups: list[list[gs.Constant]] = []
    for tensor in constants if len(constants) > 1 else ():
        values = load(tensor)
        group = next((one for one in groups if _is_same(load(one[0]), values)), None)
        if group is None:
            groups.append([tensor])
        else:
            group.append(tensor)
    return [group for group in groups if len(group) > 1]


def _is_same(one: np.ndarray, two: np.ndarray) -> bool:
    return np.array_equal(
        np.ascontiguousarray(one).view(np.uint32), np.ascontiguousarray(two).view(np.uint32)
    )
