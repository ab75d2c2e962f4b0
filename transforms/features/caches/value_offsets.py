"""An offset of the values that an attention keeps: taken from what it reads, and added to what it makes.

The shares that an attention gives to tokens add up to 1, so that nothing else changes. Its softmax must have
no share that belongs to no token: ``head_sink`` and ``smooth_softmax`` of GroupQueryAttention.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ops.array_types import Float32Array
from transforms.graph import walk
from transforms.graph.constants import load
from transforms.graph.rewire import onnx_op, position

_PACKED, _VALUES = 0, 2  # inputs: of queries, keys and values together, and of values alone
_SINK = 11


def takes_offset(node: gs.Node) -> bool:
    """Return whether the shares that a GroupQueryAttention gives to tokens add up to 1."""
    sink = node.inputs[_SINK] if len(node.inputs) > _SINK else gs.Variable.empty()
    return sink.is_empty() and node.attrs.get("smooth_softmax") != 1


def offset_values(graph: gs.Graph, node: gs.Node, offset: Float32Array, names: walk.Names) -> None:
    """Let a GroupQueryAttention keep values less an ``offset`` [heads, channels]."""
    place, before, after = _spread(node, offset)
    values, made = node.inputs[place], node.outputs[0]
    less = gs.Variable(names.derive(values.name, "less"), np.float32, values.shape)
    inner = gs.Variable(names.derive(made.name, "less"), np.float32, made.shape)
    constants = [
        gs.Constant(names.derive(one.name, "offset"), array)
        for one, array in ((values, before), (made, after))
    ]
    take = gs.Node("Sub", names.derive(values.name, "sub"), {}, [values, constants[0]], [less])
    node.inputs[place] = less
    walk.replace_output(node, made, inner)
    add = gs.Node("Add", names.derive(made.name, "add"), {}, [inner, constants[1]], [made])
    where = position(graph, node)
    graph.nodes[where : where + 1] = [take, node, add]


def value_offset(node: gs.Node) -> Float32Array | None:
    """Return the offset [heads, channels] of an attention's values; None if it has none.

    It has one if the same numbers are taken before and added after, and nothing else reads what it makes.
    """
    take = walk.producer(node.inputs[_place(node)])
    if take is None or onnx_op(take) != "Sub" or not isinstance(take.inputs[1], gs.Constant):
        return None
    heads, size = int(node.attrs["kv_num_heads"]), take.inputs[1].shape[-1]
    count = heads if _place(node) == _VALUES else 2 * heads + int(node.attrs["num_heads"])
    taken = np.asarray(load(take.inputs[1]), np.float32)
    if taken.ndim != 1 or size % count:
        return None
    offset = taken[-heads * (size // count) :].reshape(heads, -1)
    _, before, after = _spread(node, offset)
    readers = node.outputs[0].outputs
    is_added = len(readers) == 1 and onnx_op(readers[0]) == "Add"
    added = readers[0].inputs[1] if is_added else None
    if not isinstance(added, gs.Constant) or not np.array_equal(before, taken):
        return None
    return offset if np.array_equal(np.asarray(load(added), np.float32), after) else None


def _place(node: gs.Node) -> int:
    return _PACKED if node.inputs[_VALUES].is_empty() else _VALUES


def _spread(node: gs.Node, offset: Float32Array) -> tuple[int, Float32Array, Float32Array]:
    """Return the input that values are in, what is taken from it, and what is added to what is made."""
    heads, of_keys = int(node.attrs["num_heads"]), int(node.attrs["kv_num_heads"])
    flat, place = np.ascontiguousarray(offset, np.float32).reshape(-1), _place(node)
    others = np.zeros((heads + of_keys) * offset.shape[1] if place == _PACKED else 0, np.float32)
    after = np.repeat(offset, heads // of_keys, axis=0).reshape(-1)
    return place, np.concatenate([others, flat]), np.ascontiguousarray(after, np.float32)
