"""Weights stored in rounded form, so that the file shrinks and no run rounds them again."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs

import ops
from transforms.graph import dtypes, walk
from transforms.graph.lazy_values import become_constant, derived
from transforms.graph.rewire import drop
from transforms.graph.selection import Choice, Exclusion, NodeSet, chosen_nodes, resolve
from transforms.plan.rounding_plan import is_downcast, is_neutral, is_upcast


def fold_weights(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Evaluate the downcast of each rounding pair that reads a float32 constant; return how many.

    A bfloat16 constant replaces the Cast or ExtendedQuantizeLinear node, and takes the name of the float32
    constant if no other node reads that. The upcast of the pair stays, and with it every number that
    the model computes. Does nothing to pairs of other types, to quantize nodes with a scale
    other than 1 or a zero point other than 0, to tensors that are computed, if the bfloat16 value is
    itself an output of its graph, and to weights that only nodes in ``exclude``, or none of ``nodes``, read.
    """
    outputs, excluded = walk.outputs(graph), resolve(exclude, graph)
    chosen = None if nodes is None else chosen_nodes(nodes, graph, "nodes")

    def _folds(node: gs.Node) -> bool:
        is_free = _is_foldable(node) and id(node.outputs[0]) not in outputs
        return is_free and not _is_left_alone(node, excluded, chosen)

    return sum(_fold_in(inner, list(filter(_folds, inner.nodes)), outputs) for inner in walk.graphs(graph))


def _is_left_alone(cast: gs.Node, excluded: NodeSet, chosen: NodeSet | None) -> bool:
    """Return whether a downcast, or all layers that read its output, are excluded or not chosen."""
    readers = [
        reader
        for node in cast.outputs[0].outputs
        for reader in (node.outputs[0].outputs if is_upcast(node, dtypes.BFLOAT16) else [node])
    ]
    if cast in excluded or (readers and all(reader in excluded for reader in readers)):
        return True
    return chosen is not None and not any(node in chosen for node in (cast, *readers))


def _fold_in(graph: gs.Graph, foldable: list[gs.Node], outputs: set[int]) -> int:
    pairs = [(node.inputs[0], node.outputs[0]) for node in foldable]
    drop(graph, foldable)
    last = {id(source): target for source, target in pairs}
    for source, target in pairs:
        become_constant(target, derived(source._values, ops.to_bfloat16, ml_dtypes.bfloat16))
        if target is last[id(source)] and not source.outputs and id(source) not in outputs:
            target.name = source.name
            source.values = np.empty(0, ml_dtypes.bfloat16)  # unused: free its memory
    return len(foldable)


def _is_foldable(node: gs.Node) -> bool:
    if not node.inputs or not isinstance(node.inputs[0], gs.Constant):
        return False
    if not is_downcast(node, dtypes.BFLOAT16) or not dtypes.is_type(node.inputs[0], dtypes.FLOAT):
        return False
    return len(node.inputs) == 1 or is_neutral(node.inputs[1], node.inputs[2])
