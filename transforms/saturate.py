"""Infinite and huge weights brought into the range of BF16."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.lazy_values import become_constant, derived
from transforms.graph.selection import Exclusion, NodeSet, resolve


def saturate(graph: gs.Graph, *, exclude: Exclusion = None) -> int:
    """Clip float32 initializers to +-3.38953139e38, infinities included; return how many tensors changed.

    The -Inf of attention masks becomes finite, too: BF16 hardware does not guarantee to carry an infinity
    through a Softmax. NaN is kept: see :func:`tensors_with_nan`. Does nothing to tensors that only nodes in
    ``exclude`` use, and to types other than float32.
    """
    changed = 0
    for tensor in _float_constants(graph, resolve(exclude, graph)):
        values = tensor.values
        if values.size and _exceeds(values):
            become_constant(tensor, derived(tensor._values, _clipped, np.float32))
            changed += 1
    return changed


def tensors_with_nan(graph: gs.Graph) -> list[str]:
    """Return the names of float32 and float16 initializers that hold a NaN, in graph order."""
    found = [t for t in walk.constants(graph) if dtypes.element_type(t) in (dtypes.FLOAT, dtypes.FLOAT16)]
    return [t.name for t in found if _has_nan(t.values)]


def _has_nan(values: np.ndarray) -> bool:
    return bool(values.size) and bool(np.isnan(values.max()))


def _clipped(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip(values, -dtypes.BFLOAT16_MAX, dtypes.BFLOAT16_MAX))


def _exceeds(values: np.ndarray) -> bool:
    # fmax and fmin ignore NaN, and make no temporary of the size of the tensor
    return bool(
        np.fmax.reduce(values, axis=None) > dtypes.BFLOAT16_MAX
        or np.fmin.reduce(values, axis=None) < -dtypes.BFLOAT16_MAX
    )


def _float_constants(graph: gs.Graph, exclude: NodeSet) -> list[gs.Constant]:
    return [
        tensor
        for tensor in walk.constants(graph)
        if dtypes.is_type(tensor, dtypes.FLOAT)
        and not (exclude and all(node in exclude for node in tensor.outputs))
    ]
