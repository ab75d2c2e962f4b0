"""Models of a few hundred bytes that come to gigabytes or hours when they are taken at their word."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import helper, numpy_helper

from tests.helpers import build

_LOCAL = "local"


def constant(name: str, values: ArrayLike, dtype: DTypeLike = np.int64) -> onnx.TensorProto:
    """Return an initializer."""
    return numpy_helper.from_array(np.array(values, dtype), name)


def folded(
    nodes: Sequence[onnx.NodeProto], initializers: Sequence[onnx.TensorProto], opset: int = 17
) -> onnx.ModelProto:
    """Return a model that adds the largest number in the constant ``big`` to ``x`` before a product."""
    built = build.dense(opset=opset)
    nodes = [*nodes, helper.make_node("Cast", ["big"], ["float_big"], "cast", to=1)]
    nodes += [helper.make_node("ReduceMax", ["float_big"], ["most"], "most", keepdims=0)]
    nodes += [helper.make_node("Add", ["x", "most"], ["moved"], "add")]
    built.graph.node[0].input[0] = "moved"
    rest = list(built.graph.node)
    del built.graph.node[:]
    built.graph.node.extend([*nodes, *rest])
    built.graph.initializer.extend(initializers)
    return built


def functions(
    depth: int, calls: int, *, weight: int = 0, nodes: Sequence[onnx.NodeProto] = ()
) -> onnx.ModelProto:
    """Return a model whose function calls another ``calls`` times, which calls another, ``depth`` deep.

    The innermost adds a constant of ``weight`` float32 numbers, if any, after other nodes.
    """
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(_LOCAL, 1)]
    built = build.dense()
    inner = [helper.make_node("Relu", ["X"], ["Y"], "relu")]
    if weight:
        heavy = helper.make_node("Constant", [], ["c"], value=constant("c", np.zeros(weight), np.float32))
        inner = [
            heavy,
            helper.make_node("ReduceMax", ["c"], ["m"]),
            helper.make_node("Add", ["X", "m"], ["Y"]),
        ]
    bodies = [[*nodes, *inner]]
    for level in range(depth - 1):
        names = ["X", *(f"t{i}" for i in range(calls - 1)), "Y"]
        bodies.append(
            [
                helper.make_node(f"f{level}", names[i : i + 1], names[i + 1 : i + 2], domain=_LOCAL)
                for i in range(calls)
            ]
        )
    for level, body in enumerate(bodies):
        built.functions.append(helper.make_function(_LOCAL, f"f{level}", ["X"], ["Y"], body, imports))
    built.graph.node.insert(0, helper.make_node(f"f{depth - 1}", ["x"], ["moved"], "call", domain=_LOCAL))
    built.graph.node[1].input[0] = "moved"
    built.opset_import.append(imports[1])
    return built


def sparse(dims: Sequence[int], indices: ArrayLike = (0,), name: str = "big") -> onnx.SparseTensorProto:
    """Return a sparse tensor of ones at a few places of a large shape."""
    indices = constant("indices", indices)
    values = constant(name, np.ones(indices.dims[0]), np.float32)
    return helper.make_sparse_tensor(values, indices, list(dims))
