"""Decomposed layer normalisation becomes one LayerNormalization node, which keeps float32 inside.

Rounding each node of the decomposed form to bfloat16 ruins many models: a variance computed as
E[x^2] - E[x]^2 cancels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from numpy.typing import NDArray

from transforms.algebra.context import Context, is_float, make_context
from transforms.algebra.interpret import Order, interpret
from transforms.algebra.norm_terms import MEAN, RSQRT, X
from transforms.algebra.polynomial import ONE, Polynomial, is_close
from transforms.graph import shapes, walk
from transforms.graph.constants import Constants
from transforms.graph.dtypes import element_type
from transforms.graph.rewire import STANDARD_DOMAINS, Replacements, take_over
from transforms.graph.selection import Exclusion, resolve

log = logging.getLogger(__name__)

OPSET = 17
"""First opset with LayerNormalization."""


@dataclass(frozen=True)
class _Match:
    """``output = (x - mean) / sqrt(variance + epsilon) * scale + bias``, x and the axes from the context."""

    context: Context
    output: gs.Tensor
    epsilon: float
    scale: NDArray[np.float64]
    bias: NDArray[np.float64] | None


def fuse_layernorm(graph: gs.Graph, *, exclude: Exclusion = None) -> int:
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
    if graph.opset < OPSET:
        log.debug("LayerNormalization needs opset %d, the graph has %d", OPSET, graph.opset)
        return 0
    names = walk.Names(graph)
    return _visit(graph, resolve(exclude, graph), lambda fused, match: _replace(fused, match, names))


def find_layernorm(graph: gs.Graph, *, exclude: Exclusion = None) -> int:
    """Return how many layer normalisations :func:`fuse_layernorm` would replace if the opset were 17."""
    return _visit(graph, resolve(exclude, graph), lambda fused, match: None)


def _visit(graph: gs.Graph, exclude: Container[gs.Node], act: Callable[[Replacements, _Match], None]) -> int:
    """Call ``act`` on every match that can be replaced; return how many there were."""
    constants, seen = Constants(graph), set()
    for inner in walk.graphs(graph):
        order, fused = Order(inner), Replacements(inner)
        for context in list(_contexts(inner, constants)):
            for match in _matches(order, context, constants, exclude):
                if id(match.output) not in seen:
                    seen.add(id(match.output))
                    act(fused, match)
        fused.place()
    return len(seen)


def _contexts(graph: gs.Graph, constants: Constants) -> Iterator[Context]:
    """Yield each tensor and axes of which the graph takes a mean or a sum."""
    inside, seen = {id(node) for node in graph.nodes}, set()
    for node in graph.nodes:
        if node.op not in ("ReduceMean", "ReduceSum") or node.domain not in STANDARD_DOMAINS:
            continue
        root = _origin(node.inputs[0], inside)
        shape, element = shapes.shape_of(root), element_type(root)
        axes = shapes.reduced_axes(node, None if shape is None else len(shape), constants)
        if axes and element is not None and is_float(element) and (id(root), axes) not in seen:
            seen.add((id(root), axes))
            yield make_context(root, element, axes)


def _origin(tensor: gs.Tensor, inside: set[int]) -> gs.Tensor:
    """Return the tensor that nodes of the same graph copied under this name."""
    while len(tensor.inputs) == 1 and id(tensor.inputs[0]) in inside:
        node = tensor.inputs[0]
        if node.op not in ("Identity", "Cast") or element_type(node.inputs[0]) != element_type(tensor):
            break
        tensor = node.inputs[0]
    return tensor


def _matches(
    order: Order, context: Context, constants: Constants, exclude: Container[gs.Node]
) -> list[_Match]:
    """Return the normalisations of its tensor, each extended while no other node uses its results."""
    values = interpret(context, constants, exclude)
    matches = [
        m for output in order.of(values) if (m := _match(context, output, values[id(output)].polynomial))
    ]
    reasons = {id(match.output): _why_not(match) for match in matches}
    found = _largest(order.graph, [match for match in matches if reasons[id(match.output)] is None])
    if matches and not found:
        name = matches[-1].output.name
        log.debug("layer normalisation '%s' is not fused: %s", name, reasons[id(matches[-1].output)])
    return found


def _largest(graph: gs.Graph, matches: list[_Match]) -> list[_Match]:
    """Return the matches, each extended by those that follow from it while no other node uses it."""
    found: dict[int, _Match] = {}
    covered: set[int] = set()
    for match in matches:
        output, inputs = match.output, match.output.inputs[0].inputs
        smaller = next((tensor for tensor in inputs if id(tensor) in covered), None)
        covered.add(id(output))
        if smaller is None:
            found[id(output)] = match
        elif id(smaller) in found and len(smaller.outputs) == 1 and not walk.is_output(smaller, graph):
            del found[id(smaller)]
            found[id(output)] = match
    return list(found.values())


def _match(context: Context, output: gs.Tensor, polynomial: Polynomial) -> _Match | None:
    """Return the match if the polynomial is scale * x * rsqrt - scale * mean * rsqrt + bias."""
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
    return _Match(context, output, root.parameter, scale, polynomial.terms.get(ONE))


def _why_not(match: _Match) -> str | None:
    """Return the reason against replacing the match, or None."""
    context = match.context
    if context.element_type == onnx.TensorProto.DOUBLE:
        return "LayerNormalization computes in float32 at most, the tensor is double"
    if element_type(match.output) not in (None, context.element_type):
        return f"its type is not that of '{context.root.name}'"
    if not context.count:
        return f"the size of the normalised axes {context.axes} of '{context.root.name}' is unknown or 0"
    if not _is_last(context) and context.rank is None:
        return f"axes {context.axes} of '{context.root.name}' have to be moved and its rank is unknown"
    return None


def _is_last(context: Context) -> bool:
    return context.axes == tuple(range(-len(context.axes), 0))


def _replace(fused: Replacements, match: _Match, names: walk.Names) -> None:
    context, output = match.context, match.output
    if _is_last(context):
        normalize = _layer_norm(match, context.root, names)
        news = [normalize]
    else:
        order = [axis for axis in range(-(context.rank or 0), 0) if axis not in context.axes] + list(
            context.axes
        )
        perm = [axis % len(order) for axis in order]
        moved = _moved(context.root, perm, names.derive(context.root.name, "to_last_axis"))
        before = gs.Node("Transpose", moved.name, {"perm": perm}, [context.root], [moved])
        normalize = _layer_norm(match, moved, names)
        normal = _moved(context.root, perm, names.derive(output.name, "last_axis"))
        normalize.outputs.append(normal)
        back = [int(axis) for axis in np.argsort(perm)]
        news = [before, normalize, gs.Node("Transpose", normal.name, {"perm": back}, [normal])]
    fused.replace([take_over(news[-1], output)], news)


def _moved(tensor: gs.Tensor, perm: list[int], name: str) -> gs.Variable:
    return gs.Variable(name, tensor.dtype, [tensor.shape[axis] for axis in perm])


def _layer_norm(match: _Match, x: gs.Tensor, names: walk.Names) -> gs.Node:
    """Return the node on x, whose normalised axes are the last; it has no output yet."""
    name = names.derive(match.output.name, "layernorm")
    inputs = [x, _parameter(match, match.scale, names.derive(match.output.name, "scale"))]
    if match.bias is not None:
        inputs.append(_parameter(match, match.bias, names.derive(match.output.name, "bias")))
    attributes = {"axis": -len(match.context.axes), "epsilon": float(np.float32(match.epsilon))}
    return gs.Node("LayerNormalization", name, attributes, inputs)


def _parameter(match: _Match, values: NDArray[np.float64], name: str) -> gs.Constant:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(match.context.element_type)
    sizes = [size or 1 for size in match.context.sizes]
    return gs.Constant(name, np.ascontiguousarray(np.broadcast_to(values, sizes).astype(dtype)))
