"""Gemm split into a matrix product and the addition of its bias."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from ops.array_types import AnyArray
from transforms.graph import dtypes, walk
from transforms.graph.constants import Constants
from transforms.graph.lazy_values import constant, derived
from transforms.graph.rewire import Replacements, onnx_op, take_over
from transforms.graph.selection import Choice, Exclusion, resolve

OPSET = 7
"""First opset whose Gemm broadcasts a bias as Add does."""

_TYPES = frozenset({dtypes.FLOAT, dtypes.FLOAT16, dtypes.BFLOAT16, int(onnx.TensorProto.DOUBLE)})


def split_gemm(graph: gs.Graph, *, nodes: Choice | None = None, exclude: Exclusion = None) -> int:
    """Replace each Gemm by a MatMul and the Add of its bias; return how many.

    A transposed factor is stored transposed if it is constant, and otherwise goes through a Transpose.
    ``alpha`` and ``beta`` become a Mul; a constant bias is multiplied by ``beta``. The MatMul has the name of
    the Gemm, the last node its output. Results are equal up to rounding and the order of sums. Bodies of If,
    Loop and Scan are included.

    :func:`transforms.fuse_matmul_add.fuse_matmul_add` is the inverse. Does nothing below opset 7, for
    integers and unknown types, and to nodes in ``exclude`` or not in ``nodes``.
    """
    if not walk.reaches(graph, OPSET, __name__):
        return 0
    splitter, excluded, count = _Splitter(graph), resolve(exclude, graph, nodes), 0
    for inner in walk.graphs(graph):
        replacements = Replacements(inner)
        for gemm in inner.nodes:
            if onnx_op(gemm) == "Gemm" and gemm not in excluded and splitter.can_split(gemm):
                split = splitter.split(gemm)
                replacements.replace([take_over(split[-1], gemm.outputs[0])], split)
                count += 1
        replacements.place()
    return count


class _Splitter:
    def __init__(self, graph: gs.Graph) -> None:
        self._constants, self._names = Constants(graph), walk.Names(graph)

    def can_split(self, gemm: gs.Node) -> bool:
        """Return whether MatMul, Mul and Add support the type."""
        elements = {dtypes.element_type(tensor) for tensor in gemm.inputs[:2]}
        return len(elements) == 1 and elements <= _TYPES

    def split(self, gemm: gs.Node) -> list[gs.Node]:
        """Return the nodes of a Gemm in order; the last has no output yet."""
        nodes: list[gs.Node] = []
        left, right = (
            self._turned(gemm.inputs[index], nodes) if gemm.attrs.get(name, 0) else gemm.inputs[index]
            for index, name in enumerate(("transA", "transB"))
        )
        nodes.append(gs.Node("MatMul", gemm.name, inputs=[left, right]))
        alpha, beta = (float(gemm.attrs.get(name, 1.0)) for name in ("alpha", "beta"))
        has_bias = len(gemm.inputs) > 2 and not gemm.inputs[2].is_empty() and beta != 0
        if alpha != 1:
            factor = self._number(alpha, gemm)
            nodes.append(self._node("Mul", gemm, [self._result(nodes[-1], gemm, "product"), factor]))
        if has_bias:
            product = self._result(nodes[-1], gemm, "scaled" if alpha != 1 else "product")
            bias = gemm.inputs[2] if beta == 1 else self._scaled(gemm, beta, nodes)
            nodes.append(self._node("Add", gemm, [product, bias]))
        return nodes

    def _turned(self, tensor: gs.Tensor, nodes: list[gs.Node]) -> gs.Tensor:
        """Return a transposed factor: a constant, or the output of a Transpose that is appended to nodes."""
        values, name = self._constants.source(tensor), self._names.derive(tensor.name, "turned")
        if values is not None:
            return constant(name, derived(values, _transposed, values.dtype, tuple(values.shape)[::-1]))
        shape = None if tensor.shape is None else list(tensor.shape)[::-1]
        result = gs.Variable(name, tensor.dtype, shape)
        nodes.append(gs.Node("Transpose", name, {"perm": [1, 0]}, [tensor], [result]))
        return result

    def _scaled(self, gemm: gs.Node, beta: float, nodes: list[gs.Node]) -> gs.Tensor:
        bias = gemm.inputs[2]
        values, factor = self._constants.values(bias), self._number(beta, gemm)
        if values is not None:
            return gs.Constant(self._names.derive(bias.name, "scaled"), np.asarray(values * factor.values))
        node = self._node("Mul", gemm, [bias, factor])
        nodes.append(node)
        return self._result(node, gemm, "bias", bias)

    def _number(self, value: float, gemm: gs.Node) -> gs.Constant:
        element = dtypes.element_type(gemm.inputs[0]) or dtypes.FLOAT
        name = self._names.derive(gemm.outputs[0].name, "factor")
        return gs.Constant(name, np.array(value, dtypes.numpy_type(element)))

    def _node(self, op: str, gemm: gs.Node, inputs: list[gs.Tensor]) -> gs.Node:
        return gs.Node(op, self._names.derive(gemm.name or gemm.outputs[0].name, op), inputs=inputs)

    def _result(
        self, node: gs.Node, gemm: gs.Node, suffix: str, like: gs.Tensor | None = None
    ) -> gs.Variable:
        """Return a new output of a node, with the shape of the Gemm's output or of ``like``."""
        output = gemm.outputs[0]
        shape = output.shape if like is None else like.shape
        tensor = gs.Variable(self._names.derive(output.name, suffix), gemm.inputs[0].dtype, shape)
        node.outputs.append(tensor)
        return tensor


def _transposed(values: AnyArray) -> AnyArray:
    return np.ascontiguousarray(values.T)
