"""Equal weights are stored once: those of products, and those in bodies, which move to the outer graph."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.graph.dot_products import is_operand
from transforms.graph.lazy_values import constant
from transforms.graph.rewire import onnx_op

_LEAST = 1 << 10  # bytes


def share_constants(graph: gs.Graph) -> int:
    """Let nodes share one constant instead of equal ones; return how many copies were removed.

    An optimizer that folds operations on a weight in bodies leaves a copy in each; exporters write a matrix
    that layers share several times. Does nothing to constants of less than 1 KiB, of types other than
    float32, to those of the outermost graph with consumers other than MatMul and Gemm, and to outputs and
    inputs.
    """
    walk.check_graph(graph)
    owners, ends = walk.constant_owners(graph), walk.ends(graph)
    alike: dict[Hashable, list[gs.Constant]] = {}
    for tensor in walk.constants(graph):
        is_inner = owners[id(tensor)] is not graph
        is_free = (is_inner or _is_factor(tensor)) and id(tensor) not in ends
        if is_free and dtypes.is_type(tensor, dtypes.FLOAT) and tensor._values.nbytes >= _LEAST:
            alike.setdefault(tuple(tensor.shape), []).append(tensor)
    if not (repeated := [group for group in alike.values() if len(group) > 1]):
        return 0
    groups, names = [group for candidates in repeated for group in _equal(candidates)], walk.Names(graph)
    for first, *copies in groups:
        shared = first
        if any(owners[id(tensor)] is not graph for tensor in (first, *copies)):  # bodies may reuse its name
            shared = constant(names.derive(first.name, "shared"), first._values)
            walk.redirect(first, shared)
        for tensor in copies:
            walk.redirect(tensor, shared)
    return sum(len(group) - 1 for group in groups)


def _equal(constants: list[gs.Constant]) -> list[list[gs.Constant]]:
    """Return groups of two or more bitwise equal constants, among constants of one shape."""
    groups: dict[bytes, list[list[gs.Constant]]] = {}
    for tensor in constants:
        values = load(tensor)
        begun = groups.setdefault(values[:1].tobytes(), [])  # few have the same first numbers
        group = next((candidate for candidate in begun if _is_same(load(candidate[0]), values)), None)
        if group is None:
            begun.append([tensor])
        else:
            group.append(tensor)
    return [group for begun in groups.values() for group in begun if len(group) > 1]


def _is_same(first: np.ndarray, second: np.ndarray) -> bool:
    return np.array_equal(
        np.ascontiguousarray(first).view(np.uint32), np.ascontiguousarray(second).view(np.uint32)
    )


def _is_factor(tensor: gs.Constant) -> bool:
    """Return whether a constant is a matrix whose only consumers, MatMuls and Gemms, multiply by it."""
    uses = walk.uses(tensor) if len(tensor.shape) > 1 else []
    return bool(uses) and all(onnx_op(node) in ("MatMul", "Gemm") and is_operand(node, i) for node, i in uses)
