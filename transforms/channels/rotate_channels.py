"""Channels of the states of a transformer, turned by an orthogonal matrix that weights take in.

Between its layers a transformer has a sum of states, from the embedding to the last product. A few of its
channels are much larger than others, and set the range of what layers read. A normalization by the root of
the mean square commutes with an orthogonal matrix R: norm(x R) = norm(x) R. QuaRot (arXiv 2404.00456, section
4, stage 1) therefore

* multiplies by R whatever writes into the sum: rows of embeddings, and the results of layers, W R;
* multiplies by R^T what layers do with the normalized states, with the scales s of the normalization, whose
  place ones take: R^T diag(s) W.

What the model computes stays the same in real arithmetic, and has no outlying channels. A head that shares
the table of the embedding keeps sharing it, behind one small product by R^T diag(s) R.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float32Array, Float64Array
from transforms.channels.factor_takers import rows_of
from transforms.channels.hadamard import turned
from transforms.channels.turned_states import NotTurnableError, TurnedStates
from transforms.graph import dtypes, walk
from transforms.graph.embeddings import tables
from transforms.graph.lazy_values import become_constant, constant, derived
from transforms.graph.rewire import Insertions
from transforms.graph.selection import Choice, Exclusion, resolve

log = logging.getLogger(__name__)


def rotate_channels(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Turn the channels of the states of transformers, in place; return how many weights took that in.

    Takes sums of states that begin with rows of an embedding, in float32, normalized by the root of the mean
    square, as RMSNormalization, SimplifiedLayerNormalization or in several nodes. The matrix is a Hadamard
    matrix with random signs, beside a cosine transform where the width is no power of two. Equal up to
    rounding in float32.

    Does nothing to others: with a normalization that subtracts a mean, or whose scales apply to what is
    added, with states that are outputs of the model, or that anything reads but such normalizations and
    products with stored matrices; nor where all scales are 1, as after a first run, or a node whose
    numbers change is in ``exclude`` or not in ``nodes``.
    """
    left, done, count = resolve(exclude, graph, nodes), set[int](), 0
    for table in tables(graph):
        if id(table) in done:
            continue
        try:
            states = TurnedStates(graph, table)
        except NotTurnableError as reason:
            log.debug("states of '%s' are not turned: %s", table.name, reason)
            continue
        done.update(map(id, states.tables))
        if states.has_scales and not any(node in left for node in states.changed):
            count += _Turner(graph).turn(states)
    return count


class _Turner:
    def __init__(self, graph: gs.Graph) -> None:
        self._graph, self._names = graph, walk.Names(graph)
        self._fixed = walk.outputs(graph) | {id(one) for inner in walk.graphs(graph) for one in inner.inputs}
        self._insertions = Insertions()

    def turn(self, states: TurnedStates) -> int:
        """Let weights take the matrix in; return how many do."""
        copies = [(node, scale) for node, scale in states.read if self._is_copy(node, states.tables)]
        for node, scale in [*states.heads, *copies]:
            self._turn_before(node, scale)
        for node, scale in states.read:
            if not any(node is other for other, _ in copies):
                self._change(node, 1, partial(_read_turned, node, scale))
        for node, index in states.written:
            self._change(node, index, partial(_written, node, index))
        for table in states.tables:
            become_constant(table, derived(table._values, partial(turned, axis=-1), np.float32))
        for node, _ in copies:
            self._change(node, 1, partial(_read_turned, node, None))
        for node, index in states.ones:
            self._change(node, index, np.ones_like)
        self._insertions.place(self._graph)
        return len(states.read) + len(states.written) + len(states.tables)

    def _is_copy(self, node: gs.Node, tables: list[gs.Constant]) -> bool:
        """Return whether the weight of a product is the transpose of a table."""
        rows = rows_of(node, np.empty(node.inputs[1].shape, np.bool_))
        for table in tables:
            if rows.shape == tuple(table.shape[::-1]):
                return np.array_equal(rows_of(node, node.inputs[1].values).T, table.values)
        return False

    def _turn_before(self, node: gs.Node, scale: Float64Array | None) -> None:
        """Multiply what a head reads by R^T diag(s) R: it then reads the turned states of its own table."""
        if scale is None:
            return
        read = node.inputs[0]
        matrix = turned(turned(np.diag(scale), 0), 1)
        weight = gs.Constant(self._names.derive(node.name or read.name, "turn"), matrix)
        made = dtypes.variable(self._names.derive(read.name, "turned"), dtypes.FLOAT, read)
        product = gs.Node("MatMul", self._names.derive(made.name, "product"), {}, [read, weight], [made])
        node.inputs[0] = made
        self._insertions.add(self._graph, walk.producer(read), [product])

    def _change(self, node: gs.Node, index: int, change: Callable[[Float32Array], Float32Array]) -> None:
        """Give a node a changed constant, of its own if others read that."""
        old = node.inputs[index]
        values = derived(old._values, change, np.float32)
        if walk.is_read_once(old) and id(old) not in self._fixed:
            become_constant(old, values)
        else:
            node.inputs[index] = constant(self._names.derive(old.name, "turned"), values)


def _read_turned(node: gs.Node, scale: Float64Array | None, values: Float32Array) -> Float32Array:
    """Return R^T diag(s) W, for a weight in the form in which the node stores it."""
    rows = rows_of(node, values)
    scaled = rows if scale is None else rows * scale[:, None]
    found = turned(scaled, 0)
    return np.ascontiguousarray(rows_of(node, found))


def _written(node: gs.Node, index: int, values: Float32Array) -> Float32Array:
    """Return W R, or an added vector times R."""
    is_turned = index == 1 and node.attrs.get("transB", 0)
    return turned(values, 0 if is_turned else -1)
