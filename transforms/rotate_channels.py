"""Rotation of the residual stream of a transformer by an orthogonal matrix that is folded into weights.

Between its layers a transformer has a sum of states (the residual stream), from the embedding to the last
product. A few of its channels are much larger than others, and set the range of the inputs of layers. A
normalization by the root mean square commutes with an orthogonal matrix R: norm(x R) = norm(x) R. So does one
that first subtracts the mean of a row, if R keeps the vector of ones. QuaRot (arXiv 2404.00456, section 4,
stage 1) therefore

* multiplies everything that is added to the sum by R: rows of embeddings, and the results of layers, W R;
* multiplies the weights that read normalized states by R^T and by the scales s of the normalization, which
  become ones: R^T diag(s) W. The biases b of the normalization become biases of these layers, b W.

The model computes the same in real arithmetic, and its states have no outlying channels. A head that shares
the table of the embedding still shares it, after one small product by R^T diag(s) R.
"""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float32Array, Float64Array
from transforms.channels.edits import Edits
from transforms.channels.hadamard import rotated
from transforms.channels.per_channel import PerChannel, inputs_of, is_stored, outputs_of
from transforms.features.language.rotated_states import Affine, NotRotatableError, RotatedStates
from transforms.graph import walk
from transforms.graph.embeddings import tables
from transforms.graph.lazy_values import become_constant, derived
from transforms.graph.rewire import onnx_op
from transforms.graph.selection import Choice, Exclusion, resolve

log = logging.getLogger(__name__)


def rotate_channels(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Rotate the channels of the states of transformers, in place; return how many weights changed.

    Applies to float32 sums of states that begin with rows of an embedding, with or without positions, and are
    normalized before layers, by LayerNormalization, RMSNormalization, SimplifiedLayerNormalization or several
    nodes. The matrix is a Hadamard matrix, combined with a cosine transform if the width is not a power of
    two, with random signs, and keeps the mean of a row. Results are equal up to rounding in float32.

    Does nothing to other models: with a normalization whose result is added to the states, or with states
    that are outputs of the model or have consumers other than such normalizations and products with stored
    matrices; nor if all scales are 1 and biases 0, as after a first run, or if a node whose numbers change is
    in ``exclude`` or not in ``nodes``.
    """
    left, done, count = resolve(exclude, graph, nodes), set[int](), 0
    for table in tables(graph):
        if id(table) in done:
            continue
        try:
            states = RotatedStates(graph, table)
        except NotRotatableError as reason:
            log.debug("states of '%s' are not rotated: %s", table.name, reason)
            continue
        done.update(map(id, states.tables))
        if states.has_scales and not any(node in left for node in states.changed):
            _rotate(Edits(graph, "rotate"), states)
            count += len(states.read) + len(states.written) + len(states.tables)
    return count


def _rotate(edits: Edits, states: RotatedStates) -> None:
    """Fold the matrix into the weights."""
    for node, affine in states.heads:
        _rotate_before(edits, node, affine)
    for node, affine in states.read:
        if _is_copy(node, states):
            _rotate_before(edits, node, affine)
            affine = None
        elif affine is not None and affine.bias is not None:
            _add_bias(edits, states, node, affine.bias)
        edits.change(node, 1, partial(_read_rotated, inputs_of(node), affine))
    for held in states.written:
        edits.change(held.node, held.index, partial(rotated, axis=held.axis))
    for table in states.tables:
        become_constant(table, derived(table._values, partial(rotated, axis=-1), np.float32))
    for held in states.scales:
        edits.change(held.node, held.index, np.ones_like)
    for held in states.biases:
        edits.change(held.node, held.index, np.zeros_like)
    edits.insertions.place(edits.graph)


def _is_copy(node: gs.Node, states: RotatedStates) -> bool:
    """Return whether the weight of a product is the transpose of a table."""
    shape = inputs_of(node).channels, outputs_of(node).channels
    table = next((table for table in states.tables if shape == tuple(table.shape[::-1])), None)
    return table is not None and np.array_equal(_rows(node).T, table.values)


def _rotate_before(edits: Edits, node: gs.Node, affine: Affine | None) -> None:
    """Multiply the input of a head by R^T diag(s) R, so that it can use the rotated table."""
    if affine is None:
        return
    read = node.inputs[0]
    matrix = rotated(rotated(np.diag(affine.scale), 0), 1)
    symmetric = ((matrix + matrix.T) / 2).astype(np.float32)  # by rounding it is not; plans look for that
    weight = gs.Constant(edits.names.derive(node.name or read.name, "rotation"), symmetric)
    new = [edits.node("MatMul", read, weight)]
    if affine.bias is not None:
        bias = gs.Constant(edits.names.derive(weight.name, "bias"), rotated(affine.bias, -1))
        new.append(edits.node("Add", new[0].outputs[0], bias))
    node.inputs[0] = new[-1].outputs[0]
    edits.insert_after(read, new)


def _add_bias(edits: Edits, states: RotatedStates, node: gs.Node, bias: Float64Array) -> None:
    """Add b W to the bias of a product, in the node or in the Add after it, which is inserted if needed."""
    alpha, beta = (float(node.attrs.get(name, 1.0)) for name in ("alpha", "beta"))
    added = alpha * (bias.astype(np.float32) @ _rows(node)).astype(np.float64)
    result = node.outputs[0]
    uses = walk.uses(result)
    places = [(node, 2, beta)] if onnx_op(node) == "Gemm" and beta and len(node.inputs) > 2 else []
    if len(uses) == 1 and id(result) not in edits.ends and onnx_op(uses[0][0]) == "Add":
        places.append((uses[0][0], 1 - uses[0][1], 1.0))
    for user, index, factor in places:
        if is_stored(user.inputs[index], edits.ends) and tuple(user.inputs[index].shape) == (len(added),):
            edits.change(user, index, partial(_sum, added / factor))
            return
    is_written = any(node is held.node for held in states.written)
    values = rotated(added, -1) if is_written else added.astype(np.float32)
    product = edits.variable(result, "product")
    node.outputs[0] = product
    constant = gs.Constant(edits.names.derive(result.name, "bias"), values)
    name = edits.names.derive(result.name, "add")
    edits.insertions.add(edits.graph, node, [gs.Node("Add", name, {}, [product, constant], [result])])


def _rows(node: gs.Node) -> Float32Array:
    """Return the weight of a product with its input channels on the first axis."""
    return inputs_of(node).rows(node.inputs[1].values)


def _read_rotated(weight: PerChannel, affine: Affine | None, values: Float32Array) -> Float32Array:
    """Return R^T diag(s) W, for a weight in the form in which the node stores it."""
    return rotated(values if affine is None else values * weight.laid(affine.scale), weight.axis)


def _sum(added: Float64Array, values: Float32Array) -> Float32Array:
    return (values + added).astype(np.float32)
