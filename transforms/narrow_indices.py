"""Tables of indices stored in the narrowest sufficient integer type."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.constants import load
from transforms.graph.qdq import DEQUANTIZE
from transforms.graph.rewire import Insertions

_LEAST = 1 << 12  # bytes
_WIDE = frozenset({np.dtype(np.int64), np.dtype(np.int32)})
_NARROW = (np.uint8, np.int8, np.uint16, np.int16, np.int32)


def narrow_indices(graph: gs.Graph) -> int:
    """Store constants of int64 and int32 in the narrowest type that holds them; return how many.

    A Cast restores their type; ONNX Runtime folds it when it opens a model. Positions, of a ScatterND for
    example, can take more bytes than weights. Does nothing to constants of less than 4 KiB, such as shapes
    and axes, to inputs and outputs, and to integers that are dequantized: their type is that of their grid,
    and runtimes expect the int32 bias of a layer as the direct input of its DequantizeLinear.
    """
    walk.check_graph(graph)
    owners, ends = walk.constant_owners(graph), walk.ends(graph)
    names, insertions = walk.Names(graph), Insertions()
    candidates = [
        t for t in walk.constants(graph) if _is_wide(t) and id(t) not in ends and not _is_on_grid(t)
    ]
    count = 0
    for tensor in candidates:
        values = load(tensor)
        narrow = _narrowest(values)
        if narrow is None:
            continue
        stored = gs.Constant(names.derive(tensor.name, narrow.name), values.astype(narrow))
        wide = gs.Variable(names.derive(tensor.name, values.dtype.name), values.dtype, list(values.shape))
        to = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
        walk.redirect(tensor, wide)
        cast = gs.Node("Cast", names.derive(tensor.name, "Cast"), {"to": int(to)}, [stored], [wide])
        insertions.add(owners[id(tensor)], None, [cast])
        count += 1
    if count:
        insertions.place(graph)
    return count


def _is_wide(tensor: gs.Constant) -> bool:
    element = dtypes.element_type(tensor)
    is_integer = element in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    return is_integer and np.dtype(tensor.dtype) in _WIDE and tensor._values.nbytes >= _LEAST


def _is_on_grid(tensor: gs.Constant) -> bool:
    return any(node.op in DEQUANTIZE for node in tensor.outputs)


def _narrowest(values: np.ndarray) -> np.dtype | None:
    """Return the first type that holds all the numbers, None if none is narrower."""
    low, high = int(values.min()), int(values.max())
    fitting = (np.dtype(kind) for kind in _NARROW if np.iinfo(kind).min <= low <= high <= np.iinfo(kind).max)
    return next((kind for kind in fitting if kind.itemsize < values.dtype.itemsize), None)
