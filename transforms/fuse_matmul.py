"""Matrix products of one input with several constant weights become one product, then a Split."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs
from numpy.typing import NDArray
from onnx_graphsurgeon.ir.tensor import LazyValues

from transforms.graph import shapes, walk
from transforms.graph.constants import Constants
from transforms.graph.lazy_values import Computed, Weight, constant, is_weightless, load_values
from transforms.graph.rewire import Replacements, onnx_op, release, take_over
from transforms.graph.selection import Choice, Exclusion, resolve

OPSET = 13
"""First opset in which the sizes of a Split are an input."""

_GEMM_DEFAULTS = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}


@dataclass(frozen=True)
class _Member:
    """A MatMul, possibly with the Add after it, or a Gemm; ``width``: the columns of its weight."""

    nodes: tuple[gs.Node, ...]
    weight: gs.Tensor
    bias: gs.Tensor | None
    width: int

    @property
    def output(self) -> gs.Tensor:
        """The tensor that holds the result."""
        return self.nodes[-1].outputs[0]


def fuse_matmul(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Fuse the matrix products that share their first input; return how many groups were fused.

    Takes MatMul, MatMul followed by Add of a bias, and Gemm with equal attributes, in groups of two or more
    that stand in the same graph (also in the same body of If, Loop or Scan) and have constant rank-2 weights
    of one type. The weights are concatenated along the output axis, as are the biases (zeros for a member
    that has none), and a Split gives back the original outputs under their names.

    Each result is the same sum of products in an order that the runtime chooses by the shape, so it is equal
    within 2 * K * u * sum |x| * |w|, K being the summed axis and u the type's unit roundoff.

    Does nothing below opset 13, for weights that are not constant, that can be overridden through a graph
    input, whose rank is not 2 or that have no columns, for a bias that is not one number per column or is
    added by a node that is left alone (such a MatMul takes part without its Add, such a Gemm not at all), and
    to products in ``exclude`` or not in ``nodes``.
    """
    if not walk.reaches(graph, OPSET, __name__):
        return 0
    constants, names, count = Constants(graph), walk.Names(graph), 0
    excluded, outputs = resolve(exclude, graph, nodes), walk.outputs(graph)
    for inner in walk.graphs(graph):
        fused = Replacements(inner)
        for group in _groups(inner, constants, excluded):
            _replace(fused, group, constants, names)
            fused.forget()
            release([member.weight for member in group], outputs)
            count += 1
        fused.place()
    return count


def _groups(graph: gs.Graph, constants: Constants, exclude: Container[gs.Node]) -> list[list[_Member]]:
    """Return groups of two or more products that can be fused, in the order of the graph."""
    groups: dict[tuple[object, ...], list[_Member]] = {}
    inside = {id(node): node for node in graph.nodes if node not in exclude}
    for node in inside.values():
        member = _member(graph, inside, node, constants)
        if member is not None:
            attributes = (node.attrs.get(name, default) for name, default in _GEMM_DEFAULTS.items())
            key = (id(node.inputs[0]), node.op, constants.element_type(member.weight), *attributes)
            groups.setdefault(key, []).append(member)
    return [group for group in groups.values() if len(group) > 1]


def _member(graph: gs.Graph, inside: Container[int], node: gs.Node, constants: Constants) -> _Member | None:
    """Return the product of a tensor and constants that a node computes, or None for other nodes."""
    if onnx_op(node) not in ("MatMul", "Gemm"):
        return None
    shape = constants.shape(node.inputs[1])
    if shape is None or len(shape) != 2 or constants.shape(node.inputs[0]) is not None:
        return None
    width = shape[0 if node.attrs.get("transB") else 1]
    if width == 0:
        return None
    member = _Member((node,), node.inputs[1], None, width)
    return _with_add(graph, inside, member, constants) if node.op == "MatMul" else _with_c(member, constants)


def _with_add(graph: gs.Graph, inside: Container[int], member: _Member, constants: Constants) -> _Member:
    """Return the MatMul with the Add of a bias that is its only consumer, or without one."""
    product = member.output
    if len(product.outputs) != 1 or walk.is_output(product, graph):
        return member
    add = product.outputs[0]
    if onnx_op(add) != "Add" or id(add) not in inside:
        return member
    bias = add.inputs[1] if add.inputs[0] is product else add.inputs[0]
    rank = len(shapes.shape_of(product) or (None,))
    if not _is_row(constants.shape(bias), member.width, rank):
        return member
    return dataclasses.replace(member, nodes=(*member.nodes, add), bias=bias)


def _with_c(member: _Member, constants: Constants) -> _Member | None:
    """Return the Gemm with its C, or None unless C is one constant number per column."""
    inputs = member.nodes[0].inputs
    if len(inputs) < 3 or inputs[2].is_empty():
        return member
    if not _is_row(constants.shape(inputs[2]), member.width, 2):
        return None
    return dataclasses.replace(member, bias=inputs[2])


def _is_row(shape: tuple[int, ...] | None, width: int, rank: int) -> bool:
    """Return whether a constant of the shape is, broadcast to ``rank`` dimensions, one number per column."""
    if shape is None or len(shape) > rank:
        return False
    return all(size == 1 for size in shape[:-1]) and shape[-1:] in ((), (1,), (width,))


def _replace(fused: Replacements, group: list[_Member], constants: Constants, names: walk.Names) -> None:
    first = group[0]
    weight_axis = 0 if first.nodes[0].attrs.get("transB") else 1
    weights = _joined([constants.source(member.weight) for member in group], weight_axis)
    operands = [constant(names.derive(first.weight.name, "fused"), weights)]
    if any(member.bias is not None for member in group):
        biases = _join([_bias(member, constants, np.dtype(weights.dtype)) for member in group], 0)
        operands.append(gs.Constant(names.derive(first.output.name, "bias"), biases))
    news = [*_product(group, operands, names)]
    sizes = np.array([member.width for member in group], np.int64)
    label = names.derive(first.output.name, "split")
    counts = gs.Constant(names.derive(first.output.name, "sizes"), sizes)
    news.append(gs.Node("Split", label, {"axis": -1}, [news[-1].outputs[0], counts]))
    for member in group:
        take_over(news[-1], member.output)
    fused.replace([node for member in group for node in member.nodes], news)


def _joined(sources: list[Weight | LazyValues | None], axis: int) -> Weight:
    """Return the concatenated weights, computed when needed if one of them is not held in memory."""
    weights = [source for source in sources if source is not None]
    if not any(map(is_weightless, weights)):
        return _join([load_values(weight) for weight in weights], axis)
    shape = list(weights[0].shape)
    shape[axis] = sum(weight.shape[axis] for weight in weights)
    return Computed(shape, weights[0].dtype, lambda: _join([load_values(weight) for weight in weights], axis))


def _join(arrays: list[NDArray | None], axis: int) -> NDArray:
    return np.concatenate([array for array in arrays if array is not None], axis)


def _bias(member: _Member, constants: Constants, dtype: np.dtype) -> NDArray:
    values = None if member.bias is None else constants.values(member.bias)
    return np.broadcast_to(np.zeros(1, dtype) if values is None else values.reshape(-1), (member.width,))


def _product(group: list[_Member], operands: list[gs.Constant], names: walk.Names) -> Iterator[gs.Node]:
    """Yield the fused MatMul and Add, or Gemm."""
    node = group[0].nodes[0]
    if node.op == "Gemm":
        yield _node(node, [node.inputs[0], *operands], group, names)
        return
    product = _node(node, [node.inputs[0], operands[0]], group, names)
    yield product
    if len(operands) > 1:
        yield _node(gs.Node("Add"), [product.outputs[0], operands[1]], group, names)


def _node(like: gs.Node, inputs: list[gs.Tensor], group: list[_Member], names: walk.Names) -> gs.Node:
    """Return a node with the operator and attributes of another, whose result is as wide as the group."""
    output = group[0].output
    shape = None if output.shape is None else [*output.shape[:-1], sum(member.width for member in group)]
    result = gs.Variable(names.derive(output.name, f"fused_{like.op.lower()}"), inputs[1].dtype, shape)
    return gs.Node(like.op, result.name, dict(like.attrs), inputs, [result])
