"""Channels of the states of a transformer, rotated by an orthogonal matrix that weights take in.

Between its layers a transformer has a sum of states, from the embedding to the last product. A few of its
channels are much larger than others, and set the range of what layers read. A normalization by the root of
the mean square commutes with an orthogonal matrix R: norm(x R) = norm(x) R. So does one that subtracts the
mean of a row first, if R keeps the vector of ones. QuaRot (arXiv 2404.00456, section 4, stage 1) therefore

* multiplies by R whatever writes into the sum: rows of embeddings, and the results of layers, W R;
* multiplies by R^T what layers do with the normalized states, with the scales s of the normalization, whose
  place ones take: R^T diag(s) W. Its biases b become biases of these layers, b W.

What the model computes stays the same in real arithmetic, and has no outlying channels. A head that shares
the table of the embedding keeps sharing it, after one small product by R^T diag(s) R.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float32Array, Float64Array
from transforms.channels.factor_takers import rows_of
from transforms.channels.hadamard import rotated
from transforms.features.language.rotated_states import Affine, NotRotatableError, RotatedStates
from transforms.graph import dtypes, walk
from transforms.graph.embeddings import tables
from transforms.graph.lazy_values import become_constant, constant, derived
from transforms.graph.rewire import Insertions, onnx_op
from transforms.graph.selection import Choice, Exclusion, resolve

log = logging.getLogger(__name__)


def rotate_channels(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Rotate the channels of the states of transformers, in place; return how many weights took that in.

    Takes sums of states that begin with rows of an embedding, with those of positions, in float32, that are
    normalized before layers, as LayerNormalization, RMSNormalization, SimplifiedLayerNormalization or in
    several nodes. The matrix is a Hadamard matrix, beside a cosine transform where the width is not a power
    of two, with random signs, and keeps the mean of a row. Equal up to rounding in float32.

    Does nothing to others: with a normalization whose result is added to the states, with states that are
    outputs of the model, or that anything reads except such normalizations and products with stored matrices;
    nor where all scales are 1 and biases 0, as after a first run, or a node whose numbers change is in
    ``exclude`` or not in ``nodes``.
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
            count += _Rotator(graph, states).rotate()
    return count


class _Rotator:
    def __init__(self, graph: gs.Graph, states: RotatedStates) -> None:
        self._graph, self._states, self._names = graph, states, walk.Names(graph)
        self._outputs = walk.outputs(graph)
        self._fixed = self._outputs | {id(one) for inner in walk.graphs(graph) for one in inner.inputs}
        self._insertions = Insertions()

    def rotate(self) -> int:
        """Let weights take the matrix in; return how many do."""
        states = self._states
        copies = [(node, affine) for node, affine in states.read if self._is_copy(node)]
        layers = [one for one in states.read if not any(one[0] is node for node, _ in copies)]
        for node, affine in [*states.heads, *copies]:
            self._rotate_before(node, affine)
        for node, affine in layers:
            if affine is not None and affine.bias is not None and np.any(affine.bias):
                self._add_bias(node, affine.bias)
            self._change(node, 1, partial(_read_rotated, node, None if affine is None else affine.scale))
        for node, index in states.written:
            self._change(node, index, partial(_written, node, index))
        for table in states.tables:
            become_constant(table, derived(table._values, partial(rotated, axis=-1), np.float32))
        for node, _ in copies:
            self._change(node, 1, partial(_read_rotated, node, None))
        for node, index in states.scales:
            self._change(node, index, np.ones_like)
        for node, index in states.biases:
            self._change(node, index, np.zeros_like)
        self._insertions.place(self._graph)
        return len(states.read) + len(states.written) + len(states.tables)

    def _is_copy(self, node: gs.Node) -> bool:
        """Return whether the weight of a product is the transpose of a table."""
        rows = rows_of(node, np.empty(node.inputs[1].shape, np.bool_))
        for table in self._states.tables:
            if rows.shape == tuple(table.shape[::-1]):
                return np.array_equal(rows_of(node, node.inputs[1].values).T, table.values)
        return False

    def _rotate_before(self, node: gs.Node, affine: Affine | None) -> None:
        """Multiply what a head reads by R^T diag(s) R: it then reads the rotated states of its own table."""
        if affine is None:
            return
        read = node.inputs[0]
        matrix = rotated(rotated(np.diag(affine.scale), 0), 1)
        symmetric = ((matrix + matrix.T) / 2).astype(np.float32)  # by rounding it is not; plans look for that
        weight = gs.Constant(self._names.derive(node.name or read.name, "rotation"), symmetric)
        product = self._node("MatMul", read, weight)
        new = [product]
        if affine.bias is not None and np.any(affine.bias):
            bias = gs.Constant(self._names.derive(weight.name, "bias"), rotated(affine.bias, -1))
            new.append(self._node("Add", product.outputs[0], bias))
        node.inputs[0] = new[-1].outputs[0]
        self._insertions.add(self._graph, walk.producer(read), new)

    def _node(self, op: str, tensor: gs.Tensor, other: gs.Constant) -> gs.Node:
        """Return a new node of a tensor and a constant."""
        result = dtypes.variable(self._names.derive(tensor.name, "rotated"), dtypes.FLOAT, tensor)
        return gs.Node(op, self._names.derive(result.name, op.lower()), {}, [tensor, other], [result])

    def _add_bias(self, node: gs.Node, bias: Float64Array) -> None:
        """Add b W to the bias of a product, in it or in the Add after it, which is put there if need be."""
        alpha, beta = (float(node.attrs.get(name, 1.0)) for name in ("alpha", "beta"))
        added = alpha * (bias.astype(np.float32) @ rows_of(node, node.inputs[1].values)).astype(np.float64)
        is_gemm = onnx_op(node) == "Gemm"
        if is_gemm and beta and len(node.inputs) > 2 and self._is_bias(node.inputs[2], len(added)):
            self._change(node, 2, partial(_sum, added / beta))
            return
        result = node.outputs[0]
        uses = walk.uses(result)
        if len(uses) == 1 and id(result) not in self._outputs and onnx_op(uses[0][0]) == "Add":
            add, index = uses[0]
            if self._is_bias(add.inputs[1 - index], len(added)):
                self._change(add, 1 - index, partial(_sum, added))
                return
        self._add_after(node, added)

    def _add_after(self, node: gs.Node, added: Float64Array) -> None:
        """Add a vector to the result of a product that writes into the states or is read elsewhere."""
        result = node.outputs[0]
        is_written = any(node is other for other, _ in self._states.written)
        values = rotated(added, -1) if is_written else added.astype(np.float32)
        product = dtypes.variable(self._names.derive(result.name, "product"), dtypes.FLOAT, result)
        node.outputs[0] = product
        bias = gs.Constant(self._names.derive(result.name, "bias"), values)
        add = gs.Node("Add", self._names.derive(result.name, "add"), {}, [product, bias], [result])
        self._insertions.add(self._graph, node, [add])

    def _is_bias(self, tensor: gs.Tensor, channels: int) -> bool:
        is_stored = isinstance(tensor, gs.Constant) and id(tensor) not in self._fixed
        return is_stored and dtypes.is_type(tensor, dtypes.FLOAT) and tuple(tensor.shape) == (channels,)

    def _change(self, node: gs.Node, index: int, change: Callable[[Float32Array], Float32Array]) -> None:
        """Give a node a changed constant, of its own if others read that."""
        old = node.inputs[index]
        values = derived(old._values, change, np.float32)
        if walk.is_read_once(old) and id(old) not in self._fixed:
            become_constant(old, values)
        else:
            node.inputs[index] = constant(self._names.derive(old.name, "rotated"), values)


def _read_rotated(node: gs.Node, scale: Float64Array | None, values: Float32Array) -> Float32Array:
    """Return R^T diag(s) W, for a weight in the form in which the node stores it."""
    rows = rows_of(node, values)
    scaled = rows if scale is None else rows * scale[:, None]
    return np.ascontiguousarray(rows_of(node, rotated(scaled, 0)))


def _written(node: gs.Node, index: int, values: Float32Array) -> Float32Array:
    """Return W R, or an added vector times R."""
    is_transposed = index == 1 and node.attrs.get("transB", 0)
    return rotated(values, 0 if is_transposed else -1)


def _sum(added: Float64Array, values: Float32Array) -> Float32Array:
    return (values + added).astype(np.float32)
