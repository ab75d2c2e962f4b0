"""Add the part of a product due to block minima: sums of each input block times the minima."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from transforms.graph import dtypes, walk


class BlockSums:
    """Adds such terms to products of one graph; products of the same input share its sums."""

    def __init__(self, names: walk.Names) -> None:
        """Start without any sums."""
        self._names = names
        self._sums: dict[tuple[int, int], gs.Variable] = {}

    def add(self, product: gs.Node, result: gs.Tensor, least: gs.Constant) -> list[gs.Node]:
        """Return nodes that add to a product the term of the minima ``least`` [B, N]; the last has no output.

        ``product``: without an output, which it gets here. ``result``: the final tensor, [.., N].
        """
        data, blocks = product.inputs[0], int(least.shape[0])
        assert data.shape is not None, "its rank is known"
        nodes: list[gs.Node] = []
        if (key := (id(data), blocks)) not in self._sums:
            split = self._variable(data, "in_blocks")
            self._sums[key] = self._variable(data, "sums")
            shape = np.array([0] * (len(data.shape) - 1) + [blocks, -1], np.int64)
            numbers = {"shape": shape, "axis": np.array([-1], np.int64)}
            constants = {
                name: gs.Constant(self._names.derive(data.name, name), values)
                for name, values in numbers.items()
            }
            nodes += [
                self._node("Reshape", [data, constants["shape"]], split),
                self._node("ReduceSum", [split, constants["axis"]], self._sums[key], keepdims=0),
            ]
        least_product = dtypes.variable(self._names.derive(result.name, "of_blocks"), dtypes.FLOAT, result)
        product.outputs = [dtypes.variable(self._names.derive(result.name, "product"), dtypes.FLOAT, result)]
        label = self._names.derive(product.name or result.name, "add")
        return [
            *nodes,
            self._node("MatMul", [self._sums[key], least], least_product),
            gs.Node("Add", label, {}, [product.outputs[0], least_product], []),
        ]

    def _variable(self, like: gs.Tensor, suffix: str) -> gs.Variable:
        return gs.Variable(self._names.derive(like.name, suffix), np.float32)

    def _node(self, op: str, inputs: list[gs.Tensor], output: gs.Variable, **attrs: object) -> gs.Node:
        return gs.Node(op, self._names.derive(output.name, op), attrs, inputs, [output])
