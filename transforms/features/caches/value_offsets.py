"""Store an attention's values less an offset: subtracted from its input, added to its output.

Attention weights of a token add up to 1, so the output is unchanged. The softmax must not have a share that
belongs to no token (``head_sink`` and ``smooth_softmax`` of GroupQueryAttention).
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
    """Return whether the attention weights of a GroupQueryAttention add up to 1."""
    sink = node.inputs[_SINK] if len(node.inputs) > _SINK else gs.Variable.empty()
    return sink.is_empty() and node.attrs.get("smooth_softmax") != 1


def offset_values(graph: gs.Graph, node: gs.Node, offset: Float32Array, names: walk.Names) -> None:
    """Let a GroupQueryAttention store values less an ``offset`` [heads, channels]."""
    place, before, after = _spread(node, offset)
    values, output = node.inputs[place], node.outputs[0]
    less = gs.Variable(names.derive(values.name, "less"), np.float32, values.shape)
    inner = gs.Variable(names.derive(output.name, "less"), np.float32, output.shape)
    constants = [
        gs.Constant(names.derive(tensor.name, "offset"), array)
        for tensor, array in ((values, before), (output, after))
    ]
    take = gs.Node("Sub", names.derive(values.name, "sub"), {}, [values, constants[0]], [less])
    node.inputs[place] = less
    walk.replace_output(node, output, inner)
    add = gs.Node("Add", names.derive(output.name, "add"), {}, [inner, constants[1]], [output])
    where = position(graph, node)
    graph.nodes[where : where + 1] = [take, node, add]


def value_offset(node: gs.Node) -> Float32Array | None:
    """Return the offset [heads, channels] of an attention's values, or None.

    The same numbers must be subtracted before and added after, and nothing else may read the raw output.
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
    """Return the input with the values, the array to subtract from it, and the array to add to the output."""
    heads, of_keys = int(node.attrs["num_heads"]), int(node.attrs["kv_num_heads"])
    flat, place = np.ascontiguousarray(offset, np.float32).reshape(-1), _place(node)
    of_other_inputs = np.zeros((heads + of_keys) * offset.shape[1] if place == _PACKED else 0, np.float32)
    after = np.repeat(offset, heads // of_keys, axis=0).reshape(-1)
    return place, np.concatenate([of_other_inputs, flat]), np.ascontiguousarray(after, np.float32)
