"""Infinite and huge weights clipped to the range of BF16, except infinities with a meaning."""

from __future__ import annotations

from collections.abc import Container, Iterable

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk
from transforms.graph.lazy_values import become_constant, derived
from transforms.graph.selection import Choice, Exclusion, resolve


def saturate(
    graph: gs.Graph,
    *,
    nodes: Choice | None = None,
    exclude: Exclusion = None,
    names: list[str] | None = None,
) -> int:
    """Clip float32 initializers to +-3.38953139e38, infinities included; return how many tensors changed.

    The -Inf of attention masks becomes finite, too: BF16 hardware need not carry an infinity through a
    Softmax. Infinities that the model distinguishes from large numbers stay infinite
    (:mod:`transforms.plan.infinities`), as do those that a ConstantOfShape fills in; its finite value is
    clipped. NaN is kept: see :func:`tensors_with_nan`. Does nothing to tensors that only nodes in ``exclude``
    use, and to types other than float32. ``names`` receives the names of the tensors that changed.
    """
    excluded = resolve(exclude, graph, nodes)
    floats = (tensor for tensor in walk.constants(graph) if dtypes.is_type(tensor, dtypes.FLOAT))
    used = (
        constant
        for constant in floats
        if not (excluded and all(node in excluded for node in constant.outputs))
    )
    beyond = [tensor for tensor in used if _exceeds(tensor.values)]
    meant = _meant_infinities(graph, beyond) if beyond else ()
    clipped_names: list[str] = []
    for tensor in beyond:
        clipped = clip_finite if id(tensor) in meant else clip
        if id(tensor) not in meant or _exceeds(_finite(tensor.values)):
            become_constant(tensor, derived(tensor._values, clipped, np.float32))
            clipped_names.append(tensor.name)
    clipped_names += saturate_fills(graph, exclude=excluded)
    if names is not None:
        names += clipped_names
    return len(clipped_names)


def _meant_infinities(graph: gs.Graph, beyond: Iterable[gs.Constant]) -> Container[int]:
    """Return the ids of the tensors with infinities that the model distinguishes from large numbers."""
    from transforms.plan.infinities import has_infinity, meant_infinities

    has_any = any(has_infinity(tensor.values) for tensor in beyond)
    return meant_infinities(graph) if has_any else ()


def saturate_fills(graph: gs.Graph, *, exclude: Exclusion = None) -> list[str]:
    """Clip the finite numbers that a ConstantOfShape fills in; return the names of the tensors it makes."""
    clipped_names, excluded = [], resolve(exclude, graph)
    for node in walk.nodes(graph):
        value = node.attrs.get("value") if node.op == "ConstantOfShape" and node not in excluded else None
        if value is not None and dtypes.is_type(value, dtypes.FLOAT) and _exceeds(_finite(value.values)):
            node.attrs["value"] = gs.Constant(value.name, clip_finite(value.values))
            clipped_names.append(node.outputs[0].name)
    return clipped_names


def tensors_with_nan(graph: gs.Graph) -> list[str]:
    """Return the names of float32 and float16 initializers that hold a NaN, in graph order."""
    floats = [t for t in walk.constants(graph) if dtypes.element_type(t) in (dtypes.FLOAT, dtypes.FLOAT16)]
    return [t.name for t in floats if t.values.size and np.isnan(t.values.max())]


def clip(values: np.ndarray) -> np.ndarray:
    """Return float32 numbers clipped to the range of BF16, including infinities; NaN is kept."""
    return np.asarray(np.clip(values, -dtypes.BFLOAT16_MAX, dtypes.BFLOAT16_MAX))


def clip_finite(values: np.ndarray) -> np.ndarray:
    """Return float32 numbers with finite ones clipped to the range of BF16; infinities and NaN are kept."""
    return np.where(np.isinf(values), values, clip(values))


def _finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]


def _exceeds(values: np.ndarray) -> bool:
    # fmax and fmin ignore NaN, and make no temporary of the size of the tensor
    return bool(values.size) and bool(
        np.fmax.reduce(values, axis=None) > dtypes.BFLOAT16_MAX
        or np.fmin.reduce(values, axis=None) < -dtypes.BFLOAT16_MAX
    )
