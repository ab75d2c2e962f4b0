"""Decomposed layer normalisation becomes one LayerNormalization node, which keeps float32 inside.

Rounding each node of the decomposed form to bfloat16 ruins many models: a variance computed as
E[x^2] - E[x]^2 cancels.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.algebra.find_form import Match, Order, fuse
from transforms.algebra.interpret import Context, interpret, make_context
from transforms.algebra.polynomial import MEAN, ONE, RSQRT, Polynomial, X, is_close
from transforms.graph import shapes, walk
from transforms.graph.constants import Constants
from transforms.graph.dtypes import element_type
from transforms.graph.rewire import onnx_op
from transforms.graph.selection import Choice, Exclusion, resolve

log = logging.getLogger(__name__)

OPSET = 17
"""First opset with LayerNormalization."""


@dataclass(frozen=True)
class _Norm(Match):
    """``output = (x - mean) / sqrt(variance + epsilon) * scale + bias``, x and the axes from the context."""

    epsilon: float
    scale: NDArray[np.float64]
    bias: NDArray[np.float64] | None


def fuse_layernorm(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Replace decomposed layer normalisations by LayerNormalization; return how many.

    Takes every form that is algebraically ``(x - mean(x)) / sqrt(var(x) + epsilon) * scale + bias`` with
    constant epsilon, scale and bias: either variance, any order of the affine part, Pow or Mul, ReduceSum
    times 1/N, statistics without their reduced axes that are reshaped and expanded. Without scale, ones take
    its place. Axes that are not the last are transposed there and back. Bodies of If, Loop and Scan included.

    The fused node replaces the largest part whose intermediate results no other node uses; statistics that
    are used elsewhere, or are outputs, stay. Equal up to rounding: LayerNormalization computes the same in
    float32, in another order.

    Does nothing below opset 17, if a node of the pattern is in ``exclude``, for double
    (LayerNormalization computes in float32 at most), if the size of a normalised axis is not known, if
    a scale varies along other axes, if a Reshape or Expand cannot be proven to move nothing, and if
    epsilon is negative. (In float16 the epsilon of an exporter is often 0.)
    """
    if not walk.reaches(graph, OPSET, __name__):
        return 0
    return fuse(graph, resolve(exclude, graph, nodes), _norms, _nodes)


def find_layernorm(graph: gs.Graph, *, exclude: Exclusion = None) -> int:
    """Return how many layer normalisations :func:`fuse_layernorm` would replace if the opset were 17."""
    return fuse(graph, exclude, _norms)


def _norms(order: Order, constants: Constants, exclude: Container[gs.Node]) -> Iterator[_Norm]:
    """Yield the normalisations of a graph, each extended while no other node uses its results."""
    for context in list(_contexts(order.graph, constants)):
        values = interpret(context, constants, exclude)
        found = (_norm(context, output, values[id(output)].polynomial) for output in order.of(values))
        norms = [norm for norm in found if norm is not None]
        reasons = {id(norm.output): _why_not(norm) for norm in norms}
        largest = _largest(order.graph, [norm for norm in norms if reasons[id(norm.output)] is None])
        if norms and not largest:
            name = norms[-1].output.name
            log.debug("layer normalisation '%s' is not fused: %s", name, reasons[id(norms[-1].output)])
        yield from largest


def _contexts(graph: gs.Graph, constants: Constants) -> Iterator[Context]:
    """Yield each tensor and axes of which the graph takes a mean or a sum."""
    inside, seen = {id(node) for node in graph.nodes}, set()
    for node in graph.nodes:
        if onnx_op(node) not in ("ReduceMean", "ReduceSum"):
            continue
        root = _origin(node.inputs[0], inside)
        shape = shapes.shape_of(root)
        axes = shapes.reduced_axes(node, None if shape is None else len(shape), constants)
        context = make_context(root, axes) if axes else None
        if context and (id(root), axes) not in seen:
            seen.add((id(root), axes))
            yield context


def _origin(tensor: gs.Tensor, inside: set[int]) -> gs.Tensor:
    """Return the tensor that nodes of the same graph copied under this name."""
    while len(tensor.inputs) == 1 and id(tensor.inputs[0]) in inside:
        node = tensor.inputs[0]
        if node.op not in ("Identity", "Cast") or element_type(node.inputs[0]) != element_type(tensor):
            break
        tensor = node.inputs[0]
    return tensor


def _largest(graph: gs.Graph, norms: list[_Norm]) -> list[_Norm]:
    """Return the normalisations, each extended by those that follow from it while no other node uses it."""
    found: dict[int, _Norm] = {}
    covered: set[int] = set()
    for norm in norms:
        output, inputs = norm.output, norm.output.inputs[0].inputs
        smaller = next((tensor for tensor in inputs if id(tensor) in covered), None)
        covered.add(id(output))
        if smaller is None:
            found[id(output)] = norm
        elif id(smaller) in found and len(smaller.outputs) == 1 and not walk.is_output(smaller, graph):
            del found[id(smaller)]
            found[id(output)] = norm
    return list(found.values())


def _norm(context: Context, output: gs.Tensor, polynomial: Polynomial) -> _Norm | None:
    """Return the normalisation if the polynomial is scale * x * rsqrt - scale * mean * rsqrt + bias."""
    roots = {symbol for product in polynomial.terms for symbol, _ in product if symbol.name == RSQRT}
    if len(roots) != 1:
        return None
    root = roots.pop()
    of_x, of_mean = (tuple(sorted(((symbol, 1), (root, 1)))) for symbol in (X, MEAN))
    if not {of_x, of_mean} <= polynomial.terms.keys() <= {of_x, of_mean, ONE}:
        return None
    scale = polynomial.get(of_x)
    if not is_close(scale, -polynomial.get(of_mean), context.tolerance):
        return None
    return _Norm(context, output, root.parameter, scale, polynomial.terms.get(ONE))


def _why_not(norm: _Norm) -> str | None:
    """Return the reason against replacing it, or None."""
    context = norm.context
    if context.element_type == onnx.TensorProto.DOUBLE:
        return "LayerNormalization computes in float32 at most, the tensor is double"
    if element_type(norm.output) not in (None, context.element_type):
        return f"its type is not that of '{context.root.name}'"
    if not context.count:
        return f"the size of the normalised axes {context.axes} of '{context.root.name}' is unknown or 0"
    if not _is_last(context) and context.rank is None:
        return f"axes {context.axes} of '{context.root.name}' have to be moved and its rank is unknown"
    return None


def _is_last(context: Context) -> bool:
    return context.axes == tuple(range(-len(context.axes), 0))


def _nodes(norm: _Norm, names: walk.Names) -> list[gs.Node]:
    """Return the node, between two Transposes unless the axes are the last."""
    context, output = norm.context, norm.output
    if _is_last(context):
        return [_layer_norm(norm, context.root, names)]
    order = [axis for axis in range(-(context.rank or 0), 0) if axis not in context.axes]
    perm = [axis % (context.rank or 0) for axis in (*order, *context.axes)]
    moved = _moved(context.root, perm, names.derive(context.root.name, "to_last_axis"))
    before = gs.Node("Transpose", moved.name, {"perm": perm}, [context.root], [moved])
    normalize = _layer_norm(norm, moved, names)
    normal = _moved(context.root, perm, names.derive(output.name, "last_axis"))
    normalize.outputs.append(normal)
    back = [int(axis) for axis in np.argsort(perm)]
    return [before, normalize, gs.Node("Transpose", normal.name, {"perm": back}, [normal])]


def _moved(tensor: gs.Tensor, perm: list[int], name: str) -> gs.Variable:
    return gs.Variable(name, tensor.dtype, [tensor.shape[axis] for axis in perm])


def _layer_norm(norm: _Norm, x: gs.Tensor, names: walk.Names) -> gs.Node:
    """Return the node on x, whose normalised axes are the last; it has no output yet."""
    name = names.derive(norm.output.name, "layernorm")
    inputs = [x, _parameter(norm, norm.scale, names.derive(norm.output.name, "scale"))]
    if norm.bias is not None:
        inputs.append(_parameter(norm, norm.bias, names.derive(norm.output.name, "bias")))
    attributes = {"axis": -len(norm.context.axes), "epsilon": float(np.float32(norm.epsilon))}
    return gs.Node("LayerNormalization", name, attributes, inputs)


def _parameter(norm: _Norm, values: NDArray[np.float64], name: str) -> gs.Constant:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(norm.context.element_type)
    sizes = [size or 1 for size in norm.context.sizes]
    return gs.Constant(name, np.ascontiguousarray(np.broadcast_to(values, sizes).astype(dtype)))
