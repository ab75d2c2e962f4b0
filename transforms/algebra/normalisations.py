"""Normalisations over axes, which exporters write in many nodes, and the single nodes that replace them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.algebra.find_form import Match, Order, fuse
from transforms.algebra.interpret import Context, interpret, make_context
from transforms.algebra.polynomial import Polynomial
from transforms.graph import shapes, walk
from transforms.graph.constants import Constants
from transforms.graph.dtypes import element_type
from transforms.graph.rewire import onnx_op
from transforms.graph.selection import Exclusion


@dataclass(frozen=True)
class Norm(Match):
    """``output = (x - mean) / sqrt(variance + epsilon) * scale + bias``, x and the axes from the context.

    Without mean and bias: ``x / sqrt(mean square + epsilon) * scale``.
    """

    epsilon: float
    scale: NDArray[np.float64]
    bias: NDArray[np.float64] | None


@dataclass(frozen=True)
class Kind:
    """An operator that normalises, the suffix of its nodes' names, and its reader of polynomials.

    ``of_squares``: its only statistic is the mean of squares.
    """

    operator: str
    suffix: str
    read: Callable[[Context, gs.Tensor, Polynomial], Norm | None]
    of_squares: bool = False


def fuse_norms(graph: gs.Graph, exclude: Exclusion, kind: Kind, *, writes: bool = True) -> int:
    """Replace the normalisations of a kind by its operator, in all bodies; return how many.

    Nothing changes unless ``writes``.
    """
    build = partial(_nodes, kind) if writes else None
    return fuse(graph, exclude, partial(_norms, kind), build)


def _norms(kind: Kind, order: Order, constants: Constants, exclude: Container[gs.Node]) -> Iterator[Norm]:
    """Yield the normalisations of a graph, each extended as long as no other node uses its results."""
    for context in list(_contexts(order.graph, constants, kind)):
        values = interpret(context, constants, exclude)
        candidates = (
            kind.read(context, output, values[id(output)].polynomial) for output in order.of(values)
        )
        norms = [norm for norm in candidates if norm is not None]
        reasons = {id(norm.output): _why_not(norm, kind) for norm in norms}
        largest = _largest(order.graph, [norm for norm in norms if reasons[id(norm.output)] is None])
        if norms and not largest:
            name = norms[-1].output.name
            log = logging.getLogger(kind.read.__module__)
            log.debug("%s '%s' is not fused: %s", kind.operator, name, reasons[id(norms[-1].output)])
        yield from largest


def _contexts(graph: gs.Graph, constants: Constants, kind: Kind) -> Iterator[Context]:
    """Yield each tensor and axes over which the graph computes a mean or a sum, of it or of its square."""
    inside, seen = {id(node) for node in graph.nodes}, set()
    for node in graph.nodes:
        if onnx_op(node) not in ("ReduceMean", "ReduceSum"):
            continue
        reduced = _origin(node.inputs[0], inside)
        for root in _squared(reduced, inside) if kind.of_squares else (reduced,):
            shape = shapes.shape_of(root)
            axes = shapes.reduced_axes(node, None if shape is None else len(shape), constants)
            context = make_context(root, axes) if axes else None
            if context and (id(root), axes) not in seen:
                seen.add((id(root), axes))
                yield context


def _squared(square: gs.Tensor, inside: set[int]) -> Iterator[gs.Tensor]:
    """Yield the tensor that a node squares, and the narrower one before it if a Cast widened it."""
    node = walk.producer(square)
    if node is None or id(node) not in inside or onnx_op(node) not in ("Pow", "Mul"):
        return
    root = _origin(node.inputs[0], inside)
    cast = walk.producer(root)
    if cast is not None and id(cast) in inside and onnx_op(cast) == "Cast":
        yield cast.inputs[0]
    yield root


def _origin(tensor: gs.Tensor, inside: set[int]) -> gs.Tensor:
    """Return the tensor from which nodes of the same graph copied this one."""
    while len(tensor.inputs) == 1 and id(tensor.inputs[0]) in inside:
        node = tensor.inputs[0]
        if node.op not in ("Identity", "Cast") or element_type(node.inputs[0]) != element_type(tensor):
            break
        tensor = node.inputs[0]
    return tensor


def _largest(graph: gs.Graph, norms: list[Norm]) -> list[Norm]:
    """Return the normalisations, each extended by its continuations as long as no other node uses it."""
    largest: dict[int, Norm] = {}
    covered: set[int] = set()
    for norm in norms:
        output, inputs = norm.output, norm.output.inputs[0].inputs
        smaller = next((tensor for tensor in inputs if id(tensor) in covered), None)
        covered.add(id(output))
        if smaller is None:
            largest[id(output)] = norm
        elif id(smaller) in largest and len(smaller.outputs) == 1 and not walk.is_output(smaller, graph):
            del largest[id(smaller)]
            largest[id(output)] = norm
    return list(largest.values())


def _why_not(norm: Norm, kind: Kind) -> str | None:
    """Return the reason against replacing it, or None."""
    context = norm.context
    if context.element_type == onnx.TensorProto.DOUBLE:
        return f"{kind.operator} computes in float32 at most, the tensor is double"
    if element_type(norm.output) not in (None, context.element_type):
        return f"its type is not that of '{context.root.name}'"
    if not context.count:
        return f"the size of the normalised axes {context.axes} of '{context.root.name}' is unknown or 0"
    if not _is_last(context) and context.rank is None:
        return f"axes {context.axes} of '{context.root.name}' have to be moved and its rank is unknown"
    return None


def _is_last(context: Context) -> bool:
    return context.axes == tuple(range(-len(context.axes), 0))


def _nodes(kind: Kind, norm: Norm, names: walk.Names) -> list[gs.Node]:
    """Return the node, between two Transposes unless the axes are the last."""
    context, output = norm.context, norm.output
    if _is_last(context):
        return [_normalize(kind, norm, context.root, names)]
    order = [axis for axis in range(-(context.rank or 0), 0) if axis not in context.axes]
    perm = [axis % (context.rank or 0) for axis in (*order, *context.axes)]
    moved = _moved(context.root, perm, names.derive(context.root.name, "to_last_axis"))
    before = gs.Node("Transpose", moved.name, {"perm": perm}, [context.root], [moved])
    normalize = _normalize(kind, norm, moved, names)
    normal = _moved(context.root, perm, names.derive(output.name, "last_axis"))
    normalize.outputs.append(normal)
    back = [int(axis) for axis in np.argsort(perm)]
    return [before, normalize, gs.Node("Transpose", normal.name, {"perm": back}, [normal])]


def _moved(tensor: gs.Tensor, perm: list[int], name: str) -> gs.Variable:
    return gs.Variable(name, tensor.dtype, [tensor.shape[axis] for axis in perm])


def _normalize(kind: Kind, norm: Norm, x: gs.Tensor, names: walk.Names) -> gs.Node:
    """Return the node on x, whose normalised axes are the last; it has no output yet."""
    name = names.derive(norm.output.name, kind.suffix)
    inputs = [x, _parameter(norm, norm.scale, names.derive(norm.output.name, "scale"))]
    if norm.bias is not None:
        inputs.append(_parameter(norm, norm.bias, names.derive(norm.output.name, "bias")))
    attributes = {"axis": -len(norm.context.axes), "epsilon": float(np.float32(norm.epsilon))}
    return gs.Node(kind.operator, name, attributes, inputs)


def _parameter(norm: Norm, values: NDArray[np.float64], name: str) -> gs.Constant:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(norm.context.element_type)
    sizes = [size or 1 for size in norm.context.sizes]
    return gs.Constant(name, np.ascontiguousarray(np.broadcast_to(values, sizes).astype(dtype)))
