"""Keys stored as (k - offset) @ M, with queries multiplied by the inverse of M.

The matrix leaves each score unchanged; the offset shifts all scores of a query by the same number, to which
softmax is invariant. A rotary embedding fused into the attention must come first: it is written as a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray, Float32Array, Float64Array
from transforms.features.caches.value_offsets import takes_offset
from transforms.graph import walk
from transforms.graph.constants import load
from transforms.graph.rewire import RUNTIME_DOMAIN, position

QUERY, KEY = 0, 1  # inputs of an attention
_PAST, _LENGTHS, _COS, _SIN, _POSITIONS = 3, 5, 7, 8, 9
_MADE = 3  # outputs of an attention that hands out no scores
_HEADS_FIRST = [0, 2, 1, 3]


@dataclass(frozen=True)
class Rotation:
    """The ``offset`` [heads, channels] subtracted from keys, then the ``matrix`` that multiplies them.

    ``matrix``: [heads, channels, channels], from the model's channels to the stored ones.
    """

    offset: Float32Array
    matrix: Float32Array

    @property
    def of_queries(self) -> Float32Array:
        """The matrix that multiplies queries, for each head of keys."""
        inverse: Float64Array = np.linalg.inv(self.matrix.astype(np.float64))
        return np.asarray(inverse.swapaxes(1, 2), np.float32)

    def kept(self, keys: Float32Array) -> Float32Array:
        """Return the stored form of keys [batch, heads, tokens, channels]."""
        found: Float32Array = ((keys - self.offset[:, None]) @ self.matrix).astype(np.float32, copy=False)
        return found

    def keys(self, kept: Float32Array) -> Float32Array:
        """Return the keys of their stored form."""
        return kept @ self.of_queries.swapaxes(1, 2) + self.offset[:, None]


def takes_rotation(node: gs.Node) -> bool:
    """Return whether a GroupQueryAttention has separate queries and keys, whose scores go to a softmax."""
    is_apart = len(node.inputs) > _LENGTHS and not node.inputs[KEY].is_empty()
    is_plain = takes_offset(node) and not node.attrs.get("softcap") and len(node.outputs) <= _MADE
    if not (is_apart and is_plain and isinstance((node.inputs[_PAST].shape or [None])[-1], int)):
        return False
    return not node.attrs.get("do_rotary") or isinstance((node.inputs[_COS].shape or [None])[-1], int)


def write_rotary_apart(graph: gs.Graph, nodes: Sequence[gs.Node]) -> None:
    """Replace the fused rotary embeddings of attentions by nodes that compute the same numbers."""
    names, positions_by_lengths = walk.Names(graph), dict[int, gs.Tensor]()
    for node in nodes:
        if not node.attrs.get("do_rotary"):
            continue
        new = _Nodes(names)
        positions = node.inputs[_POSITIONS] if len(node.inputs) > _POSITIONS else gs.Variable.empty()
        lengths = node.inputs[_LENGTHS]
        if positions.is_empty():
            if id(lengths) not in positions_by_lengths:
                positions_by_lengths[id(lengths)] = new.positions(node.inputs[QUERY], lengths)
            positions = positions_by_lengths[id(lengths)]
        for place, heads in ((QUERY, "num_heads"), (KEY, "kv_num_heads")):
            attributes = {"interleaved": int(node.attrs.get("rotary_interleaved", 0))}
            rotated_size, head_size = 2 * int(node.inputs[_COS].shape[-1]), int(node.inputs[_PAST].shape[-1])
            if rotated_size < head_size:
                attributes |= {"num_heads": int(node.attrs[heads]), "rotary_embedding_dim": rotated_size}
            source = [node.inputs[place], positions, *node.inputs[_COS : _SIN + 1]]
            node.inputs[place] = new.add("RotaryEmbedding", source, **attributes)
        for place in range(_COS, min(_POSITIONS + 1, len(node.inputs))):
            node.inputs[place] = gs.Variable.empty()
        node.attrs["do_rotary"] = 0
        new.put_before(graph, node)


def rotate_keys(graph: gs.Graph, rotated: Sequence[tuple[gs.Node, Rotation]]) -> None:
    """Let attentions store keys less an offset and times a matrix; their other outputs are unchanged."""
    write_rotary_apart(graph, [node for node, _ in rotated])
    names = walk.Names(graph)
    for node, rotation in rotated:
        new, groups = _Nodes(names), int(node.attrs["num_heads"]) // len(rotation.offset)
        queries = new.apart(node.inputs[QUERY], rotation.offset, groups)
        queries = new.add("MatMul", [queries, new.constant(np.repeat(rotation.of_queries, groups, axis=0))])
        keys = new.apart(node.inputs[KEY], rotation.offset, 1)
        keys = new.add("Sub", [keys, new.constant(rotation.offset[:, None])])
        keys = new.add("MatMul", [keys, new.constant(rotation.matrix)])
        for place, tensor, heads in ((QUERY, queries, groups), (KEY, keys, 1)):
            node.inputs[place] = new.together(tensor, heads * rotation.offset.size)
        new.put_before(graph, node)


def key_rotation(node: gs.Node) -> Rotation | None:
    """Return how an attention stores its keys, as written by :func:`rotate_keys`, or None."""
    keys, queries = (_product(node.inputs[place]) for place in (KEY, QUERY))
    take = walk.producer(keys.inputs[0]) if keys is not None else None
    if keys is None or queries is None or take is None or take.op != "Sub":
        return None
    offset, matrix, inverse = (_values(operation.inputs[1]) for operation in (take, keys, queries))
    if offset is None or matrix is None or inverse is None or matrix.ndim != offset.ndim:
        return None
    rotation = Rotation(offset[:, 0], matrix)
    repeated = np.repeat(rotation.of_queries, len(inverse) // len(matrix), axis=0)
    return rotation if np.array_equal(repeated, inverse) else None


def _product(tensor: gs.Tensor) -> gs.Node | None:
    """Return the product with matrices of heads that makes a flat tensor, or None."""
    for op in ("Reshape", "Transpose", "MatMul"):
        node = walk.producer(tensor)
        if node is None or node.op != op:
            return None
        tensor = node.inputs[0]
    return node


def _values(tensor: gs.Tensor) -> AnyArray | None:
    return np.asarray(load(tensor)) if isinstance(tensor, gs.Constant) and len(tensor.shape) == 3 else None


class _Nodes:
    """New nodes before an attention."""

    def __init__(self, names: walk.Names) -> None:
        self._names, self._new = names, list[gs.Node]()

    def add(
        self, op: str, inputs: Sequence[gs.Tensor], dtype: type = np.float32, /, **attributes: object
    ) -> gs.Tensor:
        """Add a node and return its output."""
        made = gs.Variable(self._names.derive(inputs[0].name, op.lower()), np.dtype(dtype))
        domain = RUNTIME_DOMAIN if op == "RotaryEmbedding" else None
        label = self._names.derive(made.name, "node")
        self._new.append(gs.Node(op, label, attributes, list(inputs), [made], domain))
        return made

    def constant(self, array: AnyArray) -> gs.Constant:
        return gs.Constant(self._names.derive("rotation", "constant"), np.ascontiguousarray(array))

    def apart(self, tensor: gs.Tensor, like: Float32Array, groups: int) -> gs.Tensor:
        """Split a tensor into heads like those of an offset, ``groups`` for each, before the token axis."""
        shape = np.array([0, 0, groups * len(like), like.shape[1]])
        heads = self.add("Reshape", [tensor, self.constant(shape)])
        return self.add("Transpose", [heads], perm=_HEADS_FIRST)

    def together(self, tensor: gs.Tensor, channels: int) -> gs.Tensor:
        """Return heads merged into the channels of tokens."""
        transposed = self.add("Transpose", [tensor], perm=_HEADS_FIRST)
        return self.add("Reshape", [transposed, self.constant(np.array([0, 0, channels]))])

    def positions(self, queries: gs.Tensor, lengths: gs.Tensor) -> gs.Tensor:
        """Return the positions of queries as the attention counts them: the last one is the text's length.

        In a batch, a text with fewer tokens than its row starts at 0.
        """
        zero, one = (self.constant(np.array(number)) for number in (0, 1))
        count = self.add("Gather", [self.add("Shape", [queries], np.int64), one], np.int64)
        last = self.add("Cast", [lengths], np.int64, to=int(onnx.TensorProto.INT64))
        last = self.add("Reshape", [last, self.constant(np.array([-1, 1]))], np.int64)
        before = self.add("Sub", [self.add("Add", [last, one], np.int64), count], np.int64)
        first = self.add("Max", [before, zero], np.int64)
        steps = self.add("Range", [zero, count, one], np.int64)
        return self.add("Add", [first, steps], np.int64)

    def put_before(self, graph: gs.Graph, node: gs.Node) -> None:
        """Insert the nodes into a graph before a node."""
        where = position(graph, node)
        graph.nodes[where:where] = self._new
