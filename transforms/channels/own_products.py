"""Channels of a tensor that get products of their own, which Adds put to those of the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.channels.edits import Edits
from transforms.channels.per_channel import Channels, PerChannel, outputs_of
from transforms.graph.lazy_values import constant, derived


def add_products(edits: Edits, tensor: gs.Tensor, weights: Sequence[PerChannel], own: Channels) -> None:
    """Let the layers of some weights make what they make of ``own`` channels by another product each."""
    taken = edits.variable(tensor, "own")
    if taken.shape is not None:
        taken.shape = [*taken.shape[:-1], len(own)]
    indices = gs.Constant(edits.names.derive(tensor.name, "own_channels"), own)
    name = edits.names.derive(taken.name, "gather")
    edits.insert_after(tensor, [gs.Node("Gather", name, {"axis": -1}, [tensor, indices], [taken])])
    for weight in weights:
        _add_product(edits, weight, taken, _rows(edits, weight, own))


def _rows(edits: Edits, weight: PerChannel, own: Channels) -> gs.Constant:
    """Return the rows of a weight for some channels, the same for all that read it."""

    def _taken(values: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.ascontiguousarray(weight.rows(values)[own])

    source = weight.constant
    key = id(source), weight.axis, b"own", own.tobytes()
    if key not in edits.moved_weights:
        shape = len(own), outputs_of(weight.node).channels
        rows = derived(source._values, _taken, np.float32, shape)
        edits.moved_weights[key] = source, constant(edits.names.derive(source.name, "own"), rows)
    return edits.moved_weights[key][1]


def _add_product(edits: Edits, weight: PerChannel, taken: gs.Tensor, rows: gs.Constant) -> None:
    """Let an Add make what a layer made, of that and the product of the channels taken."""
    node, result = weight.node, weight.node.outputs[0]
    label = edits.names.derive(node.name or result.name, "own")
    rest, product = edits.variable(result, "rest"), edits.variable(result, "own")
    node.outputs[0] = rest
    name = edits.names.derive(label, "add")
    of_own = gs.Node("MatMul", label, {}, [taken, rows], [product])
    total = gs.Node("Add", name, {}, [rest, product], [result])
    edits.insertions.add(edits.graph, node, [of_own, total])
